"""Label of one question from its stored samples (KBM, section 3.2), with the effect of retrieval on it.

The effect has three classes; benefit is their soft form.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kbtrain.answers import grading
from kbtrain.answers.thoughts import counted_answers, silence
from kbtrain.labeling.indicators import (
    MAX_EMPTY,
    SAME,
    Graded,
    above,
    certainty,
    certainty_interval,
    grade,
    grade_answer,
)
from kbtrain.metrics.significance import Interval, newcombe, wilson
from kbtrain.records import Condition, Effect, Indicators, Label, Question, Sample, SampleSet


def effect(without: float | None, with_retrieval: float | None) -> Effect | None:
    """Effect of the evidence on an indicator: it rises (beneficial), stays (neutral) or falls (harmful)."""
    if without is None or with_retrieval is None:
        return None
    if abs(with_retrieval - without) < SAME:
        return "neutral"
    return "beneficial" if with_retrieval > without else "harmful"


def benefit(llm: Indicators, rag: Indicators) -> tuple[float, Interval] | None:
    """Mastery with retrieval minus mastery without, in [-1, 1], and its 95 % interval (Newcombe); None without gold."""
    if llm.mastery is None or rag.mastery is None:
        return None
    interval = newcombe((llm.n_correct, llm.n - llm.n_abstained), (rag.n_correct, rag.n - rag.n_abstained))
    return rag.mastery - llm.mastery, interval


MIN_SAMPLES = 2  # one answer has no entropy
LabelledBy = Literal["samples", "greedy"]
Cut = Literal["keep", "drop"]


@dataclass(frozen=True)
class LabelRule:
    """Rule by which answers become indicators.

    ``by`` "greedy": of the greedy answer alone, which must be there; its mastery is 0 or 1 (with the wide interval of
    one answer), its certainty not known. ``cut``: answers that end at the token limit count as they are, or not.
    ``certainty_answers``: the I of certainty's scale (:mod:`kbtrain.labeling.indicators`); fewer answers have no
    certainty on it. None: each question on the scale of all of its answers, which is the paper's value.
    """

    by: LabelledBy = "samples"
    cut: Cut = "keep"
    certainty_answers: int | None = None


DEFAULT_RULE = LabelRule()


def indicators(
    question: Question, sample_set: SampleSet, verdicts: grading.Verdicts | None = None, rule: LabelRule = DEFAULT_RULE
) -> tuple[Indicators | None, Graded]:
    """Mastery and certainty of one sample set, which must hold at least :data:`MIN_SAMPLES` samples.

    None if fewer have a verdict (a judge of ``verdicts`` abstains, a rule reads none) or are kept by ``rule``,
    and if more than :data:`MAX_EMPTY` are skipped (:func:`~kbtrain.answers.thoughts.is_left_out`).
    """
    sampled = rule.by == "samples"
    stored = stated_answers(sample_set, rule)
    answers = counted_answers(stored)
    texts = [answer.text for answer in answers if rule.cut != "drop" or answer.finish != "length"]
    graded = grade(question, texts, verdicts)
    few = (graded.n_graded if graded.gold else graded.n) < (MIN_SAMPLES if sampled else 1)
    # of many skipped answers only those with short reasoning would be left
    if few or len(stored) - len(answers) > MAX_EMPTY * len(stored):
        return None, graded
    silent = Counter(map(silence, stored))
    mastery_low, mastery_high = wilson(graded.n_correct, graded.n_graded) if graded.gold else (None, None)
    scale = rule.certainty_answers
    agree = sampled and graded.n_empty <= MAX_EMPTY * graded.n and graded.n >= (scale or 0)
    certainty_low, certainty_high = certainty_interval(graded.groups, scale) if agree else (None, None)
    result = Indicators(
        condition=sample_set.condition, n=graded.n, n_correct=graded.n_correct, mastery=graded.mastery,
        mastery_low=mastery_low, mastery_high=mastery_high,
        certainty=certainty(graded.groups, scale) if agree else None, certainty_low=certainty_low,
        certainty_high=certainty_high, n_groups=len(graded.groups), n_empty=graded.n_empty,
        greedy_correct=grade_answer(question, sample_set.greedy, verdicts), n_abstained=graded.n_abstained,
        n_cut=silent["cut"], n_thought_only=silent["thought_only"],
    )  # fmt: skip
    return result, graded


def stated_answers(answers: SampleSet, rule: LabelRule) -> Sequence[Sample]:
    """Answers that the rule reads, those to be skipped among them."""
    return answers.samples if rule.by == "samples" or answers.greedy is None else (answers.greedy,)


def label(
    question: Question, by_condition: Mapping[Condition, Indicators], tau_mastery: float, tau_certainty: float
) -> Label:
    """The label of a question from its indicators: under ``llm``, and ``rag`` and ``mask`` where they are."""
    llm, rag = by_condition["llm"], by_condition.get("rag")
    gain, (gain_low, gain_high) = (rag and benefit(llm, rag)) or (None, (None, None))
    return Label(
        question_id=question.id, split=question.split, llm=llm, rag=rag, mask=by_condition.get("mask"),
        **_hard_parts(llm, rag, tau_mastery, tau_certainty), benefit=gain, benefit_low=gain_low, benefit_high=gain_high,
        effect_mastery=effect(llm.mastery, rag.mastery if rag else None),
        effect_certainty=effect(llm.certainty, rag.certainty if rag else None), relation=question.relation,
    )  # fmt: skip


def with_taus(label: Label, tau_mastery: float, tau_certainty: float) -> Label:
    """The same label with hard parts by other taus: known iff mastery > tau, and likewise certain.

    A tau that is a quantile is the certainty of some grouping; equal ones of other groupings are not above it, however
    their last digits fell.
    """
    return dataclasses.replace(label, **_hard_parts(label.llm, label.rag, tau_mastery, tau_certainty))


def _hard_parts(llm: Indicators, rag: Indicators | None, tau_mastery: float, tau_certainty: float) -> dict[str, Any]:
    parts: dict[str, Any] = {"tau_mastery": tau_mastery, "tau_certainty": tau_certainty}
    for of, under in (("", llm), ("_rag", rag)):
        mastery, certainty = (under.mastery, under.certainty) if under else (None, None)
        parts[f"known{of}"] = None if mastery is None else mastery > tau_mastery
        parts[f"certain{of}"] = None if certainty is None else above(certainty, tau_certainty)
    return parts
