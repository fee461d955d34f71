"""The gates of an evaluation in their order: the baselines that need no model, then those that were scored.

Also the folders behind scored gates, with the thresholds noted there, and the questions that gates were trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.decisions import GateInput
from kbtrain.evaluation.outcomes import AccuracyKind
from kbtrain.evaluation.run_folder import GradedSplit, check_labelled, read_labels
from kbtrain.evaluation.scores import StoredScores, in_order, seen_of
from kbtrain.gate.gate import Gate
from kbtrain.gate.trained_on import question_hash, read_held_out
from kbtrain.gates.registry import read_card
from kbtrain.gates.simple import (
    NEUTRAL,
    RETRIEVER_SCORES,
    Always,
    Never,
    Oracle,
    Random,
    RetrieverScore,
    by_source,
    form_only,
    relation_only,
)
from kbtrain.io import jsonl
from kbtrain.labeling.examples import example
from kbtrain.metrics.thresholds import Training
from kbtrain.prompts.kbm import query_text
from kbtrain.records import Evidence, Label, Question


def baselines(
    dev: GradedSplit, test: GradedSplit, labels: Iterable[Label], seed: int, texts: Mapping[str, str],
    evidence: Iterable[Evidence] = (), sources: Mapping[str, str] | None = None
) -> list[GateInput]:  # fmt: skip
    """LLM-only, All-RAG, random, oracle, relation-only, form-only, by source, the retriever's score and gap.

    Raises :class:`UserError` (see :class:`~kbtrain.gates.simple.GroupMean`).

    ``texts``: the training questions that count, by id. Without any there is neither relation-only nor form-only: they
    know what training questions gained, nothing else. Without ``evidence`` of all questions there is neither the
    retriever's score nor its gap. ``sources``: of questions by id; without any there is no row by source.
    """
    rows, ids = list(evidence), [question.id for part in (dev, test) for question in part.questions]
    by_score = [gate for gate in (RetrieverScore(name, rows) for name in RETRIEVER_SCORES) if gate.knows(ids)]
    oracle = Oracle([*dev.outcomes, *test.outcomes])
    trained = [label for label in labels if label.benefit is not None and label.question_id in texts]
    groups: list[Gate] = [relation_only(trained), form_only(trained, texts)] if trained else []
    if trained and sources:
        groups.append(by_source(trained, texts, sources))
    return [
        _input(Never(), dev, test, fixed=0.5),
        _input(Always(), dev, test, fixed=0.5),
        _input(Random(seed), dev, test),
        _input(oracle, dev, test, fixed=0.0),
        *(_input(group, dev, test, midpoint=NEUTRAL) for group in groups),
        *(_input(gate, dev, test) for gate in by_score),
    ]


def _input(
    gate: Gate, dev: GradedSplit, test: GradedSplit, midpoint: float = 0.5, fixed: float | None = None
) -> GateInput:
    # Not timed: a rule's lookup costs nothing beside an answer, and what a clock reads would differ on every run.
    chosen_on, evaluated = ([example(question, None) for question in part.questions] for part in (dev, test))
    scores = np.array(gate.score(evaluated), dtype=np.float64)
    return GateInput(gate.name, np.array(gate.score(chosen_on)), scores, midpoint=midpoint, fixed=fixed,
                     after_search=gate.needs_evidence)  # fmt: skip


def scored_gates(stored: StoredScores, dev: Sequence[str], test: Sequence[str]) -> list[GateInput]:
    """The scored gates, with costs, on questions with these ids. Raises :class:`UserError` for a missing score."""
    gates = []
    for name, scores in stored.by_gate.items():
        spent, n = stored.took(name, "spent_per_question") or {}, len(test)
        gates.append(
            GateInput(
                name,
                np.array(in_order(name, scores, dev, stored.path)),
                np.array(in_order(name, scores, test, stored.path)),
                gate_seconds=n * float(stored.took(name) or 0.0),
                # one forward pass each, if nothing else was counted
                gate_requests=round(n * spent.get("requests", 1.0)),
                gate_samples=round(n * spent.get("samples", 0.0)),
                gate_tokens=round(n * spent.get("tokens", 0.0)),
                within_answer=stored.has("within_answer", name),
                after_search=stored.has("after_search", name),
                seen=seen_of(stored.meta, name),
            )
        )
    return gates


# Rows of every table: what needs no gate's folder, then KBM and probe; further gates follow by name.
TABLE_ORDER = (
    *("llm_only", "all_rag", "random", "oracle", "prompt", "relation_only", "form_only", "by_source"),
    *RETRIEVER_SCORES,
    *("kbm_mastery", "kbm_certainty", "kbm_benefit", "probe_mastery", "probe_certainty", "probe_benefit"),
)


def in_report_order(gates: Sequence[GateInput]) -> list[GateInput]:
    """As in :data:`TABLE_ORDER`, further gates behind them by name."""
    return sorted(
        gates,
        key=lambda gate: (TABLE_ORDER.index(gate.name) if gate.name in TABLE_ORDER else len(TABLE_ORDER), gate.name),
    )


def add_noted(gates: Sequence[GateInput], stored: StoredScores, named: Mapping[str, float]) -> list[GateInput]:
    """The gates with the lowest score they can give and the threshold of rule ``given``: one that is named, else the
    one noted in the gate's folder.

    Raises :class:`UserError` for a name that no gate has.
    """
    names = {gate.name for gate in gates if gate.learnt}
    unknown = next((name for name in named if name not in names), None)
    if unknown is not None:
        raise UserError(f"key 'thresholds': no gate '{unknown}'; {did_you_mean(unknown, names)}")
    noted = {gate: read_card(source.folder).thresholds.get(source.name) for gate, source in stored.behind.items()}
    given = {**{gate: entry.threshold for gate, entry in noted.items() if entry}, **named}
    return [replace(gate, given=given.get(gate.name)) for gate in gates]


def training_texts(questions: Iterable[Question]) -> dict[str, str]:
    """What gates read of the training questions, by id: the options, too."""
    return {question.id: query_text(question) for question in questions if question.split == "train"}


def training_of(
    gates: Iterable[str],
    stored: StoredScores,
    labels: Iterable[Label],
    texts: Mapping[str, str],
    kind: AccuracyKind = "greedy",
) -> dict[str, Training]:
    """The training questions of each gate that are among ``texts`` (by id) and have a verdict on both answers.

    Scores are held-out ones of the gate's folder; the stored ones for a gate without a folder. A gate without either
    has gains alone.
    """
    gains = {
        question_hash(texts[label.question_id]): gain
        for label in labels
        if label.split == "train" and label.question_id in texts and (gain := _gain(label, kind)) is not None
    }
    held_out = {folder: read_held_out(folder) for folder in {source.folder for source in stored.behind.values()}}
    plain, by_gate = Training(np.array(list(gains.values()))), {}
    for gate in gates:
        scores: Mapping[str, float] = {}
        if source := stored.behind.get(gate):
            scores = held_out[source.folder].get(source.name, {})
        elif gate not in stored.missing:  # a gate whose folder is gone may have been trained on these questions
            of = stored.by_gate.get(gate, {})
            scores = {question_hash(texts[name]): value for name, value in of.items() if name in texts}
        shared = [question for question in gains if question in scores]
        columns = (np.array([of[question] for question in shared]) for of in (gains, scores))
        by_gate[gate] = Training(*columns) if shared else plain
    return by_gate


def training_in(
    run: Path, sampling_run: str | None, gates: Sequence[str], stored: StoredScores, kind: AccuracyKind = "greedy"
) -> dict[str, Training]:
    """As :func:`training_of`, by the questions of a run folder and its labels, which are to be of this sampling run."""
    if sampling_run is not None:
        check_labelled(run / "labels.jsonl", sampling_run)
    _, labels = read_labels(run / "labels.jsonl")
    return training_of(gates, stored, labels, training_texts(jsonl.read(Question, run / "questions.jsonl")), kind)


def _gain(label: Label, kind: AccuracyKind) -> float | None:
    """Correctness with a search minus that without; None without a verdict on both."""
    if label.rag is None:
        return None
    if kind == "expected":
        return label.benefit
    before, after = label.llm.greedy_correct, label.rag.greedy_correct
    return None if before is None or after is None else float(after) - float(before)
