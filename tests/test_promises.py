"""What every stage promises: a kill at any file operation, a full disk and damage to a file end in one line or nothing.

One chain of small stages on the scripted back end. Each try copies the run folder as the stage finds it, runs the stage
in a fork of this process, and runs it again: the content must be that of the undisturbed run.
"""

from __future__ import annotations

import functools
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import scripts

from kbtrain.io import jsonl
from kbtrain.records import Passage

POINTS = 3  # kills of each stage, evenly spread over its file operations; `KILLS=all` kills at each
KEYS = ("--keys", "[mastery, benefit]")
DATA = ("--train", "run/examples/train.jsonl", "--dev", "run/examples/dev.jsonl")
FEATURES = (*DATA, "--index", "run/bm25", "--output", "run/features", *KEYS)
DRAWN = ("--backend", "scripted", "--samples", "{train: 4, dev: 4, test: 2}", "--window", "24")
STAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "collect": (
        "data_gen/collect.py",
        ("--run", "run", "--dataset", "jsonl", "--path", "own.jsonl", "--shares", ".4,.3,.3"),
    ),
    "retrieve": ("data_gen/retrieve.py", ("--run", "run", "--k", "2")),
    "sample": ("data_gen/sample.py", ("--run", "run", *DRAWN)),
    "label": ("data_gen/label.py", ("--run", "run", "--tau-mastery", ".4", "--tau-certainty", ".6")),
    "build": ("data_gen/build.py", ("--run", "run", *KEYS)),
    "fit": ("recipes/train_features.py", FEATURES),
    "score": ("eval/score.py", ("--run", "run", "--only", "[features]", "--chunk", "16")),
    "end_to_end": ("eval/end_to_end.py", ("--run", "run", "--bootstrap-draws", "100")),
    "report": ("eval/write_report.py", ("--run", "run")),
}
# files that a stage notes in passing; what they say of times and memory differs from run to run
VARIES = (".meta.json", ".key", ".progress", ".lock", "-wal", "-shm", "run.json", "README.md", ".html")


@dataclass(frozen=True)
class Ran:
    code: int
    said: str
    operations: int = 0


def fork(stage, folder, *more, prepare=None):
    """Run a stage in a fork, in ``folder``; ``prepare`` is called in it first. Code -9: killed."""
    script, argv = STAGES[stage]
    said, counted = folder.with_suffix(".said"), folder.with_suffix(".counted")
    for path in (said, counted):
        path.unlink(missing_ok=True)
    pid = os.fork()
    if not pid:  # the child never returns: a failure in it is a code that no stage has
        code = 99
        try:
            os.chdir(folder)
            ready = prepare() if prepare else None
            done = scripts.here(script, *argv, *more)
            code = done.returncode
            resource.setrlimit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1:] * 2)
            said.write_text(f"{done.stderr}\0{done.stdout}")
            if ready is not None:
                counted.write_text(str(ready()))
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    text = said.read_text() if said.exists() else ""
    return Ran(code, text, int(counted.read_text()) if counted.exists() else 0)


def counting(folder, kill_at=0):
    """Count what changes files of a folder: each opening for writing, renaming, removal, sync and SQL statement.

    The process is killed before the one of number ``kill_at`` (from 1).
    """
    n = 0

    def tick():
        nonlocal n
        n += 1
        if n == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, args):
        writes = event in ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir")
        writes |= event == "open" and isinstance(args[2], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
        if writes and isinstance(args[0], str | Path) and Path(args[0]).absolute().is_relative_to(folder):
            tick()

    class Connection(sqlite3.Connection):
        def execute(self, *args):
            tick()
            return super().execute(*args)

    sync, connect = os.fsync, sqlite3.connect

    def counted_sync(file):
        tick()
        sync(file)

    os.fsync = counted_sync
    sqlite3.connect = lambda *args, **named: connect(*args, **named, factory=Connection)
    sys.addaudithook(hook)
    return lambda: n


def content(folder):
    """Every file of a run folder that a stage made, without times; of a store its answers."""
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(VARIES)):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as db:
                query = "SELECT id, condition, idx, text, logprob FROM questions JOIN samples USING (question)"
                files[name] = sorted(db.execute(query))
        else:
            files[name] = without_times(path)
    return files


def without_times(path):
    if path.suffix != ".json":
        return path.read_bytes()

    def plain(value):
        if isinstance(value, dict):
            return {
                k: plain(v) for k, v in value.items() if not any(word in k for word in ("seconds", "peak", "saved"))
            }
        return [plain(inner) for inner in value] if isinstance(value, list) else value

    return plain(json.loads(path.read_text(encoding="utf-8")))


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    """``before/STAGE`` and ``after/STAGE``: the world as each stage finds and leaves it."""
    base = tmp_path_factory.mktemp("promises")
    world = base / "world"
    (world / "run").mkdir(parents=True)
    towns = [f"{a}{b}" for a in ("Lim", "Osl", "Rom", "Kyiv", "Bern", "Quit") for b in ("a", "o", "e", "i", "u", "ar")]
    rows = [{"text": f"What is the capital of {t}land, and how old is it?", "answers": [t]} for t in towns]
    (world / "own.jsonl").write_text("".join(json.dumps({"id": f"q{i}", **r}) + "\n" for i, r in enumerate(rows)))
    jsonl.write(world / "run/passages.jsonl", [Passage(t, f"{t}land", f"The capital is {t}.") for t in towns])
    for stage, (script, argv) in STAGES.items():
        shutil.copytree(world, base / "before" / stage)
        here = os.getcwd()
        os.chdir(world)
        try:
            done = scripts.here(script, *argv)
        finally:
            os.chdir(here)
        assert done.returncode == 0, done.stderr
        shutil.copytree(world, base / "after" / stage)
    return base


@pytest.fixture
def found(chain, tmp_path):
    """A copy of the world before or after a stage."""
    made: list[Path] = []

    def copy(when, stage):
        made.append(tmp_path / f"{when}{len(made)}")
        return Path(shutil.copytree(chain / when / stage, made[-1]))

    yield copy
    for path in made:
        shutil.rmtree(path)


@pytest.mark.parametrize("stage", STAGES)
def test_killed_at_a_file_operation_the_same_command_gives_the_same_content(stage, chain, found):
    whole = content(chain / "after" / stage)
    world = found("before", stage)
    ran = fork(stage, world, prepare=lambda: counting(world))
    assert ran.code == 0 and content(world) == whole
    total = ran.operations
    assert total > 2
    points = total if os.environ.get("KILLS") == "all" else min(total, POINTS)
    for i in range(points):
        at = 1 + i * (total - 1) // max(points - 1, 1)
        world = found("before", stage)
        assert fork(stage, world, prepare=functools.partial(counting, world, at)).code == -signal.SIGKILL, at
        ran = fork(stage, world)
        assert (ran.code, content(world) == whole) == (0, True), f"killed before operation {at} of {total}: {ran.said}"


@pytest.mark.parametrize("stage", STAGES)
def test_run_again_a_stage_changes_nothing(stage, found):
    world = found("after", stage)
    before = content(world)
    assert fork(stage, world).code == 0 and content(world) == before


def full():
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@pytest.mark.parametrize("stage", STAGES)
def test_a_full_disk_is_one_line_and_the_same_command_ends_the_work(stage, chain, found):
    world = found("before", stage)
    ran = fork(stage, world, prepare=full)
    assert ran.code == 2, ran.said
    one_line(ran, "free some space|disk", world)
    ran = fork(stage, world)
    assert ran.code == 0 and content(world) == content(chain / "after" / stage), ran.said


def one_line(ran, says, world):
    errors = [line for line in ran.said.split("\0")[0].splitlines() if not line.startswith("warning: ")]
    assert len(errors) == 1 and errors[0].startswith("error: ") and re.search(says, errors[0]), ran.said


def halved(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def another_byte(path):
    """Another byte where the last quarter begins, or the next letter or digit there."""
    data = bytearray(path.read_bytes())
    place = next(i for i in range(len(data) * 3 // 4, len(data)) if chr(data[i]).isalnum())
    data[place] ^= 1
    path.write_bytes(data)


def gone(path):
    path.unlink()


DAMAGE = {f.__name__: f for f in (halved, another_byte, gone)}
READ = {  # what a stage reads; damaged, it is one line that names the file
    "collect": ("own.jsonl",),
    "retrieve": ("run/questions.jsonl",),
    "sample": ("run/questions.jsonl", "run/evidence.jsonl"),
    "label": ("run/questions.jsonl", "run/samples.db"),
    "build": ("run/questions.jsonl", "run/labels.jsonl"),
    "fit": ("run/examples/train.jsonl", "run/examples/dev.jsonl"),
    "score": ("run/examples/dev.jsonl", "run/features/gate.json"),
    "end_to_end": ("run/questions.jsonl", "run/samples.db", "run/scores/features.jsonl"),
    "report": ("run/results.json", "run/outcomes.jsonl"),
}
UNSEEN = {  # a user's own file may say anything
    ("collect", "own.jsonl", "another_byte"),
    ("score", "run/features/gate.json", "another_byte"),  # thresholds are noted there later
}
MADE = {  # what a stage made; damaged, it is made again or one line names it
    "collect": "run/questions.jsonl",
    "retrieve": "run/evidence.jsonl",
    "sample": "run/samples.db",
    "label": "run/labels.jsonl",
    "build": "run/examples/train.jsonl",
    "fit": "run/features/gate.json",
    "score": "run/scores/features.jsonl",
    "end_to_end": "run/results.json",
}
# the thresholds of a gate are kept
REMADE = [(s, d) for s in MADE for d in ("halved", "another_byte") if (s, d) != ("fit", "another_byte")]
TRIES = [(s, f, d) for s, files in READ.items() for f in files for d in ("another_byte", "gone")]
TRIES = [one for one in TRIES if one not in UNSEEN]


@pytest.mark.parametrize(("stage", "file", "damage"), TRIES)
def test_a_damaged_file_that_a_stage_reads_is_one_line_that_names_it(stage, file, damage, found):
    world = found("before", stage)
    DAMAGE[damage](world / file)
    ran = fork(stage, world)
    assert ran.code == 2, ran.said
    one_line(ran, "|".join(Path(file).parts[1:] or (file,)), world)


@pytest.mark.parametrize(("stage", "damage"), REMADE)
def test_a_damaged_file_that_a_stage_made_is_made_again_or_one_line(stage, damage, chain, found):
    world, file = found("after", stage), MADE[stage]
    DAMAGE[damage](world / file)
    ran = fork(stage, world)
    if ran.code:
        one_line(ran, f"{Path(file).name}|features", world)
    else:
        assert content(world)[file] == content(chain / "after" / stage)[file]


OTHER = [  # (stage, other settings, what is said): refused, or nothing is said and the file is another
    ("collect", ("--seed", "1", "--pick", "random", "--limit", "9"), ""),
    ("retrieve", ("--k", "1"), ""),
    ("sample", ("--temperature", "2"), r"temperature = 1\.0, now it is 2\.0"),
    ("sample", ("--model", "another"), r'model = .*, now it is "another"'),
    ("label", ("--tau-mastery", ".9"), ""),
    ("fit", ("--labels", "hard"), 'labels = "soft", now it is "hard"'),
    ("score", ("--splits", "[dev]"), None),
    ("end_to_end", ("--seed", "5"), ""),
]


@pytest.mark.parametrize(("stage", "more", "says"), OTHER)
def test_other_settings_are_named_or_the_work_is_done_again(stage, more, says, chain, found):
    world = found("after", stage)
    ran = fork(stage, world, *more)
    if says:
        assert ran.code == 2
        one_line(ran, says, world)
    else:
        same = content(world) == content(chain / "after" / stage)
        assert (ran.code, same) == (0, says is None), ran.said


def exchanged(path):
    """Another whole file in its place, without metadata: a user's own."""
    text = path.read_text().replace("old is it", "big is it").replace(" is the ", " was the ")
    path.write_text(text.replace("0.5", "0.25"))
    path.with_name(f"{path.name}.meta.json").unlink()


INPUTS = [  # (stage, exchanged input, what is said); None: the work is done again
    ("collect", "own.jsonl", None),
    ("retrieve", "run/questions.jsonl", r"evidence\.jsonl: samples\.db holds answers"),
    ("sample", "run/questions.jsonl", r"evidence\.jsonl: made from another questions\.jsonl; run data_gen/retrieve"),
    ("build", "run/questions.jsonl", r"labels\.jsonl: made from another questions\.jsonl; run data_gen/label"),
    ("end_to_end", "run/evidence.jsonl", r"evidence\.jsonl: not the passages that the answers were drawn with"),
    ("fit", "run/labels.jsonl", r"train\.jsonl: made from another labels\.jsonl; run data_gen/build"),
    ("score", "run/examples/dev.jsonl", None),
]


@pytest.mark.parametrize(("stage", "file", "says"), INPUTS)
def test_other_inputs_are_named_or_the_work_is_done_again(stage, file, says, chain, found):
    world = found("after", "sample" if stage == "retrieve" else stage)
    if file == "own.jsonl":
        (world / file).write_text((world / file).read_text().replace("old is it", "big is it"))
    else:
        exchanged(world / file)
    ran = fork(stage, world)
    if says:
        assert ran.code == 2
        one_line(ran, says.replace("data_gen/", "(data_gen/|.kbtrain run )"), world)
    else:
        assert ran.code == 0 and content(world) != content(chain / "after" / stage), ran.said
