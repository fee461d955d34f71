"""Training questions of a gate: gains by both verdicts, held-out scores by the question's text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import gate_folders

from kbtrain.evaluation.gate_inputs import training_of
from kbtrain.evaluation.scores import StoredScores
from kbtrain.gate.trained_on import question_hash, write_held_out
from kbtrain.gates.handles import gate_identity
from kbtrain.gates.thresholds_store import Source
from kbtrain.records import Indicators, Label, Split


def label(name: str, llm: bool | None, rag: bool | None, split: Split = "train") -> Label:
    of = {
        condition: Indicators(condition, 4, 2, 0.5, 0.1, 0.9, 0.5, 0.1, 0.9, 2, 0, right)  # type: ignore[arg-type]
        for condition, right in (("llm", llm), ("rag", rag))
    }
    return Label(name, split, of["llm"], of["rag"], None, 0.0, 0.0, *[None] * 4, 0.25, None, None, None, None)


def test_gains_are_of_both_verdicts_and_scores_of_the_question_s_text(tmp_path: Path) -> None:
    labels = [label("a", False, True), label("b", True, False), label("c", None, True), label("d", True, True),
              label("t", False, True, "test")]  # fmt: skip
    texts = {name: f"question {name}?" for name in "abcdt"}
    folder = tmp_path / "features"
    gate_folders.features(folder)
    write_held_out(folder, {"features_benefit": [(question_hash(texts[name]), 0.5) for name in "db"]})
    source = Source(folder, "features_benefit", gate_identity(folder))
    scores = StoredScores(tmp_path, behind={"mine": source})
    found = training_of(["mine", "other"], scores, labels, texts)
    assert (found["mine"].gains.tolist(), found["mine"].scores.tolist()) == ([-1.0, 0.0], [0.5, 0.5])
    assert (found["other"].gains.tolist(), found["other"].scores.tolist()) == ([1.0, -1.0, 0.0], [])
    stored = {"other": {"a": 0.25, "b": 0.75, "t": 0.5}, "mine": {"a": 1.0}}  # a gate with a folder reads that alone
    beside = training_of(["mine", "other"], replace(scores, by_gate=stored), labels, texts)
    assert (beside["other"].gains.tolist(), beside["other"].scores.tolist()) == ([1.0, -1.0], [0.25, 0.75])
    assert beside["mine"].scores.tolist() == [0.5, 0.5]
    sampled = training_of(["other"], StoredScores(tmp_path), labels, texts, "expected")["other"]
    assert sampled.gains.tolist() == pytest.approx([0.25] * 4)
