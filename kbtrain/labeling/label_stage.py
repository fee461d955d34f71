"""All labels of a sampling run, one question at a time: memory does not grow with the number of questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from kbtrain.answers import grading
from kbtrain.labeling.aligned import Aligned
from kbtrain.labeling.label import MIN_SAMPLES, LabelledBy, indicators, label
from kbtrain.labeling.verdicts import QuestionVerdicts
from kbtrain.records import CONDITIONS, Condition, Indicators, Label, Question, SampleSet
from kbtrain.store import SampleStore


@dataclass
class Tally:
    """What labelling met. ``mastery`` and ``certainty`` count the training questions' ``llm`` values (few distinct)."""

    counts: Counter[str] = field(default_factory=Counter)
    mastery: Counter[float] = field(default_factory=Counter)
    certainty: Counter[float] = field(default_factory=Counter)

    def as_dict(self) -> dict[str, int]:
        return dict(sorted(self.counts.items()))


def labels(
    store: SampleStore,
    run: str,
    questions: Iterable[Question],
    tally: Tally,
    verdicts: Aligned[QuestionVerdicts] | None = None,
    by: LabelledBy = "samples",
) -> Iterator[Label]:
    """A label for each question with at least two ``llm`` samples, in the order of ``questions``; the rest is counted.

    ``by`` "greedy": from the greedy answers alone.
    ``verdicts``: a judge's, in the same order; without them each question's own rule grades.
    tau is not chosen yet: the hard labels are those of tau = 0 (see :func:`kbtrain.labeling.label.with_taus`).
    """
    counts, stored = tally.counts, Counter(store.counts(run))
    for question in questions:
        counts["questions"] += 1
        found = _found(store, run, question, tally, stored, right_of(verdicts, question), by)
        llm = found.get("llm")
        if llm is None:
            counts["questions_without_llm_samples"] += 1
            continue
        counts["labels"] += 1
        counts["labels_without_rag_samples"] += "rag" not in found
        counts["labels_with_unequal_n"] += "rag" in found and found["rag"].n != llm.n
        if question.split == "train":
            tally.mastery[llm.mastery] += 1
            if llm.certainty is not None:
                tally.certainty[llm.certainty] += 1
        yield label(question, found, 0.0, 0.0)
    if verdicts is not None:
        verdicts.finish()
    for condition, left in stored.items():
        counts[f"stored_{condition}_of_unknown_questions"] = left


def right_of(verdicts: Aligned[QuestionVerdicts] | None, question: Question) -> grading.Verdicts | None:
    """What the judge said of the question's answers; None without a judge."""
    if verdicts is None:
        return None
    found = verdicts.of(question)
    return {} if found is None else found.right


def _found(
    store: SampleStore,
    run: str,
    question: Question,
    tally: Tally,
    stored: Counter[str],
    verdicts: grading.Verdicts | None,
    by: LabelledBy,
) -> dict[Condition, Indicators]:
    """Indicators under each condition with enough samples; ``stored`` is counted down by what was read."""
    found: dict[Condition, Indicators] = {}
    for condition in CONDITIONS:
        made = store.get(run, question.id, condition)
        if made is None:
            continue
        stored[condition] -= 1
        if condition != "llm":
            tally.counts[f"{condition}_prompts_cut"] += made.evidence_cut > 0
            tally.counts[f"{condition}_evidence_tokens_cut"] += made.evidence_cut
        if (lack := _lacks(made, by)) is not None:
            tally.counts[f"{condition}_{lack}"] += 1
            continue
        indicated, graded = indicators(question, made, verdicts, by)
        if indicated is None:
            tally.counts[f"{condition}_judge_abstained"] += 1
        else:
            found[condition] = indicated
        tally.counts[f"{condition}_answers"] += graded.n
        tally.counts[f"{condition}_empty_answers"] += graded.n_empty
        tally.counts[f"{condition}_answers_without_option"] += graded.n_unparsed
        if verdicts is not None:
            tally.counts[f"{condition}_answers_judge_abstained"] += graded.n_abstained
    return found


def _lacks(made: SampleSet, by: LabelledBy) -> str | None:
    """Why a sample set gives no label, as it is counted; None if it has the answers that are needed."""
    if by == "greedy":
        return "without_greedy_answer" if made.greedy is None else None
    if len(made.samples) >= MIN_SAMPLES:
        return None
    return "single_sample" if made.samples else "greedy_only"
