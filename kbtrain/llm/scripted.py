"""A back end without a model: made-up answers, to try a pipeline or a cluster, and to test what is around it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from kbtrain.llm.base import Ask, Sampling
from kbtrain.llm.sampler.draw import UniformRow
from kbtrain.prompts.kbm import answer_fingerprint, answer_prompt
from kbtrain.records import GREEDY, Sample, SampleSet

Reply = Callable[[Ask, int], str]  # an ask and a sample index -> the text of that answer


class ScriptedLLM:
    """Implements :class:`~kbtrain.llm.base.LLM`. Without ``reply`` it gives the gold answer in a share of the samples
    that is the question's own (a hash of its id), and else "unknown"."""

    def __init__(self, name: str, sampling: Sampling, reply: Reply | None = None) -> None:
        self.name = name
        self.sampling = sampling
        self._reply = reply or self._hashed

    def facts(self) -> dict[str, Any]:
        """As :meth:`kbtrain.llm.base.LLM.facts`."""
        return {"prompts": answer_fingerprint(None)}

    def answer(self, asks: Iterable[Ask], done: Collection[tuple[str, str]] = frozenset()) -> Iterator[list[SampleSet]]:
        """As :meth:`kbtrain.llm.base.LLM.answer`, one question-condition a group."""
        for ask in asks:
            if (ask.question.id, ask.condition) not in done:
                yield [self._set(ask)]

    def _set(self, ask: Ask) -> SampleSet:
        greedy = self._sample(ask, GREEDY) if ask.greedy else None
        samples = tuple(self._sample(ask, index) for index in range(ask.n))
        words = len(answer_prompt(ask.question, ask.condition, ask.evidence).split())
        return SampleSet(ask.question.id, ask.condition, samples, greedy, words)

    def _sample(self, ask: Ask, index: int) -> Sample:
        text = self._reply(ask, index)
        return Sample(index, text, len(text.split()) + 1, "eos", 0.0)

    def _hashed(self, ask: Ask, index: int) -> str:
        share = UniformRow(self.sampling.seed, ask.question.id, ask.condition, GREEDY).at(0)
        drawn = 0.5 if index == GREEDY else UniformRow(self.sampling.seed, ask.question.id, ask.condition, index).at(0)
        return ask.question.answers[0] if ask.question.answers and drawn < share else "unknown"
