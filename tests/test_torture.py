"""The campaign of damage walks over every script; a sample of it, the same for a commit, runs with the suite."""

import subprocess

import pytest
from torture import world
from torture.campaign import attempt, drawn, judged, table

SEED, TRIES = "0", 8
QUICK = (  # their commands need no model: a second each
    "data_gen/build.py", "data_gen/collect.py", "data_gen/export.py", "data_gen/join.py", "data_gen/judge.py",
    "data_gen/label.py", "data_gen/merge.py", "eval/import_decisions.py",
)  # fmt: skip


def test_every_script_is_in_the_walk():
    """A new script without a sound command in ``torture/world.py`` fails here."""
    assert {name for name in world.COMMANDS if name.endswith(".py")} == set(world.all_scripts())


def test_a_sample_of_the_campaign_holds(tmp_path, record_property):
    for name in ("tries", "worlds"):
        (tmp_path / name).mkdir()
    world.make(tmp_path / "base", models=False)
    order = drawn(SEED, QUICK)
    tried = [attempt(*next(order), tmp_path / "base", tmp_path) for _ in range(TRIES)]
    record_property("table", table(tried))
    assert [one for one in tried if one.problem is not None] == []


@pytest.mark.parametrize(
    ("code", "stderr", "problem"),
    [
        (0, "bar 100 %", None), (2, "bar 3 %\nerror: a.jsonl:3: field 'x': missing\n", None),
        (0, "Traceback (most recent call last):\n  x\n", "Traceback, exit 0"),
        (1, "Traceback (most recent call last):\nKeyError: 'x'\n", "exit 1: "),
        (2, "error: a.jsonl: no\nerror: a.jsonl: no\n", "exit 2: "), (2, "error: it is broken\n", "names nothing: "),
        (-1, "hangs", "exit -1: hangs"),
    ],
)  # fmt: skip
def test_what_counts_as_held(code, stderr, problem):
    found = judged(subprocess.CompletedProcess([], code, "", stderr), ["a.jsonl"])
    assert found is None if problem is None else found is not None and found.startswith(problem)
