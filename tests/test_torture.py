"""The campaign of damage walks over every script; a sample of it, the same for a commit, runs with the suite."""

from __future__ import annotations

import random
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.scripts import Done
from torture import stale, world
from torture.campaign import DEVICES, OF_SCRIPTS, Tried, attempt, drawn, judged, replaced, table

ROOT = world.ROOT
SEED, TRIES = "0", 12
QUICK = (  # their commands need no model: a second each
    "data_gen/build.py", "data_gen/collect.py", "data_gen/export.py", "data_gen/join.py", "data_gen/judge.py",
    "data_gen/label.py", "data_gen/merge.py", "eval/import_decisions.py",
)  # fmt: skip


def test_every_script_is_in_the_walk() -> None:
    """A new script without a sound command in ``torture/world.py`` fails here."""
    assert {name for name in world.COMMANDS if name.endswith(".py")} == set(world.all_scripts())
    assert set(QUICK) <= set(world.COMMANDS)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torture")
    for name in ("tries", "worlds"):
        (folder / name).mkdir()
    world.make(folder / "base", models=False)
    return folder


def test_a_sample_of_the_campaign_holds(place: Path, record_property: Any) -> None:
    order = drawn(SEED, QUICK, OF_SCRIPTS)
    tried = [attempt(*next(order), place / "base", place) for _ in range(TRIES)]
    record_property("table", table(tried))
    assert [one for one in tried if one.problem is not None] == []


def test_every_script_meets_every_category() -> None:
    names = [*world.COMMANDS, *(name for name in world.SERVED if name not in world.COMMANDS)]
    order = drawn(SEED, names, OF_SCRIPTS)
    met = {next(order)[:2] for _ in range(len(OF_SCRIPTS) * (len(world.COMMANDS) + len(world.SERVED)))}
    assert met >= {(script, category) for script in world.COMMANDS for category in OF_SCRIPTS}
    assert {script for script, category in met if category == "servers"} == set(world.SERVED)


def test_a_stage_that_is_done_notices_what_was_changed_behind_its_back(place: Path) -> None:
    """The index is built again, evidence made again; the whole list is part of `make torture`."""
    names = [one for one in stale.tries() if one[0] == "data_gen/retrieve.py"]
    tried = [stale.again(*one, place / "base", place) for one in random.Random(SEED).sample(names, 3)]
    tried.append(stale.again("data_gen/retrieve.py", "qa/bm25/data.csc*", "halved", place / "base", place))
    assert [one for one in tried if one.problem is not None] == []


def test_every_stage_that_skips_is_run_again() -> None:
    """A recipe that claims its folder, or another stage that says it is done, without a list of what it read."""
    says = {
        name for name in world.all_scripts()
        if re.search(r"recipe\.claim\(|is there already, made|are in \{target\} already", (ROOT / name).read_text())
    }  # fmt: skip
    assert len(says) > 10 and says <= set(stale.READ)


def ended(code: int, stderr: str) -> Done[str]:
    return subprocess.CompletedProcess([], code, "", stderr)


@pytest.mark.parametrize(
    ("done", "problem"),
    [
        (ended(0, "bar 100 %"), None),
        (ended(2, "bar 3 %\nerror: a.jsonl:3: field 'x': missing\n"), None),
        (ended(0, "Traceback (most recent call last):\n  x\n"), "Traceback, exit 0"),
        (ended(1, "Traceback (most recent call last):\nKeyError: 'x'\n"), "exit 1: "),
        (ended(2, "error: a.jsonl: no\nerror: a.jsonl: no\n"), "exit 2: "),
        (ended(2, "error: it is broken\n"), "names nothing: "),
        (ended(2, "error: a.jsonl: is wrong\nas is this\n"), "exit 2: "),
        (ended(-9, ""), "exit -9: "),
        (ended(-1, "hangs"), "exit -1: hangs"),
    ],
)
def test_what_counts_as_held(done: Done[str], problem: str | None) -> None:
    found = judged(done, ["a.jsonl"])
    assert found is None if problem is None else found is not None and found.startswith(problem)


def test_a_device_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "null").write_text("a file")
    assert replaced(DEVICES) is None
    assert replaced([*DEVICES, str(tmp_path / "null")]) == f"{tmp_path / 'null'} is no device any more"
    assert replaced([str(tmp_path / "zero")]) == f"{tmp_path / 'zero'} is no device any more"


def test_the_table_counts_what_broke() -> None:
    tried = [Tried("files", "a", "x", None), Tried("files", "a", "y", "broke"), Tried("values", "a", "z", None)]
    assert table(tried).splitlines()[2:] == ["| files | 2 | 1 | 1 |", "| values | 1 | 1 | 0 |", "| all | 3 | 2 | 1 |"]
