"""Sampling on a Ray cluster: a row of the job is a window of requests, so the answers are those of one machine."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from kbtrain.distributed.ray_cluster import RayCluster, RowWorker
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.sample_stage import AnswersWithFacts
from kbtrain.records import SampleSet

_REQUESTS = TypeAdapter(list[AnswerRequest])
_SETS = TypeAdapter(list[SampleSet])


class Worker(RowWorker):
    """Answers windows."""

    def open(self, config: Any) -> None:
        """``config``: the fields of an :class:`LLMConfig`."""
        self._llm = open_llm(LLMConfig(**config))

    def do(self, row: Any) -> Any:
        """Requests of a window, and which are answered already -> facts of the model and the sets of answers."""
        done = {(question, condition) for question, condition in row["done"]}
        groups = self._llm.answer(_REQUESTS.validate_python(row["requests"]), done)
        sets = [answers for group in groups for answers in group]
        return {"facts": self._llm.facts(), "sets": sets}


@dataclass(frozen=True)
class RayEngine(RayCluster):
    """An :data:`~kbtrain.llm.sample_stage.Engine`; an actor takes ``tensor_parallel`` GPUs."""

    worker: type[RowWorker] = Worker

    def __call__(
        self, config: LLMConfig, windows: Iterator[list[AnswerRequest]], done: Collection[tuple[str, str]]
    ) -> Iterator[AnswersWithFacts]:
        self.connect()  # before the questions are read: report a faulty cluster at once
        rows = {}
        for number, window in enumerate(windows):
            keys = [(request.question.id, request.condition) for request in window]
            stored = [key for key in keys if key in done]
            if len(stored) < len(keys):
                rows[number] = {"requests": window, "done": stored}
        plain = config.model_dump(mode="json", include=set(LLMConfig.model_fields))
        for _, reply in self.map_rows(self.worker, plain, rows, "window", config.tensor_parallel):
            yield reply["facts"], _SETS.validate_python(reply["sets"])
