"""Training questions of gates: what a search gains for each, and its scores by gates fitted without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from kbtrain.evaluation.outcomes import AccuracyKind
from kbtrain.gate.trained_on import question_hash, read_held_out
from kbtrain.gates.thresholds_store import Source, missing_reason
from kbtrain.io import jsonl
from kbtrain.metrics.thresholds import Training
from kbtrain.records import Label, Question

_NONE: Mapping[str, Mapping[str, float]] = {}


def training_texts(run: Path) -> dict[str, str]:
    """Texts of a run's training questions by id."""
    questions = jsonl.read(Question, run / "questions.jsonl")
    return {question.id: question.text for question in questions if question.split == "train"}


def training_of(
    gates: Iterable[str],
    behind: Mapping[str, Source],
    labels: Iterable[Label],
    texts: Mapping[str, str],
    kind: AccuracyKind = "greedy",
    stored: Mapping[str, Mapping[str, float]] = _NONE,
) -> dict[str, Training]:
    """The training questions of each gate that are among ``texts`` (by id) and have a verdict on both answers.

    ``behind``: the folder of a gate, where its held-out scores are; ``stored``: scores by gate and question id, read
    for a gate without a folder. Without either a gate has gains alone.
    """
    gains = {
        question_hash(texts[label.question_id]): gain
        for label in labels
        if label.split == "train" and label.question_id in texts and (gain := _gain(label, kind)) is not None
    }
    folders = {source.folder for source in behind.values() if not missing_reason(source)}
    held_out = {folder: read_held_out(folder) for folder in folders}
    plain, by_gate = Training(np.array(list(gains.values()))), {}
    for gate in gates:
        source = behind.get(gate)
        by_text = {question_hash(texts[name]): value for name, value in stored.get(gate, {}).items() if name in texts}
        scores = held_out.get(source.folder, {}).get(source.name, {}) if source else by_text
        shared = [question for question in gains if question in scores]
        columns = (np.array([of[question] for question in shared]) for of in (gains, scores))
        by_gate[gate] = Training(*columns) if shared else plain
    return by_gate


def _gain(label: Label, kind: AccuracyKind) -> float | None:
    """Correctness with a search minus that without; None without a verdict on both."""
    if label.rag is None:
        return None
    if kind == "expected":
        return label.benefit
    before, after = label.llm.greedy_correct, label.rag.greedy_correct
    return None if before is None or after is None else float(after) - float(before)
