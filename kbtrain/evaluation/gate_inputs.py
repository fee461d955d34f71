"""The gates of an evaluation in their order: the baselines that need no model, then those that were scored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain.evaluation.decisions import GateInput
from kbtrain.evaluation.run_folder import GradedSplit, in_order
from kbtrain.evaluation.seen import seen_of
from kbtrain.gate.gate import Gate
from kbtrain.gates.registry import TABLE_ORDER
from kbtrain.gates.simple import (
    NEUTRAL,
    RETRIEVER_SCORES,
    Always,
    Never,
    Oracle,
    Random,
    RetrieverScore,
    form_only,
    relation_only,
)
from kbtrain.labeling.examples import example
from kbtrain.records import Evidence, Label, Outcome


def baselines(
    dev: GradedSplit, test: GradedSplit, labels: Iterable[Label], seed: int, texts: Mapping[str, str],
    evidence: Iterable[Evidence] = (),
) -> list[GateInput]:  # fmt: skip
    """LLM-only, All-RAG, random, oracle, relation-only, form-only, the retriever's score and gap.

    Raises :class:`UserError` (see :class:`~kbtrain.gates.simple.GroupMean`).

    ``texts``: the training questions that count, by id. Without any there is neither relation-only nor form-only: they
    know what training questions gained, nothing else. Without ``evidence`` of all questions there is neither the
    retriever's score nor its gap.
    """
    rows, ids = list(evidence), [question.id for part in (dev, test) for question in part.questions]
    by_score = [gate for gate in (RetrieverScore(name, rows) for name in RETRIEVER_SCORES) if gate.knows(ids)]
    oracle = Oracle([*dev.outcomes, *test.outcomes])
    trained = [label for label in labels if label.split == "train" and label.question_id in texts]
    groups: list[Gate] = [relation_only(trained), form_only(trained, texts)] if trained else []
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
    return GateInput(gate.name, np.array(gate.score(chosen_on)), scores, midpoint=midpoint, fixed=fixed)


def scored_gates(
    scores: Mapping[str, Mapping[str, float]],
    meta: Mapping[str, Any],
    dev: Sequence[Outcome],
    test: Sequence[Outcome],
    path: Path,
) -> list[GateInput]:
    """The gates that were scored; ``meta``: see :class:`~kbtrain.evaluation.run_folder.StoredScores`.

    Raises :class:`UserError` for a missing score.
    """
    seconds, spent = meta.get("seconds_per_question", {}), meta.get("spent_per_question", {})

    def sum_spent(name: str, what: str, default: float = 0.0) -> int:
        return round(sum(float(spent.get(name, {}).get(o.split, {}).get(what, default)) for o in test))

    return [
        GateInput(
            name,
            np.array(in_order(name, by_question, dev, path)),
            np.array(in_order(name, by_question, test, path)),
            gate_seconds=sum(float(seconds.get(name, {}).get(o.split, 0.0)) for o in test),
            gate_requests=sum_spent(name, "requests", 1.0),  # one forward pass each, if nothing else was counted
            gate_samples=sum_spent(name, "samples"),
            gate_tokens=sum_spent(name, "tokens"),
            within_answer=bool(meta.get("within_answer", {}).get(name)),
            seen=seen_of(meta, name),
        )
        for name, by_question in scores.items()
    ]


def in_report_order(gates: Sequence[GateInput]) -> list[GateInput]:
    """As in :data:`~kbtrain.gates.registry.TABLE_ORDER`, further gates behind them by name."""
    return sorted(
        gates,
        key=lambda gate: (TABLE_ORDER.index(gate.name) if gate.name in TABLE_ORDER else len(TABLE_ORDER), gate.name),
    )
