"""Labels of a sampling run, one question at a time: memory does not grow with the number of questions.

A tau is a number or a quantile of the training questions; a tau that gives one class only is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from kbtrain.answers import grading
from kbtrain.answers.thoughts import is_left_out, silence
from kbtrain.answers.writing import language_of
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import file_sha256
from kbtrain.io.store import SampleStore
from kbtrain.labeling.indicators import MAX_EMPTY, quantile
from kbtrain.labeling.label import DEFAULT_RULE, MIN_SAMPLES, LabelledBy, LabelRule, indicators, label, stated_answers
from kbtrain.labeling.verdicts import Aligned, QuestionVerdicts, verdicts_on
from kbtrain.questions.rows import format_value
from kbtrain.records import CONDITIONS, Condition, Evidence, Indicators, Label, Question, SampleSet, Split, Titles

MANY_CUT = 0.05  # share of answers cut at the token limit above which labelling warns
FEWEST_COMPARED = 10  # questions from which on a share says something
MANY_COPIED = 0.9  # share of copies from which on the gold answers are taken for the model's own

_UNREAD = (
    ("yes_no_answers", "yes/no questions", "say neither yes nor no in a form that a rule can read"),
    ("other_answers", "open or multiple-choice questions", "may be right or wrong, as far as rules can read"),
)


@dataclass
class CopiedGold:
    """Gold answers that repeat, word for word, what a model answered to the same question.

    An answer that a person approved of (a thumb up) judges the condition that showed it. As a gold answer it makes that
    condition right on every such question, and the other one wrong wherever its words differ. Counts are over open
    questions with gold answers: ``n``, those with a copy, and copies by condition. A name or a number is no copy: a
    right answer has its very words.
    """

    n: int = 0
    copied: int = 0
    by_condition: Counter[Condition] = field(default_factory=Counter)

    def add(self, question: Question, answers: Mapping[Condition, str]) -> None:
        """Count one question with the greedy answers to it; case, signs and inner spaces count."""
        if question.grading == "option" or not question.answers or not answers:
            return
        # five words or more, or thirteen characters of Chinese: shorter ones may be given by chance
        sentences = (g for g in question.answers if len(g.split()) >= 5 or (len(g) > 12 and language_of(g) == "zh"))
        golds = {gold.strip() for gold in sentences}
        copies = [condition for condition, answer in answers.items() if answer.strip() in golds]
        self.n += 1
        self.copied += bool(copies)
        self.by_condition.update(copies)

    def problem(self) -> str | None:
        """A sentence where at least :data:`MANY_COPIED` of the gold answers are copies; else None."""
        if self.n < FEWEST_COMPARED or self.copied < MANY_COPIED * self.n:
            return None
        each = ", ".join(f"{condition} {n}" for condition, n in self.by_condition.most_common())
        words = f"{self.copied} of {self.n} reference answers are word for word the model's own ({each})"
        return f"{words}: that condition is right by construction, and the other one wrong wherever its words differ"


@dataclass
class LabelCounts:
    """Counts of a labelling by ``rule``. ``mastery`` and ``certainty`` count the training questions' ``llm`` values;
    ``unread``: stored sets by condition whose question has not come."""

    rule: LabelRule = DEFAULT_RULE
    counts: Counter[str] = field(default_factory=Counter)
    mastery: Counter[float] = field(default_factory=Counter)
    certainty: Counter[float] = field(default_factory=Counter)
    answers: dict[Split, Counter[int]] = field(default_factory=dict)  # questions by number of answers, llm and rag
    copied: CopiedGold = field(default_factory=CopiedGold)
    unread: Counter[str] = field(default_factory=Counter)
    unreadable: dict[str, str] = field(default_factory=dict)  # an answer without a verdict, by condition and question

    def cut_shares(self) -> dict[Condition, float]:
        """Share of the answers under each condition that end at the token limit."""
        sizes: dict[Condition, int] = {c: self.counts[f"{c}_answers_stored"] for c in CONDITIONS}
        return {c: self.counts[f"{c}_answers_cut"] / n for c, n in sizes.items() if n}

    def warnings(self) -> list[str]:
        """Lines on copied gold answers, on answers skipped or without a verdict, and on conditions with many cut."""
        problem = self.copied.problem()
        lines = [f"{problem}; use reference answers that people wrote or checked"] if problem else []
        for condition in CONDITIONS:
            cut, thoughts = (self.counts[f"{condition}_answers_left_out_{kind}"] for kind in ("cut", "thought_only"))
            if cut + thoughts:
                lines.append(
                    f"{cut + thoughts} answers under '{condition}' are skipped: {cut} were cut before they began, "
                    f"{thoughts} are reasoning alone; sample with more max_thought_tokens"
                )
            lines += [
                f"{n} of {self.counts[f'{condition}_{kind}']} answers to {what} under '{condition}' {why}, such as "
                f"{self.unreadable[f'{condition}_{kind}']}; they count neither as right nor as wrong; "
                "data_gen/judge.py can grade them"
                for kind, what, why in _UNREAD
                if (n := self.counts[f"{condition}_{kind}_without_verdict"])
            ]
        counted = {"keep": "count as they stand", "drop": "are skipped"}[self.rule.cut]
        lines += [
            f"{share:.1%} of the answers under '{condition}' end at the token limit and {counted}; sample with a "
            "larger max_new_tokens, or choose by --cut"
            for condition, share in self.cut_shares().items()
            if share > MANY_CUT
        ]
        return [f"warning: {line}" for line in lines]


def label_questions(
    store: SampleStore,
    run: str,
    questions: Iterable[Question],
    tally: LabelCounts,
    verdicts: Aligned[QuestionVerdicts] | None = None,
) -> Iterator[Label]:
    """A label for each question with at least two ``llm`` samples, in the order of ``questions``; the rest is counted.

    ``verdicts``: a judge's, in the same order; without them each question's own rule grades.
    tau is not chosen yet: the hard labels are those of tau = 0 (see :func:`kbtrain.labeling.label.with_taus`).
    """
    counts, tally.unread = tally.counts, Counter(store.counts(run))
    for question in questions:
        counts["questions"] += 1
        judged = None if verdicts is None else verdicts_on(verdicts, question)
        parts = _indicators(store, run, question, tally, judged)
        if (llm := parts.get("llm")) is None:
            counts["questions_without_llm_samples"] += 1
            continue
        counts["labels"] += 1
        if llm.mastery is None:
            counts["labels_without_gold"] += 1
        sizes = tally.answers.setdefault(question.split, Counter())
        sizes.update({parts[condition].n for condition in ("llm", "rag") if condition in parts})
        counts["labels_without_rag_samples"] += "rag" not in parts
        counts["labels_with_unequal_n"] += "rag" in parts and parts["rag"].n != llm.n
        if question.split == "train":
            tally.mastery.update([llm.mastery] if llm.mastery is not None else [])
            tally.certainty.update([round(llm.certainty, 12)] if llm.certainty is not None else [])
        yield label(question, parts, 0.0, 0.0)
    if verdicts is not None:
        verdicts.finish()
    for condition, left in tally.unread.items():
        counts[f"stored_{condition}_of_unknown_questions"] = left


def _indicators(
    store: SampleStore, run: str, question: Question, tally: LabelCounts, verdicts: grading.Verdicts | None
) -> dict[Condition, Indicators]:
    """Indicators under each condition with enough samples."""
    stored = {c: found for c in CONDITIONS if (found := store.get(run, question.id, c)) is not None}
    tally.unread.subtract(stored.keys())
    tally.copied.add(question, {c: found.greedy.text for c, found in stored.items() if found.greedy is not None})
    by_condition = {c: _indicated(question, found, tally, verdicts) for c, found in stored.items()}
    return {c: indicated for c, indicated in by_condition.items() if indicated is not None}


def _indicated(
    question: Question, stored_set: SampleSet, tally: LabelCounts, verdicts: grading.Verdicts | None
) -> Indicators | None:
    """Indicators of the answers under one condition, which are counted; None where there are not enough."""
    condition, counts, rule = stored_set.condition, tally.counts, tally.rule
    if condition != "llm":
        counts[f"{condition}_prompts_cut"] += stored_set.evidence_cut > 0
        counts[f"{condition}_evidence_tokens_cut"] += stored_set.evidence_cut
    if stored_set.refused is not None:
        counts[f"{condition}_refused"] += 1
        return None
    if (lack := _lacks(stored_set, rule.by)) is not None:
        counts[f"{condition}_{lack}"] += 1
        return None
    indicated, graded = indicators(question, stored_set, verdicts, rule)
    stated = stated_answers(stored_set, rule)
    counts[f"{condition}_answers_stored"] += len(stated)
    counts[f"{condition}_answers_cut"] += sum(answer.finish == "length" for answer in stated)
    silent = Counter(map(silence, stated))
    counts[f"{condition}_answers_left_out_cut"] += silent["cut"]
    counts[f"{condition}_answers_left_out_thought_only"] += silent["thought_only"]
    if indicated is None:
        short = silent["cut"] + silent["thought_only"] > MAX_EMPTY * len(stated)
        short |= graded.n < (MIN_SAMPLES if rule.by == "samples" else 1)
        why = "too_few_whole_answers" if short else "no_verdict" if verdicts is None else "judge_abstained"
        counts[f"{condition}_{why}"] += 1
    elif indicated.certainty is None and rule.by == "samples":
        few = graded.n < (rule.certainty_answers or 0)
        counts[f"{condition}_certainty_unknown_of_{'few' if few else 'empty'}_answers"] += 1
    counts[f"{condition}_answers"] += graded.n
    counts[f"{condition}_empty_answers"] += graded.n_empty
    counts[f"{condition}_answers_without_option"] += graded.n_unparsed
    if verdicts is not None:
        counts[f"{condition}_answers_judge_abstained"] += graded.n_abstained
        return indicated
    kind = "yes_no_answers" if grading.is_yes_no(question) else "other_answers"
    counts[f"{condition}_{kind}"] += graded.n
    counts[f"{condition}_{kind}_without_verdict"] += graded.n_abstained
    if graded.n_abstained and (place := f"{condition}_{kind}") not in tally.unreadable:
        text = next((one.text for one in stated if grading.rule_verdict(question, one.text) is None), "")
        tally.unreadable[place] = (
            f"{format_value(text, 80)} for {format_value(question.answers[0], 40)} (question {question.id})"
        )
    return indicated


def common_answers(store: SampleStore, run: str) -> int | None:
    """The I of the scale that all splits' certainties share: the fewest answers that a split was to have.

    Where the run does not say: the number that most of its question-conditions have. None without sampled answers.
    """
    planned = store.run_meta(run).get("samples")
    if isinstance(planned, dict) and (sampled := [n for n in planned.values() if n >= MIN_SAMPLES]):
        n = int(min(sampled))
    else:
        sizes = {n: times for n, times in store.set_sizes(run).items() if n >= MIN_SAMPLES}
        n = max(sizes, key=lambda n: (sizes[n], -n), default=0)
    # where answers are skipped, each question with a label has at least half of its answers left
    if any(is_left_out(sample) for sample in store.answers(run)):
        n = max(MIN_SAMPLES, -(-n // 2)) if n else 0
    return n or None


def refuse_unequal(tally: LabelCounts) -> None:
    """Raise :class:`UserError` if labels come from different numbers of answers, between the splits or inside one."""
    if len({n for sizes in tally.answers.values() for n in sizes}) > 1:
        ranges = {split: sorted({min(sizes), max(sizes)}) for split, sizes in tally.answers.items()}
        counted = ", ".join(f"{split} {' to '.join(map(str, sizes))}" for split, sizes in ranges.items())
        raise UserError(
            f"key 'certainty': 'paper' depends on the number of answers, which differs between the questions "
            f"({counted}), so no tau fits them all; use certainty: common, or sample all alike (and cut: keep)"
        )


def _lacks(stored_set: SampleSet, by: LabelledBy) -> str | None:
    """Reason why a sample set gives no label, as a key of the counts; None if it has the answers that are needed."""
    if by == "greedy":
        return "without_greedy_answer" if stored_set.greedy is None else None
    if len(stored_set.samples) >= MIN_SAMPLES:
        return None
    return "single_sample" if stored_set.samples else "greedy_only"


class Quantile(BaseModel):
    """tau as a share: ``{quantile: 0.5}`` puts half of the training questions at or below it (ties permitting)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    quantile: Annotated[float, Field(gt=0, lt=1)]


Tau = Annotated[float, Field(ge=0, le=1)] | Quantile | Literal["middle"]  # middle: the cut nearest to halves


def passages_shown(evidence: Path, sampling: Mapping[str, Any]) -> tuple[Titles, int]:
    """How passages showed their titles in a run's answers (``sampling``: its metadata), and the most that a prompt
    held, by the evidence they were drawn with; "missing" and 0 where that is not here any more."""
    if not path_exists(evidence) or sampling.get("evidence") != file_sha256(evidence):
        return "missing", 0
    shown: tuple[Titles, int] = ("missing", 0)
    for row in jsonl.read(Evidence, evidence):
        shown = row.titles, max(shown[1], len(row.hits))
    return shown


def choose_tau(key: str, setting: Tau, values: Counter[float]) -> float:
    """tau from its setting and the training questions' values; both sides (> tau and not) must be filled,
    but for ``middle`` of a single value.

    ``key`` names the setting in the error, e.g. ``tau_mastery``. Without training questions only a number will do.
    """
    if isinstance(setting, float | int):
        tau: float = setting
    elif not values:
        raise UserError(f"key '{key}': a quantile needs labelled training questions, there are none; give a number")
    elif isinstance(setting, Quantile):
        tau = quantile(values, setting.quantile)
    else:
        tau = middle(values)[0] if len(values) > 1 else next(iter(values))
    above, total = sum(n for value, n in values.items() if value > tau), values.total()
    # no two of few answers agree, or the model masters nothing: the other targets can still be learnt
    if not values or 0 < above < total or (setting == "middle" and len(values) == 1):
        return tau
    quarters = ", ".join(f"{quantile(values, share):.3g}" for share in (0.25, 0.5, 0.75))
    raise UserError(
        f"key '{key}': {'all' if above else 'none'} of {total} training questions lie above {tau:g}; "
        f"they range from {min(values):.3g} to {max(values):.3g} (quartiles {quarters}); {_advice(key, values)}"
    )


def _advice(key: str, values: Counter[float]) -> str:
    """The cut that comes nearest to halves; every value but the largest leaves both sides filled."""
    if len(values) == 1:
        return "no tau can separate them"
    lower, upper, share = middle(values)
    rounded = (float(f"{lower:.{digits}g}") for digits in range(2, 18))
    return f"{key}: {next(tau for tau in rounded if lower <= tau < upper)} would put {share:.0%} above"


def middle(values: Counter[float]) -> tuple[float, float, float]:
    """The value after which the cut comes nearest to halves, the next one, and the share above; two values or more."""
    ordered = sorted(values)
    shares = [sum(values[value] for value in ordered[i + 1 :]) / values.total() for i in range(len(ordered) - 1)]
    best = min(range(len(shares)), key=lambda i: abs(shares[i] - 0.5))
    return ordered[best], ordered[best + 1], shares[best]
