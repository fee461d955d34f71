"""OpenMP's threads sleep soon while they wait, in every process of kbtrain, unless the user chose otherwise."""

import re
import sys

import pytest
from support import scripts

from kbtrain.cores import SPIN_COUNT, share_cores


def seen_by_openmp(*command: object, **variables: str) -> set[str]:
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
    work = "from kbtrain.config import Config, run_script\nrun_script(lambda config: __import__('torch'), Config)"
    assert seen_by_openmp(sys.executable, "-c", work) == {SPIN_COUNT}


def test_what_the_user_chose_stays(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    chosen = {"OMP_WAIT_POLICY": "active"}
    assert not share_cores(chosen)
    assert chosen == {"OMP_WAIT_POLICY": "active"}
    unset: dict[str, str] = {}
    assert share_cores(unset)
    assert unset == {"GOMP_SPINCOUNT": SPIN_COUNT}


def test_nothing_is_set_too_late(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", sys)
    unset: dict[str, str] = {}
    assert not share_cores(unset)
    assert unset == {}
