"""Three-step inference (KBM, section 4.3): score the question; known: answer plainly; unknown: search, then answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kbtrain.errors import UserError
from kbtrain.gate_folder import Gate
from kbtrain.labeling.examples import example
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.prompts.kbm import evidence_text
from kbtrain.records import Condition, Hit, Question, SampleSet, Titles
from kbtrain.retrieval.base import Searcher


@dataclass(frozen=True)
class GatedAnswer:
    """One greedy answer, the gate's score, whether it was searched for, and what it cost.

    ``hits`` are empty where nothing was searched or found; an answer without hits is the plain one.
    """

    question_id: str
    text: str
    score: float
    retrieved: bool
    hits: tuple[Hit, ...]
    searches: int
    llm_requests: int
    generated_tokens: int


def answer(
    questions: Sequence[Question],
    gate: Gate,
    threshold: float,
    llm: LLM,
    searcher: Searcher,
    k: int = 3,
    titles: Titles = "missing",
) -> list[GatedAnswer]:
    """Answers in the order of the questions; a question is searched for iff its score > ``threshold``.

    All known and all unknown questions go to the model in one stream. Raises :class:`UserError` for a gate that needs
    samples or evidence, which are not there before the search.
    """
    if gate.needs_samples or gate.needs_evidence:
        raise UserError(f"gate '{gate.name}' needs samples or evidence; three-step inference scores the bare question")
    scores = gate.score([example(question, None) for question in questions])
    unknown = [i for i, score in enumerate(scores) if score > threshold]
    found = searcher.search([questions[i].text for i in unknown], k) if unknown else []
    hits = dict(zip(unknown, found, strict=True))
    requests = [_ask(question, hits.get(i, ()), titles) for i, question in enumerate(questions)]
    said = {s.question_id: s for group in llm.answer(requests) for s in group}
    return [
        _record(question, said[question.id], scores[i], i in hits, hits.get(i, ()))
        for i, question in enumerate(questions)
    ]


def _ask(question: Question, hits: tuple[Hit, ...], titles: Titles) -> AnswerRequest:
    evidence = evidence_text(hits, titles)
    condition: Condition = "llm" if evidence is None else "rag"
    return AnswerRequest(question, condition, evidence, n=0)


def _record(question: Question, said: SampleSet, score: float, searched: bool, hits: tuple[Hit, ...]) -> GatedAnswer:
    if said.greedy is None:
        raise ValueError(f"question '{question.id}': the model gave no greedy answer")
    return GatedAnswer(question.id, said.greedy.text, score, searched, hits, int(searched), 1, said.greedy.n_tokens)
