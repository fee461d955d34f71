"""Gates without a model: All-RAG, LLM-only, random, the oracle; by relation, form, source, or the top passage alone.

Random is the baseline ``Rnd`` of KBM, table 1; the oracle uses the outcome: an upper bound, never a method; the
relation, the question's form and source, the retriever's top score and gap are what a learnt gate has to beat.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate, Reads
from kbtrain.gate.trained_on import HeldOut, question_hash, write_held_out
from kbtrain.gates.features.question import question_form
from kbtrain.gates.registry import FIT_GATE, QUESTION, Kind
from kbtrain.records import Evidence, Example, GateExample, Hit, Label, Outcome


class Always(Gate):
    """Retrieves for every question or turn (score 1)."""

    name = "all_rag"
    reads: frozenset[Reads] = frozenset({"question", "turn"})

    def score_examples(self, examples: Sequence[Example]) -> list[float]:
        return [1.0] * len(examples)


class Never(Gate):
    """Retrieves for no question or turn (score 0)."""

    name = "llm_only"
    reads: frozenset[Reads] = frozenset({"question", "turn"})

    def score_examples(self, examples: Sequence[Example]) -> list[float]:
        return [0.0] * len(examples)


class Random(Gate):
    """A uniform number in [0, 1) per question, hashed from seed and question id: it does not depend on the batch.

    Retrieve if score > 1 - ratio, to retrieve about this ratio of the questions.
    """

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return [self._uniform(example.question_id) for example in examples]

    def _uniform(self, question_id: str) -> float:
        digest = hashlib.blake2b(f"{self.seed}\0{question_id}".encode(), digest_size=8).digest()
        return (int.from_bytes(digest, "big") >> 11) / 2**53  # the 53 bits that a float holds


class Oracle(Gate):
    """Score = what retrieval gains (greedy answers): 1 corrected by it, 0 no difference, -1 broken by it.

    With a threshold in [0, 1), no gate is more accurate, and none that is as accurate retrieves less.
    """

    name = "oracle"

    def __init__(self, outcomes: Iterable[Outcome]) -> None:
        self._gain = {o.question_id: float(o.rag_correct) - float(o.llm_correct) for o in outcomes}

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example. Raises KeyError for a question without an outcome."""
        return [self._gain[example.question_id] for example in examples]


NEUTRAL = 0.0  # a score above it says: retrieval gained more than it lost on the training questions


class GroupMean(Gate):
    """Score = mean benefit (mastery with retrieval minus without, in [-1, 1]) of the training questions of its group.

    A group that was not trained on (or None) gets the mean over all training questions.
    """

    name = "relation_only"  # or form_only

    def __init__(
        self, name: str, group: Callable[[GateExample], str | None], labels: Iterable[tuple[Label, str | None]]
    ) -> None:
        """``labels`` with their groups; only those of the train split are read. Raises :class:`UserError` if none of
        them has a benefit."""
        self.name, self.group = name, group
        benefits: dict[str | None, list[float]] = defaultdict(list)
        for label, group_of_label in labels:
            if label.split == "train" and label.benefit is not None:
                benefits[group_of_label].append(label.benefit)
        everything = [benefit for values in benefits.values() for benefit in values]
        if not everything:
            raise UserError(f"gate '{name}': no training label has a benefit; sample condition 'rag' for them")
        self.overall = sum(everything) / len(everything)
        self.means = {group: sum(values) / len(values) for group, values in benefits.items() if group}

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return [self.means.get(self.group(example) or "", self.overall) for example in examples]


def relation_only(labels: Iterable[Label]) -> GroupMean:
    return GroupMean("relation_only", lambda example: example.relation, ((label, label.relation) for label in labels))


def form_only(labels: Iterable[Label], texts: Mapping[str, str]) -> GroupMean:
    """The gate whose groups are the questions' forms: what "Is ...?", "Who ...?" or "How many ...?" alone tells.

    ``texts``: the training questions by id.
    """
    with_form = ((label, question_form(texts[label.question_id])) for label in labels if label.question_id in texts)
    return GroupMean("form_only", lambda example: question_form(example.question), with_form)


def score_gap(hits: Sequence[Hit]) -> float:
    """Gap between the retriever's two best scores, as a share of the best; 1 with one passage, -inf without one."""
    if not hits:
        return -math.inf
    best, second, *_ = [*sorted((hit.score for hit in hits), reverse=True), 0.0]
    return (best - second) / best if best > 0 else 0.0


RETRIEVER_SCORES: Mapping[str, Callable[[Sequence[Hit]], float]] = {
    "retriever_score": lambda hits: max((hit.score for hit in hits), default=-math.inf),  # of its best passage
    "retriever_gap": score_gap,
}


class RetrieverScore(Gate):
    """Score = one of :data:`RETRIEVER_SCORES`: asked after a search, it says which passages to skip.

    A question for which nothing was found is below all others.
    """

    name = "retriever_score"  # or retriever_gap
    needs_evidence = True

    def __init__(self, name: str, evidence: Iterable[Evidence]) -> None:
        self.name = name
        self._scores = {
            hits_of_question.question_id: RETRIEVER_SCORES[name](hits_of_question.hits) for hits_of_question in evidence
        }
        self._none = min((score for score in self._scores.values() if score > -math.inf), default=0.0) - 1

    def knows(self, question_ids: Iterable[str]) -> bool:
        """True if there was a search for each of these questions."""
        return all(question_id in self._scores for question_id in question_ids)

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example. Raises KeyError for a question without evidence."""
        return [max(self._scores[example.question_id], self._none) for example in examples]


SHRINK = 10.0  # training questions of the mean that each group counts beside its own


def group_of(example: GateExample) -> str:
    """The question's source, and where it has none the kind of question."""
    return f"source {example.source}" if example.source else f"asks {question_form(example.question)}"


class BySourceCard(GateCard):
    """Content of ``gate.json``: the shrunk mean of each group, and that of all training questions."""

    USES_MODEL = False
    ABSENT = frozenset({"base_model"})
    kind: Literal["by_source"] = "by_source"
    means: dict[str, float]
    overall: float


class BySource(Gate):
    """Score = mean need of a search among the training questions of its source, shrunk towards the mean of all.

    A question of no known source or kind gets the mean of all. With one threshold it is never or always by source.
    """

    name = "by_source"
    unit = "probability"

    def __init__(self, card: BySourceCard) -> None:
        self.card: BySourceCard = card
        self.held_out: list[HeldOut] = []  # of the training questions: scores of gates fitted without their folds

    @classmethod
    def fit(cls, examples: Sequence[GateExample], need: Sequence[float]) -> BySource:
        """``need``: of each of two or more examples, the probability that a search is needed, or its benefit."""
        from kbtrain.training.folds import folds

        gate = cls(_card_of(examples, need))
        scores: dict[int, float] = {}
        # leaving out one question alone would put its label, turned round, into the score
        for others, held in folds(range(len(need)), seed=0):
            part = cls(_card_of([examples[i] for i in others], [need[i] for i in others]))
            scores |= zip(held, part.score_examples([examples[i] for i in held]), strict=True)
        gate.held_out = [(question_hash(e.question), scores.get(i, gate.card.overall)) for i, e in enumerate(examples)]
        return gate

    def save_beside(self, folder: Path) -> None:
        write_held_out(folder, {self.name: self.held_out})

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return [self.card.means.get(group_of(example), self.card.overall) for example in examples]

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> BySource:
        return cls(BySourceCard.read(folder))


def _card_of(examples: Sequence[GateExample], need: Sequence[float]) -> BySourceCard:
    by_group: dict[str, list[float]] = defaultdict(list)
    for example, value in zip(examples, need, strict=True):
        by_group[group_of(example)].append(value)
    overall = sum(need) / len(need)
    means = {group: (sum(of) + SHRINK * overall) / (len(of) + SHRINK) for group, of in sorted(by_group.items())}
    return BySourceCard(means=means, overall=overall)


def by_source(labels: Sequence[Label], texts: Mapping[str, str], sources: Mapping[str, str]) -> BySource:
    """The gate of the labels' benefit, from training questions and their sources by id."""
    taught = [(label.question_id, label.benefit) for label in labels if label.benefit is not None]
    examples = [replace(GateExample.ask(texts[name]), source=sources.get(name, "")) for name, _ in taught]
    return BySource.fit(examples, [benefit for _, benefit in taught])


BY_SOURCE = Kind(BySourceCard, BySource.load, QUESTION, FIT_GATE, fit=BySource.fit)
