"""Label of one question from its stored samples (KBM, section 3.2), with the effect of retrieval on it.

The effect has three classes; benefit is their soft form.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kbtrain.answers import grading
from kbtrain.answers.thoughts import counted_answers, silence
from kbtrain.labeling.certainty import MAX_EMPTY, certainty, certainty_interval
from kbtrain.labeling.change import Change
from kbtrain.labeling.mastery import Graded, grade, grade_answer
from kbtrain.metrics.significance import Interval, newcombe, wilson
from kbtrain.records import Condition, Effect, Indicators, Label, Question, Sample, SampleSet

_SAME = 1e-9  # what rounding leaves between equal values


def effect(without: float, with_retrieval: float) -> Effect:
    """Effect of the evidence on an indicator: it rises (beneficial), stays (neutral) or falls (harmful)."""
    if abs(with_retrieval - without) < _SAME:
        return "neutral"
    return "beneficial" if with_retrieval > without else "harmful"


def above(value: float, tau: float) -> bool:
    """True if a certainty or a benefit exceeds ``tau``, rounding aside: equal entropies of different groupings, e.g.
    4+1+1+1+1 and 2+2+2+2, differ in the last digit, and so do .4 - .3 and .2 - .1."""
    return value > tau + _SAME


def benefit(llm: Indicators, rag: Indicators) -> tuple[float, Interval] | None:
    """Mastery with retrieval minus mastery without, in [-1, 1], and its 95 % interval (Newcombe); None without gold."""
    if llm.mastery is None or rag.mastery is None:
        return None
    interval = newcombe((llm.n_correct, llm.n - llm.n_abstained), (rag.n_correct, rag.n - rag.n_abstained))
    return rag.mastery - llm.mastery, interval


MIN_SAMPLES = 2  # one answer has no entropy
LabelledBy = Literal["samples", "greedy"]
Cut = Literal["keep", "drop", "prefix"]
_SENTENCE_END = re.compile(r"(?<=[^\W\d_]{3})[.!?](?=\s)|[。！？]")  # "St. Louis", "D.C. area" and "1. Paris" go on


@dataclass(frozen=True)
class LabelRule:
    """Rule by which answers become indicators.

    ``by`` "greedy": of the greedy answer alone, which must be there; its mastery is 0 or 1 (with the wide interval of
    one answer), its certainty not known. ``max_empty``: share of empty answers above which certainty is None, since
    thirty times nothing is no agreement. ``cut`` says what becomes of answers that end at the token limit: they stand
    as they are, are dropped, or count by their first sentence where one is complete. ``certainty_answers``: the I of
    certainty's scale (:mod:`kbtrain.labeling.certainty`); fewer answers have no certainty on it. None: each question
    on the scale of all of its answers, which is the paper's value.
    """

    by: LabelledBy = "samples"
    max_empty: float = MAX_EMPTY
    cut: Cut = "keep"
    certainty_answers: int | None = None


DEFAULT_RULE = LabelRule()


def indicators(
    question: Question, made: SampleSet, verdicts: grading.Verdicts | None = None, rule: LabelRule = DEFAULT_RULE
) -> tuple[Indicators | None, Graded]:
    """Mastery and certainty of one sample set, which must hold at least :data:`MIN_SAMPLES` samples.

    None if so many have no verdict (a judge of ``verdicts`` abstained, or a yes/no answer says neither) that fewer are
    left, or ``rule`` drops so many, or more than its ``max_empty`` of them are skipped
    (:func:`~kbtrain.answers.thoughts.is_left_out`): the rest is a choice of the short thoughts.
    """
    sampled = rule.by == "samples"
    stored = _stated(made, rule)
    answers = counted_answers(stored)
    graded = grade(question, counted_texts(made, rule), verdicts)
    few = (graded.n_graded if graded.gold else graded.n) < (MIN_SAMPLES if sampled else 1)
    if few or len(stored) - len(answers) > rule.max_empty * len(stored):
        return None, graded
    silent = Counter(map(silence, stored))
    mastery_low, mastery_high = wilson(graded.n_correct, graded.n_graded) if graded.gold else (None, None)
    scale = rule.certainty_answers
    agree = sampled and graded.n_empty <= rule.max_empty * graded.n and graded.n >= (scale or 0)
    certainty_low, certainty_high = certainty_interval(graded.groups, scale) if agree else (None, None)
    found = Indicators(
        condition=made.condition,
        n=graded.n,
        n_correct=graded.n_correct,
        mastery=graded.mastery,
        mastery_low=mastery_low,
        mastery_high=mastery_high,
        certainty=certainty(graded.groups, scale) if agree else None,
        certainty_low=certainty_low,
        certainty_high=certainty_high,
        n_groups=len(graded.groups),
        n_empty=graded.n_empty,
        greedy_correct=grade_answer(question, made.greedy, verdicts),
        n_abstained=graded.n_abstained,
        n_cut=silent["cut"],
        n_thought_only=silent["thought_only"],
    )
    return found, graded


def _stated(made: SampleSet, rule: LabelRule) -> Sequence[Sample]:
    """Answers that the rule reads, those to be skipped among them."""
    return made.samples if rule.by == "samples" or made.greedy is None else (made.greedy,)


def counted_texts(made: SampleSet, rule: LabelRule) -> list[str]:
    """Texts of the answers that a label counts."""
    return [
        first_sentence(answer.text) if rule.cut == "prefix" and answer.finish == "length" else answer.text
        for answer in counted_answers(_stated(made, rule))
        if rule.cut != "drop" or answer.finish != "length"
    ]


def first_sentence(text: str) -> str:
    """The first complete sentence of an answer that was cut; the whole text where there is none."""
    found = _SENTENCE_END.search(text)
    return text[: found.end()] if found else text


def label(
    question: Question,
    found: Mapping[Condition, Indicators],
    tau_mastery: float,
    tau_certainty: float,
    change: Change | None = None,
    tau_change: float = 0.5,
) -> Label:
    """The label of a question from its indicators; ``found`` must have ``llm``, and may have ``rag`` and ``mask``."""
    llm, rag = found["llm"], found.get("rag")
    gained = None if rag is None else benefit(llm, rag)
    gain, (gain_low, gain_high) = gained or (None, (None, None))
    made = Label(
        question_id=question.id,
        split=question.split,
        llm=llm,
        rag=rag,
        mask=found.get("mask"),
        tau_mastery=tau_mastery,
        tau_certainty=tau_certainty,
        known=None,
        certain=None,
        known_rag=None,
        certain_rag=None,
        benefit=gain,
        benefit_low=gain_low,
        benefit_high=gain_high,
        effect_mastery=None if rag is None else _effect(llm.mastery, rag.mastery),
        effect_certainty=None if rag is None else _effect(llm.certainty, rag.certainty),
        relation=question.relation,
        change=None if change is None else change.value,
        change_low=None if change is None else change.low,
        change_high=None if change is None else change.high,
    )
    return with_taus(made, tau_mastery, tau_certainty, tau_change)


def with_taus(made: Label, tau_mastery: float, tau_certainty: float, tau_change: float = 0.5) -> Label:
    """The same label with hard parts by other taus: known iff mastery > tau, and likewise certain and changes.

    A tau that is a quantile is the certainty of some grouping; equal ones of other groupings are not above it, however
    their last digits fell.
    """
    return dataclasses.replace(
        made,
        tau_mastery=tau_mastery,
        tau_certainty=tau_certainty,
        known=_is_known(made.llm, tau_mastery),
        certain=_certain(made.llm, tau_certainty),
        known_rag=None if made.rag is None else _is_known(made.rag, tau_mastery),
        certain_rag=None if made.rag is None else _certain(made.rag, tau_certainty),
        tau_change=None if made.change is None else tau_change,
        changes=None if made.change is None else above(made.change, tau_change),
    )


def _effect(without: float | None, with_retrieval: float | None) -> Effect | None:
    return None if without is None or with_retrieval is None else effect(without, with_retrieval)


def _is_known(found: Indicators, tau: float) -> bool | None:
    return None if found.mastery is None else found.mastery > tau


def _certain(found: Indicators, tau: float) -> bool | None:
    return None if found.certainty is None else above(found.certainty, tau)
