"""Answers by a gate with plain functions, or the project's parts, as model and search: for use in an application.

The prompts are those of sampling (own templates, where the gate was trained with such), so that a gate's labels are
about what is asked here: a question that is not searched
for, or for which nothing is found, is asked as under condition ``llm``; else as under ``rag``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from kbtrain.answers.mask import is_chinese
from kbtrain.errors import UserError
from kbtrain.gate_folder import Gate
from kbtrain.gates.registry import load_gate
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.prompts.kbm import render_chat
from kbtrain.rag.three_steps import GatedAnswer, SecondJudgement
from kbtrain.rag.three_steps import answer as answer_questions
from kbtrain.records import GREEDY, Hit, Question, Sample, SampleSet, Titles
from kbtrain.retrieval.base import Searcher, hit_of

Ask = Callable[[str], str]  # a prompt -> the answer
Find = Callable[..., Sequence[Any]]  # a question (and how many) -> texts, mappings with 'text', or hits, best first


def answer(
    texts: Sequence[str],
    gate: Gate | str | Path,
    *,
    llm: Ask | LLM,
    search: Find | Searcher,
    k: int = 3,
    threshold: float | None = None,
    titles: Titles = "missing",
    second: SecondJudgement | None = None,
) -> list[GatedAnswer]:
    """Answers in the order of the questions; ``threshold`` None: the gate's own. ``gate``: one, or its folder.

    ``llm``: a function of a prompt, or :class:`~kbtrain.llm.base.LLM`; ``search``: a function of a question (and k), or
    a :class:`~kbtrain.retrieval.base.Searcher`. Raises :class:`UserError` for a gate without a threshold, a text that
    is no question, and functions that give something else.
    """
    if isinstance(texts, str):
        raise UserError(f"rag.answer: expected a list of questions, found the text {texts!r:.60}; put it in a list")
    opened = load_gate(gate) if isinstance(gate, str | Path) else gate
    chosen = opened.threshold if threshold is None else threshold
    if chosen is None:
        raise UserError(
            f"gate '{opened.name}': no threshold noted; choose one on dev questions (eval/calibrate.py), or give one: "
            "threshold=..."
        )
    asked = [_question(text, place) for place, text in enumerate(texts)]
    model = cast(LLM, llm) if hasattr(llm, "answer") else _FunctionLLM(llm)
    finder = cast(Searcher, search) if hasattr(search, "search") else _FunctionSearch(search)
    return answer_questions(asked, opened, chosen, model, finder, k, titles, second)


def _question(text: object, place: int) -> Question:
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"rag.answer: text {place} is no question: {text!r:.60}")
    return Question(str(place), text, (), "test", "use", "zh" if any(map(is_chinese, text)) else "en", gold="none")


class _FunctionLLM:
    """A function of a prompt as :class:`~kbtrain.llm.base.LLM`."""

    def __init__(self, ask: Ask) -> None:
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
            greedy = Sample(GREEDY, text, 0, "eos", 0.0)  # its length in tokens is not known
            yield [SampleSet(request.question.id, request.condition, (), greedy, 0)]


class _FunctionSearch:
    """A function of a question, with or without k, as :class:`~kbtrain.retrieval.base.Searcher`."""

    def __init__(self, find: Find) -> None:
        self._find = find
        self._takes_k = _positional(find) != 1

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        return [self._hits(query, k) for query in queries]

    def _hits(self, query: str, k: int) -> tuple[Hit, ...]:
        found = self._find(query, k) if self._takes_k else self._find(query)
        if isinstance(found, str) or not isinstance(found, Sequence):
            raise UserError(f"search: the function gave {type(found).__name__}, expected a list of passages")
        hits = [hit_of(value, rank) for rank, value in enumerate(found[:k], 1)]
        wrong = next((place for place, hit in enumerate(hits) if hit is None), None)
        if wrong is not None:
            raise UserError(f"search: passage {wrong} is neither a text nor a mapping with 'text'")
        return tuple(hit for hit in hits if hit is not None)


def _positional(function: Callable[..., Any]) -> int | None:
    """Number of arguments a function must be called with at most; None where it does not tell."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return None
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)
