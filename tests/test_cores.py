"""OpenMP's threads sleep soon while they wait, Python searches for garbage seldom, unless the user chose otherwise."""

import gc
import re
import sys
import weakref
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from support import scripts
from threadpoolctl import threadpool_info, threadpool_limits

from kbtrain.gates.probe.head import fit_layers
from kbtrain.runtime.cores import SPIN_COUNT, THRESHOLD, freeze_objects, leave_a_core, share_cores, threads_of_torch


def seen_by_openmp(*command, **variables):
    """Spin counts that the OpenMP libraries of a process read at their start, as they themselves print them."""
    cleared = ("env", *(f"--unset={name}" for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")))
    done = scripts.run_command(*cleared, *command, env={"OMP_DISPLAY_ENV": "VERBOSE", **variables})
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr))


@pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP")
def test_torch_reads_the_spin_count_that_the_command_sets():
    assert seen_by_openmp(sys.executable, "-m", "kbtrain.cli", "env") == {SPIN_COUNT}


@pytest.mark.skipif(sys.platform != "linux", reason="GNU OpenMP")
def test_a_script_started_by_itself_sets_it_before_torch_is_loaded():
    (openmp,) = Path(find_spec("torch").origin).parent.glob("lib/libgomp*")  # the rest of torch takes seconds
    work = f"lambda _: __import__('ctypes').CDLL({str(openmp)!r})"
    code = f"from kbtrain.config import Config, run_script\nrun_script({work}, Config)"
    assert seen_by_openmp(sys.executable, "-c", code) == {SPIN_COUNT}


def test_what_the_user_chose_stays(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    chosen = {"OMP_WAIT_POLICY": "active"}
    assert not share_cores(chosen)
    assert chosen == {"OMP_WAIT_POLICY": "active"}
    unset: dict[str, str] = {}
    assert share_cores(unset)
    assert unset == {"GOMP_SPINCOUNT": SPIN_COUNT}
    monkeypatch.setitem(sys.modules, "torch", sys)  # too late
    unset.clear()
    assert not share_cores(unset) and unset == {}


def test_a_server_s_event_loop_has_a_core_for_itself_while_few_questions_are_scored(monkeypatch):
    import torch

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)), raising=False)  # two for each of three cores
    before = torch.get_num_threads()
    try:
        for at_first, expected in ((3, [2, 3, 2]), (1, [1, 1, 1])):
            threads_of_torch.cache_clear()
            torch.set_num_threads(at_first)
            seen = []
            for n in (1, 32, 4):
                leave_a_core(n)
                seen.append(torch.get_num_threads())
            assert seen == expected
        monkeypatch.setenv("OMP_NUM_THREADS", "8")
        torch.set_num_threads(2)
        leave_a_core(32)
        assert torch.get_num_threads() == 2  # the user's choice is torch's own business
    finally:
        threads_of_torch.cache_clear()
        torch.set_num_threads(before)


def test_a_probe_s_fit_does_not_depend_on_the_number_of_threads():
    """Two threads add in another order than one: the same head, to the last bit, says that there was one."""
    random = np.random.default_rng(0)
    states = random.normal(size=(500, 576))
    labels = (states[:, 0] + random.normal(size=500) > 0).astype(float)
    fits = []
    for threads in (1, 2):
        with threadpool_limits(limits=threads, user_api="blas"):
            fits += fit_layers("ridge", [0], lambda layer: states, [labels])[0]
            assert {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"} == {threads}
    assert fits[0].predicted.tobytes() == fits[1].predicted.tobytes()


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
