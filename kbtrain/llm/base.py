"""What every back end offers: answers for requests, as a stream of :class:`~kbtrain.records.SampleSet`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from kbtrain.records import Condition, Question, SampleSet


@dataclass(frozen=True)
class Ask:
    """One question under one condition: ``n`` samples, and the greedy answer if ``greedy``.

    ``evidence`` is the text that goes into the prompt; None for condition ``llm``.
    """

    question: Question
    condition: Condition
    evidence: str | None
    n: int
    greedy: bool = True


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn. ``temperature`` 1 and no filters as in KBM (section 3.2).

    ``seed`` names the run: with question, condition, sample index and step it is hashed into each uniform number.
    ``max_prompt_tokens``: a longer prompt loses evidence from its tail.
    """

    seed: str = "0"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 24
    stop: tuple[str, ...] = ("\n",)
    max_prompt_tokens: int = 2048


class LLM(Protocol):
    """A language model that answers. Results come in any order; each names its question and condition."""

    name: str

    def facts(self) -> dict[str, Any]:
        """What the answers depend on beyond the settings (number format, prompts): kept with the run they belong to."""
        ...

    def answer(self, asks: Iterable[Ask], done: Collection[tuple[str, str]] = frozenset()) -> Iterator[list[SampleSet]]:
        """Answer a stream of asks; yields finished groups, so that a caller can store each at once.

        ``done`` are (question, condition) pairs that are stored already: nothing is returned for them.
        """
        ...
