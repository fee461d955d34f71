"""A fitted gate that is one room and one line in GATES stands in a run's scores and results."""

import json
from dataclasses import replace

import pytest
from support.scripts import here

from kbtrain.gates.registry import GATES
from kbtrain.io import jsonl
from kbtrain.records import GateExample, GateScore


def test_a_new_gate_is_fitted_scored_and_evaluated_in_a_run_folder(run_folder, monkeypatch):
    monkeypatch.setitem(GATES, "length", "support.length_gate:KIND")
    fit = ["--gate", "length", "--labels", "hard", "--output", run_folder / "length"]
    for split in ("train", "dev"):  # short questions are mastered: one digit, and not the first, which is long
        path = run_folder / f"labelled_{split}.jsonl"
        rows = jsonl.read(GateExample, run_folder / "examples" / f"{split}.jsonl")
        jsonl.write(path, [replace(row, mastery=0 < int(row.question_id.split("-")[1]) < 10) for row in rows])
        fit += [f"--{split}", path]
    for script, *arguments in (
        ("recipes/fit_gate.py", *fit),
        ("eval/score.py", "--run", run_folder),
        ("eval/end_to_end.py", "--run", run_folder, "--bootstrap-draws", 100),
    ):
        done = here(script, *arguments)
        assert done.returncode == 0, done.stderr
    test = list(jsonl.read(GateExample, run_folder / "examples" / "test.jsonl"))
    stored = {row.question_id: row.score for row in jsonl.read(GateScore, run_folder / "scores" / "length.jsonl")}
    assert [stored[row.question_id] for row in test] == pytest.approx([len(row.question) for row in test])
    gates = {gate["gate"]: gate for gate in json.loads((run_folder / "results.json").read_text())["gates"]}
    assert gates["length"]["n"] == 200
