"""Python's search for garbage: seldom where kbtrain begins unless someone has chosen, and not through what stays."""

import gc
import weakref

import pytest
from support import scripts

from kbtrain.runtime.cores import THRESHOLD, freeze_objects

SAY = "print(gc.get_threshold()[0])"
SCRIPT = f"from kbtrain.config import Config, run_script\nrun_script(lambda _: {SAY}, Config)"
COMMAND = f"from kbtrain.cli import main\nmain(['ls', 'launch'])\n{SAY}"


def said(path, code):
    """The last word of a process that runs this code."""
    path.write_text(f"import gc\n{code}\n")
    done = scripts.run(path)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


@pytest.mark.parametrize("code", [SCRIPT, COMMAND], ids=["a script", "kbtrain"])
def test_every_command_searches_seldom_unless_someone_has_chosen(code, tmp_path):
    assert said(tmp_path / "a.py", code) == THRESHOLD
    assert said(tmp_path / "a.py", f"gc.set_threshold(50)\n{code}") == 50


def test_what_a_gate_before_left_in_circles_is_collected():
    class Part:
        pass

    try:
        part = Part()
        part.itself = part
        there = weakref.ref(part)
        freeze_objects()
        del part
        gc.collect()
        freeze_objects()
        assert there() is not None, "collections do not look at what was set aside"
        freeze_objects(again=True)
        assert there() is None
    finally:
        gc.unfreeze()
