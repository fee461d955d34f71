"""What a Ray node of the tests runs to start a worker, in a fork of a process that has all but Ray imported: Ray's
library reads its environment when it is imported, and finds the worker's job there.

Ray's own program of this kind sets up an environment of packages, of which the tests have none; its options go.
"""

import runpy
import sys

sys.argv = [part for part in sys.argv[1:] if not part.startswith(("--language", "--serialized-"))]
runpy.run_path(sys.argv[0], run_name="__main__")
