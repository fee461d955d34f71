"""KBM's double judgement as a user runs it: second scores, then their table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.edits import keep_change

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.run_folder import read_run
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.records import GateExample, GateScore, Question

Script = Callable[[str], ModuleType]


def make(script: Script, run: Path) -> dict[str, Any]:
    module = script("double_judgement")
    module.main(build(module.DoubleJudgementConfig, None, {"run": run, "threshold_rule": "0.5"}))
    document: dict[str, Any] = json.loads((run / "double_judgement.json").read_text())
    document["names"] = [column["name"] for column in document["columns"]]
    return document


def test_double_judgement_reads_the_second_scores(
    script: Script, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kbtrain.gate.gate import Gate
    from kbtrain.gates.handles import GateHandle

    class Lengths(Gate):
        name = "kbm_mastery"

        def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
            assert all(e.reference is not None and "Some text." in e.reference for e in examples)
            return [len(e.question) % 2 for e in examples]

    module = script("score_reference")
    monkeypatch.setattr(module, "handle", lambda *_: GateHandle(("kbm_mastery",), "weights", Lengths))
    module.main(build(module.ScoreReferenceConfig, None, {"run": run_folder, "chunk": 64}))
    second = {s.question_id: s.score for s in jsonl.read(GateScore, run_folder / "scores_reference.jsonl")}
    assert len(second) == 280
    found = make(script, run_folder)
    rows = {row[1]: dict(zip(found["names"], row, strict=True)) for row in found["rows"]}
    assert list(rows) == ["LLM Only", "All RAG", "gate", "double judgement", "random"]
    assert rows["random"]["passed on"] == rows["double judgement"]["passed on"]
    assert rows["gate"]["95 %"].startswith("[") and rows["gate"]["vs Rnd"] is not None
    assert rows["gate"]["gate's tokens"] is None  # scored without counting them
    run = read_run(run_folder)
    passed = [
        run.stored.by_gate["kbm_mastery"][o.question_id] > 0.5 and second[o.question_id] <= 0.5
        for o in run.test.outcomes
    ]
    right = [o.rag_correct if p else o.llm_correct for o, p in zip(run.test.outcomes, passed, strict=True)]
    assert rows["double judgement"]["accuracy"] == pytest.approx(sum(right) / 200)
    assert rows["double judgement"]["passed on"] == pytest.approx(sum(passed) / 200)
    assert rows["All RAG"]["tokens read"] == 200 * 20
    write_meta(run_folder / "evidence.jsonl", stage="retrieve", config=None, inputs=[run_folder / "questions.jsonl"])
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    jsonl.write(
        run_folder / "questions.jsonl", [dataclasses.replace(one, text=f"Again: {one.text}") for one in questions]
    )
    keep_change(run_folder / "questions.jsonl")
    again = r"scores_reference\.jsonl: made from another questions\.jsonl; run eval/score_reference\.py again$"
    with pytest.raises(UserError, match=again):
        make(script, run_folder)
    with pytest.raises(UserError, match=r"evidence\.jsonl: made from another questions\.jsonl; run data_gen/retrieve"):
        module.main(build(module.ScoreReferenceConfig, None, {"run": run_folder}))
    (run_folder / "evidence.jsonl").write_text("")
    keep_change(run_folder / "evidence.jsonl")
    with pytest.raises(UserError, match=r"evidence.jsonl: no search for 280 questions \(dev-0, dev-1, dev-2, ...\)"):
        module.main(build(module.ScoreReferenceConfig, None, {"run": run_folder}))
