"""Answers by a gate with plain functions, or the project's parts, as model and search: for use in an application.

Three steps (KBM, section 4.3): score the question; known: answer plainly; unknown: search, then answer.

The prompts are those of sampling (own templates, where the gate was trained with such), so that a gate's labels are
about what is asked here: a question without a search, or whose search finds nothing, is asked as under condition
``llm``; else as under ``rag``.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kbtrain.answers.thoughts import read_answer, split_thought
from kbtrain.answers.writing import is_blank, language_of
from kbtrain.errors import UserError
from kbtrain.gate.gate import Gate, as_list
from kbtrain.gates.registry import load_gate
from kbtrain.labeling.examples import example
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.prompts.kbm import evidence_text, render_chat
from kbtrain.records import GREEDY, Hit, Question, Sample, SampleSet, Titles
from kbtrain.retrieval.base import DistinctSearch, Searcher, distinct, hit_of
from kbtrain.utterances import decide_by, utterance_kind

Ask = Callable[[str], str]  # a prompt -> the answer
Find = Callable[..., Sequence[Any]]  # a question (and how many) -> texts, mappings with 'text', or hits, best first


@dataclass(frozen=True)
class GatedAnswer:
    """One greedy answer, the gate's score, whether there was a search, and the tokens that it cost.

    ``hits`` are what the answer read: empty where nothing was searched or found, and then the answer is the plain one.
    ``reason``: as of a decision (:class:`~kbtrain.records.Decision`).
    """

    text: str
    score: float
    retrieved: bool
    hits: tuple[Hit, ...]
    generated_tokens: int
    reason: str


def answer(
    texts: Sequence[str],
    gate: Gate | str | Path,
    *,
    llm: Ask | LLM,
    search: Find | Searcher,
    k: int = 3,
    threshold: float | None = None,
) -> list[GatedAnswer]:
    """Answers in the order of the questions; ``threshold`` None: the gate's own. ``gate``: one, or its folder.

    ``llm``: a function of a prompt, or :class:`~kbtrain.llm.base.LLM`; ``search``: a function of a question, or a
    :class:`~kbtrain.retrieval.base.Searcher`. ``k``, the most passages read, is handed to a function that has a
    parameter of this name. Raises :class:`UserError` for a gate without a threshold or that needs retrieved text, a
    text that is not a question, and functions that take or give something else.
    """
    questions = [_question(text, place) for place, text in enumerate(as_list(texts, "rag.answer"))]
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise UserError(f"k: expected a number of passages from 1, found {k!r:.60}")
    model = cast(LLM, llm) if hasattr(llm, "answer") and hasattr(llm, "facts") else _FunctionLLM(llm)
    finder = DistinctSearch(cast(Searcher, search)) if hasattr(search, "search") else _FunctionSearch(search)
    opened = load_gate(gate) if isinstance(gate, str | Path) else gate
    if not isinstance(opened, Gate):
        raise UserError(f"gate: expected a gate (kbtrain.load_gate) or its folder, found {gate!r:.60}")
    if opened.needs_evidence:
        raise UserError(f"gate '{opened.name}' needs retrieved text; here the bare question is scored")
    return _answers(questions, opened, opened.threshold_or(threshold), model, finder, k)


def _answers(
    questions: Sequence[Question], gate: Gate, threshold: float, llm: LLM, searcher: Searcher, k: int
) -> list[GatedAnswer]:
    """Search for a question iff its score > ``threshold``, but never for small talk, instructions about a text and
    arithmetic (:mod:`kbtrain.utterances`). All questions go to the model in one stream."""
    card = gate.card
    scores = gate.score([example(question, None) for question in questions])
    decided = [
        decide_by(score, threshold, utterance_kind(question.text))
        for score, question in zip(scores, questions, strict=True)
    ]
    unknown = [i for i, (retrieve, _) in enumerate(decided) if retrieve]
    results = searcher.search([questions[i].text for i in unknown], k) if unknown else []
    hits = dict(zip(unknown, results, strict=True))
    titles: Titles = card.titles() if card else "missing"
    texts = {i: text for i in unknown if (text := evidence_text(hits[i], titles)) is not None}
    own_prompts = card.own_prompts() if card else None  # those that the labels are about
    requests = [
        AnswerRequest(question, "rag" if i in texts else "llm", texts.get(i), n=0, prompts=own_prompts)
        for i, question in enumerate(questions)
    ]
    sets = {s.question_id: s for group in llm.answer(requests) for s in group}
    found = []
    for i, question in enumerate(questions):
        if (greedy := sets[question.id].greedy) is None:
            raise UserError(f"text {question.id}: {sets[question.id].refused or 'the model gave no greedy answer'}")
        read = hits[i] if i in texts else ()
        found.append(GatedAnswer(greedy.text, scores[i], i in hits, read, greedy.n_tokens, decided[i][1]))
    return found


def _question(text: object, place: int) -> Question:
    if not isinstance(text, str) or is_blank(text):
        raise UserError(f"rag.answer: text {place} is not a question: {text!r:.60}")
    return Question(str(place), text, (), "test", "use", language_of(text), gold="none")


class _FunctionLLM:
    """A function of a prompt as :class:`~kbtrain.llm.base.LLM`."""

    def __init__(self, ask: Ask) -> None:
        expected = "a function of a prompt, or a model of kbtrain.llm"
        _check_call("llm", _signature("llm", ask, expected), "ask(prompt)")
        self.name = getattr(ask, "__name__", type(ask).__name__)
        self._ask = ask

    def facts(self) -> dict[str, Any]:
        return {}

    def answer(
        self, requests: Iterable[AnswerRequest], done: Collection[tuple[str, str]] = frozenset()
    ) -> Iterator[list[SampleSet]]:
        for request in requests:
            text = self._ask(render_chat(None, request.text(request.evidence), request.system))
            if not isinstance(text, str):
                raise UserError(f"llm: the function gave {type(text).__name__}, expected the answer's text")
            answer = read_answer(split_thought(text), "eos")
            greedy = Sample(GREEDY, answer.text, 0, answer.finish, 0.0)  # its length in tokens is not known
            yield [SampleSet(request.question.id, request.condition, (), greedy, 0)]


class _FunctionSearch:
    """A function of a question, with or without k, as :class:`~kbtrain.retrieval.base.Searcher`."""

    def __init__(self, find: Find) -> None:
        self._find = find
        expected = "a function of a question, or a search of kbtrain.retrieval"
        signature = _signature("search", find, expected)
        parameters = signature.parameters if signature else {}
        self._takes_k = "k" in parameters
        by_name = {"k": 0} if self._takes_k else {}
        _check_call("search", signature, "find(question) or find(question, k)", **by_name)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        return [self._hits(query, k) for query in queries]

    def _hits(self, query: str, k: int) -> tuple[Hit, ...]:
        passages = self._find(query, k=k) if self._takes_k else self._find(query)
        if isinstance(passages, str) or not isinstance(passages, Sequence):
            raise UserError(f"search: the function gave {type(passages).__name__}, expected a list of passages")
        return distinct(itertools.starmap(_passage, enumerate(passages)), k)[0]


def _passage(place: int, value: object) -> Hit:
    hit = hit_of(value, place + 1)
    if hit is None:
        raise UserError(f"search: passage {place} is neither a text nor a mapping with 'text': {value!r:.60}")
    return hit


def _signature(name: str, function: object, expected: str) -> inspect.Signature | None:
    """None for a compiled function that does not give it: the call will tell."""
    if not callable(function):
        raise UserError(f"{name}: expected {expected}, found {function!r:.60}")
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _check_call(name: str, signature: inspect.Signature | None, how: str, **named: object) -> None:
    """Raise :class:`UserError` for a function that cannot be called with a text and ``named``."""
    try:
        if signature is not None:
            signature.bind("", **named)
    except TypeError as error:
        raise UserError(f"{name}: the function takes other arguments ({error}); expected {how}") from None
