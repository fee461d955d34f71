"""Gates without a model: All-RAG, LLM-only, random, the oracle; by the relation, the form, or the top passage alone.

Random is the baseline ``Rnd`` of KBM, table 1; the oracle uses the outcome: an upper bound, never a method; the
relation, the question's form and the retriever's top score and gap are the baselines that a learnt gate has to beat.
"""

from __future__ import annotations

import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from kbtrain.errors import UserError
from kbtrain.gate.gate import Gate, Reads
from kbtrain.gates.features.question import question_form
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
    """The gate whose groups are the questions' relations."""
    return GroupMean("relation_only", lambda example: example.relation, ((label, label.relation) for label in labels))


def form_only(labels: Iterable[Label], texts: Mapping[str, str]) -> GroupMean:
    """The gate whose groups are the questions' forms: what "Is ...?", "Who ...?" or "How many ...?" alone tells.

    ``texts``: the training questions by id.
    """
    with_form = ((label, question_form(texts[label.question_id])) for label in labels if label.question_id in texts)
    return GroupMean("form_only", lambda example: question_form(example.question), with_form)


def top_score(hits: Sequence[Hit]) -> float:
    """The retriever's score of its best passage; -inf without one."""
    return max((hit.score for hit in hits), default=-math.inf)


def score_gap(hits: Sequence[Hit]) -> float:
    """Gap between the retriever's two best scores, as a share of the best; 1 with one passage, -inf without one."""
    if not hits:
        return -math.inf
    best, second, *_ = [*sorted((hit.score for hit in hits), reverse=True), 0.0]
    return (best - second) / best if best > 0 else 0.0


RETRIEVER_SCORES: Mapping[str, Callable[[Sequence[Hit]], float]] = {
    "retriever_score": top_score, "retriever_gap": score_gap
}  # fmt: skip


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
        """True if every one of these questions was searched for."""
        return all(question_id in self._scores for question_id in question_ids)

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example. Raises KeyError for a question without evidence."""
        return [max(self._scores[example.question_id], self._none) for example in examples]
