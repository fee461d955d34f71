"""Studies are scripts of the repository: their folder is on the path, as when they are run by path."""

import sys
from pathlib import Path

from support.scripts import load

sys.path.insert(0, str(Path(__file__).parents[2] / "studies"))
_evaluated = load("tests/eval/conftest.py")
script, made_run, run_folder = _evaluated.script, _evaluated.made_run, _evaluated.run_folder
sampled_run, sampled_test = _evaluated.sampled_run, _evaluated.sampled_test
evaluated, evaluated_run = _evaluated.evaluated, _evaluated.evaluated_run
