"""What a Ray node of the tests runs to start a worker: a fork of the process that has Ray imported, instead of Python.

Ray's own program of this kind sets up an environment of packages, of which the tests have none; its options go.
"""

import os
import sys

python = os.environ["KBTRAIN_FORKED_PYTHON"]
os.execv(python, [python, *(part for part in sys.argv[1:] if not part.startswith(("--language", "--serialized-")))])
