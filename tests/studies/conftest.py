"""Studies are scripts of the repository: their folder is on the path, as when they are run by path."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "studies"))
