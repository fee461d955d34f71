"""Sampling on a Ray cluster: actors on many machines draw the answers, the calling process alone writes.

A row of the job is one window of requests, so the answers are those of a run on one machine.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass

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

    def open(self, config: str) -> None:
        """``config``: an :class:`LLMConfig` as JSON."""
        self._llm = open_llm(LLMConfig.model_validate_json(config))

    def do(self, row: str) -> str:
        """A window of :func:`_row` -> facts of the model and the sets of answers."""
        window = json.loads(row)
        requests = _REQUESTS.validate_python(window["requests"])
        done = {(question, condition) for question, condition in window["done"]}
        sets = [asdict(answers) for group in self._llm.answer(requests, done) for answers in group]
        return json.dumps({"facts": self._llm.facts(), "sets": sets})


@dataclass(frozen=True)
class RayEngine(RayCluster):
    """An :data:`~kbtrain.llm.sample_stage.Engine`; an actor takes ``tensor_parallel`` GPUs."""

    worker: type[RowWorker] = Worker

    def __call__(
        self, config: LLMConfig, windows: Iterator[list[AnswerRequest]], done: Collection[tuple[str, str]]
    ) -> Iterator[AnswersWithFacts]:
        self.connect()  # before the questions are read: report a faulty cluster at once
        rows = {number: row for number, row in enumerate(_row(window, done) for window in windows) if row}
        plain = LLMConfig(**config.model_dump(include=set(LLMConfig.model_fields)))
        replies = self.map_rows(self.worker, plain.model_dump_json(), rows, "window", config.tensor_parallel)
        for _, text in replies:
            reply = json.loads(text)
            yield reply["facts"], _SETS.validate_python(reply["sets"])


def _row(window: list[AnswerRequest], done: Collection[tuple[str, str]]) -> str | None:
    """A window as JSON, or None if nothing of it is missing."""
    keys = [(request.question.id, request.condition) for request in window]
    stored_keys = [key for key in keys if key in done]
    if len(stored_keys) == len(keys):
        return None
    return json.dumps({"requests": [asdict(request) for request in window], "done": stored_keys})
