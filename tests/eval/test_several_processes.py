"""Several processes in one run folder at once: one writes a file, the others say so, nothing is twice or torn."""

import json
import os
import re
from typing import get_type_hints

from support import scripts
from tiny_kbm import make_folder

from kbtrain.config import Config
from kbtrain.io import jsonl
from kbtrain.io.files import writing
from kbtrain.records import Evidence, GateScore
from kbtrain.runtime.scripts import shipped

TOLD = re.compile(r"^error: .+: another process is writing .+(, since 20\d\d-\d\d-\d\d .+)?; wait for it")
# Scripts that lock what they write themselves, as soon as they know what it is.
OWN_LOCKS = {"sample", "merge", "score", "calibrate"}


def at_once(script, *argv, n=2):
    """Start a script ``n`` times, then once more: whoever was refused said so, and the last one finds all in order."""
    running = [scripts.start(script, *argv) for _ in range(n)]
    codes = [one.wait() for one in running]
    for one, code in zip(running, codes, strict=True):
        assert code == 0 or (code == 2 and TOLD.match(one.stderr)), one.stderr
    assert 0 in codes
    again = scripts.run(script, *argv)
    assert again.returncode == 0, again.stderr


def left_behind(folder):
    return [path.name for path in folder.rglob("*") if path.name.endswith((".partial", ".lock", ".draft", ".new"))]


def test_scorings_at_once_leave_each_score_once(run_folder, tmp_path):
    given = ("--run", run_folder, "--model", make_folder(tmp_path / "model"), "--dtype", "fp32", "--chunk", 16)
    at_once("eval/score.py", *given, "--splits", "[dev]")
    rows = list(jsonl.read(GateScore, run_folder / "scores" / "prompt.jsonl"))
    assert len(rows) == len({(row.gate, row.question_id) for row in rows}) == 80
    assert left_behind(run_folder) == []


def test_two_of_a_stage_at_once(run_folder, tmp_path):
    run, names = tmp_path / "searched", [f"q{i}" for i in range(60)]
    run.mkdir()
    for file, kind in (("questions", "Who wrote book {}?"), ("passages", "Ann {} wrote book {}.")):
        rows = [{"id": name, "text": kind.format(i, i)} for i, name in enumerate(names)]
        more = {"split": "test", "dataset": "d", "answers": ["x"]} if file == "questions" else {"title": ""}
        (run / f"{file}.jsonl").write_text("".join(json.dumps(row | more) + "\n" for row in rows))
    at_once("data_gen/retrieve.py", "--run", run)
    assert [found.question_id for found in jsonl.read(Evidence, run / "evidence.jsonl")] == names
    at_once("data_gen/label.py", "--run", run_folder, "--by", "greedy")
    assert left_behind(run) == left_behind(run_folder) == []


def test_every_script_says_what_it_writes():
    for name, path in shipped("stages", "recipes").items():
        kind = get_type_hints(scripts.load(str(path.relative_to(scripts.ROOT))).main)["config"]
        assert (kind.writes is Config.writes) == (name in OWN_LOCKS), name


def test_a_locked_file_is_one_line_that_says_since_when(run_folder):
    with writing(run_folder / "labels.jsonl"):
        before = (run_folder / "labels.jsonl").read_bytes()
        done = scripts.run("data_gen/label.py", "--run", run_folder, "--by", "greedy")
    assert done.returncode == 2 and done.stdout == ""
    assert TOLD.match(done.stderr) and f"process {os.getpid()} on " in done.stderr and done.stderr.count("\n") == 1
    assert (run_folder / "labels.jsonl").read_bytes() == before
