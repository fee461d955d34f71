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
        return (int.from_bytes(digest, "big") >> 11) / 2**53


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


class RelationOnly(Gate):
    """Score = mean benefit (mastery with retrieval minus without, in [-1, 1]) of the relation's training questions.

    A relation that was not trained on (or None) gets the mean over all training questions.
    """

    name = "relation_only"

    def __init__(self, labels: Iterable[Label]) -> None:
        """Only labels of the train split are read. Raises :class:`UserError` if none of them has a benefit."""
        self.overall, self.means = _mean_benefits(self.name, ((label, label.relation) for label in labels))

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return [self.means.get(example.relation or "", self.overall) for example in examples]


class FormOnly(Gate):
    """Score = mean benefit of the training questions of the same form: what "Is ...?", "Who ...?" or "How many ...?"
    alone tells. A form that was not trained on gets the mean over all training questions."""

    name = "form_only"

    def __init__(self, labels: Iterable[Label], texts: Mapping[str, str]) -> None:
        """``texts``: the training questions by id. Raises as :class:`RelationOnly`."""
        with_form = ((label, question_form(texts[label.question_id])) for label in labels if label.question_id in texts)
        self.overall, self.means = _mean_benefits(self.name, with_form)

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return [self.means.get(question_form(example.question), self.overall) for example in examples]


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

    needs_evidence = True

    def __init__(self, name: str, evidence: Iterable[Evidence]) -> None:
        self._name = name
        self._scores = {
            hits_of_question.question_id: RETRIEVER_SCORES[name](hits_of_question.hits) for hits_of_question in evidence
        }
        self._none = min((score for score in self._scores.values() if score > -math.inf), default=0.0) - 1

    @property
    def name(self) -> str:
        """``retriever_score`` or ``retriever_gap``."""
        return self._name

    def knows(self, question_ids: Iterable[str]) -> bool:
        """True if every one of these questions was searched for."""
        return all(question_id in self._scores for question_id in question_ids)

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example. Raises KeyError for a question without evidence."""
        return [max(self._scores[example.question_id], self._none) for example in examples]


def _mean_benefits(gate: str, labels: Iterable[tuple[Label, str | None]]) -> tuple[float, dict[str, float]]:
    """Mean benefit of all training questions with one, and of each group. Raises :class:`UserError` without any."""
    benefits: dict[str | None, list[float]] = defaultdict(list)
    for label, group in labels:
        if label.split == "train" and label.benefit is not None:
            benefits[group].append(label.benefit)
    everything = [benefit for values in benefits.values() for benefit in values]
    if not everything:
        raise UserError(f"gate '{gate}': no training label has a benefit; sample condition 'rag' for them")
    means = {group: sum(values) / len(values) for group, values in benefits.items() if group}
    return sum(everything) / len(everything), means
