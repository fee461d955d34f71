"""A back end without a model: made-up answers, to try a pipeline or a cluster, and to test what is around it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.sampler.draw import UniformRow
from kbtrain.prompts.kbm import answer_fingerprint, answer_prompt
from kbtrain.records import GREEDY, Sample, SampleSet

Reply = Callable[[AnswerRequest, int], str]  # a request and a sample index -> the text of that answer


class ScriptedLLM:
    """Implements :class:`~kbtrain.llm.base.LLM`. Without ``reply`` it gives the gold answer in a share of the samples
    that is the question's own (a hash of its id), and else "unknown"."""

    def __init__(self, name: str, sampling: Sampling, reply: Reply | None = None) -> None:
        self.name = name
        self.sampling = sampling
        self._reply = reply or self._hashed

    def facts(self) -> dict[str, Any]:
        return {"prompts": answer_fingerprint(None)}

    def answer(
        self, requests: Iterable[AnswerRequest], done: Collection[tuple[str, str]] = frozenset()
    ) -> Iterator[list[SampleSet]]:
        """As :meth:`kbtrain.llm.base.LLM.answer`, one question-condition a group."""
        for request in requests:
            if (request.question.id, request.condition) not in done:
                yield [self._sample_set(request)]

    def _sample_set(self, request: AnswerRequest) -> SampleSet:
        greedy = self._sample(request, GREEDY) if request.greedy else None
        samples = tuple(self._sample(request, index) for index in range(request.n))
        words = len(answer_prompt(request.question, request.condition, request.evidence).split())
        return SampleSet(request.question.id, request.condition, samples, greedy, words)

    def _sample(self, request: AnswerRequest, index: int) -> Sample:
        text = self._reply(request, index)
        return Sample(index, text, len(text.split()) + 1, "eos", 0.0)

    def _hashed(self, request: AnswerRequest, index: int) -> str:
        def uniform(index: int) -> float:
            return UniformRow(self.sampling.seed, request.question.id, request.condition, index).at(0)

        share, drawn = uniform(GREEDY), 0.5 if index == GREEDY else uniform(index)
        return request.question.answers[0] if request.question.answers and drawn < share else "unknown"
