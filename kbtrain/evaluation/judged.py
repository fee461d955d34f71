"""Several run folders together: each gate's threshold chosen on all their dev questions, its decisions on test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.decisions import Decision, decide
from kbtrain.evaluation.double_judgement import DoubleJudgement, Read, judge_twice, second_threshold
from kbtrain.evaluation.groups import Judged
from kbtrain.evaluation.outcomes import AccuracyKind
from kbtrain.evaluation.run_folder import RunFolder, gate_input
from kbtrain.evaluation.stored import Stored
from kbtrain.metrics.thresholds import Rule
from kbtrain.records import Condition, Question


@dataclass(frozen=True)
class Cut:
    """How thresholds are chosen on dev, and which accuracy counts."""

    rule: Rule
    target_ratio: float = 0.5
    kind: AccuracyKind = "greedy"


def questions_of(runs: Sequence[RunFolder]) -> list[Question]:
    """All test questions with stored answers, run by run: the order of everything here."""
    return [question for run in runs for question in run.test.questions]


def judge(
    runs: Sequence[RunFolder], gates: Sequence[str], cut: Cut, plug_in: Sequence[RunFolder] | None = None
) -> Judged:
    """The gates' decisions on the test questions of ``runs``.

    ``plug_in``: run folders of another model whose gates, with thresholds chosen on their own dev answers, decide for
    ``runs``; the gate ``prompt`` remains the answering model's own (KBM, table 4). Raises :class:`UserError`.
    """
    known = oc.answers([o for run in runs for o in run.test.outcomes], cut.kind)
    decisions = {}
    for gate in gates:
        own = plug_in is None or gate == "prompt"
        decisions[gate] = decision(runs if own else plug_in or (), gate, cut, None if own else runs).retrieve
    return Judged(known.llm, known.rag, decisions)


def decision(runs: Sequence[RunFolder], gate: str, cut: Cut, answers_of: Sequence[RunFolder] | None = None) -> Decision:
    """One gate's decision; the threshold comes from the dev questions of ``runs``."""
    dev = [outcome for run in runs for outcome in run.dev.outcomes]
    return decide(gate_input(runs, gate, answers_of), dev, cut.rule, cut.target_ratio, cut.kind)


def judge_double(runs: Sequence[RunFolder], referenced: Sequence[RunFolder], gate: str, cut: Cut) -> DoubleJudgement:
    """``referenced``: the same runs with the scores that the gate gives when it sees the chunks."""
    first, second = gate_input(runs, gate), gate_input(referenced, gate)
    chosen = decision(runs, gate, cut)
    threshold = chosen.threshold.value if chosen.threshold else 0.5
    dev, test = _read([run.dev for run in runs], cut.kind), _read([run.test for run in runs], cut.kind)
    other = second_threshold(cut.rule, first.dev > threshold, second.dev, dev)
    return judge_twice(gate, first.test, second.test, test, threshold, other)


def _read(parts: Sequence[Stored], kind: AccuracyKind) -> Read:
    known = oc.answers([outcome for part in parts for outcome in part.outcomes], kind)
    return Read(known.llm, known.rag, _tokens(parts, "llm"), _tokens(parts, "rag"))


def _tokens(parts: Sequence[Stored], condition: Condition) -> oc.Floats:
    return np.array([one.prompt_tokens for part in parts for one in part.graded[condition]], dtype=np.float64)
