"""Sampling as a Ray Data job: actors on many machines draw the answers, this process alone writes them.

A row of the data set is one window of asks, so the answers are those of a run on one machine. When a node dies, Ray
starts its actors again where there is room and repeats their windows; when the whole job breaks, it is begun again
with the windows that are left, as long as each attempt gets one done.
"""

from __future__ import annotations

import json
import os
import re
import socket
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import TypeAdapter

from kbtrain.errors import UserError
from kbtrain.llm.backends import open_llm
from kbtrain.llm.base import Ask
from kbtrain.llm.settings import LLMConfig
from kbtrain.llm.stage import Answered
from kbtrain.records import SampleSet

_ASKS = TypeAdapter(list[Ask])
_SETS = TypeAdapter(list[SampleSet])


class Worker:
    """One actor: opens the model once, then answers window after window (rows of one column of JSON)."""

    def __init__(self, config: str) -> None:
        self._llm = open_llm(LLMConfig.model_validate_json(config))

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[str]]:
        return {"answered": [self._answered(json.loads(str(text))) for text in batch["window"]]}

    def _answered(self, window: Mapping[str, Any]) -> str:
        asks = _ASKS.validate_python(window["asks"])
        done = {(question, condition) for question, condition in window["done"]}
        sets = [asdict(made) for group in self._llm.answer(asks, done) for made in group]
        return json.dumps({"number": window["number"], "facts": self._llm.facts(), "sets": sets})


@dataclass(frozen=True)
class RayEngine:
    """An :data:`~kbtrain.llm.stage.Engine`. ``actors`` 0: one per GPU (or per ``tensor_parallel`` GPUs), without GPUs
    one per node; ``cpus`` of each, 0: a node's share. ``address`` None: $RAY_ADDRESS, or a cluster of this machine."""

    address: str | None = None
    actors: int = 0
    cpus: float = 0
    worker: type = Worker

    def __call__(
        self, config: LLMConfig, windows: Iterator[list[Ask]], done: Collection[tuple[str, str]]
    ) -> Iterator[Answered]:
        ray = self._connect()
        left = {number: row for number, row in enumerate(_row(i, w, done) for i, w in enumerate(windows)) if row}
        while left:
            before = len(left)
            try:
                for text in self._job(config, list(left.values())):
                    answered = json.loads(text)
                    if left.pop(answered["number"], None) is not None:  # a window that was repeated counts once
                        yield answered["facts"], _SETS.validate_python(answered["sets"])
            except ray.exceptions.RayError as error:
                _raise_user_error(error)
                if len(left) == before:
                    raise UserError(f"ray: no window could be finished ({_first_line(error)}); see ray's log") from None
                warnings.warn(f"ray: {_first_line(error)}; going on with {len(left)} windows", stacklevel=2)

    def _connect(self) -> Any:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
            import ray.data
        except ImportError:
            raise UserError('engine ray: Ray is not installed here; pip install "kbtrain[ray]"') from None
        if not ray.is_initialized():
            try:
                _knock(self.address)
                ray.init(address=self.address, log_to_driver=False, logging_level="warning", include_dashboard=False)
            except (OSError, ValueError) as error:  # a ConnectionError is an OSError
                raise UserError(f"ray: no cluster at '{self.address}' ({_first_line(error)})") from None
        return ray

    def _job(self, config: LLMConfig, rows: list[str]) -> Iterator[str]:
        """The answered windows of one Ray Data job, in the order in which they are finished."""
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        actors, resources = self._pool(config.tensor_parallel)
        plain = LLMConfig(**config.model_dump(include=set(LLMConfig.model_fields)))
        answered = ray.data.from_items([{"window": row} for row in rows], override_num_blocks=len(rows)).map_batches(
            self.worker,
            fn_constructor_args=(plain.model_dump_json(),),
            batch_size=1,
            # one window on its way to each actor: what a dying node takes with it is little
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors, max_tasks_in_flight_per_actor=2),
            **resources,
        )
        for row in answered.iter_rows():
            yield row["answered"]

    def _pool(self, tensor_parallel: int) -> tuple[int, dict[str, float]]:
        """How many actors the living cluster can hold, and what each gets."""
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        gpus = int(sum(node.get("GPU", 0) for node in nodes))
        if gpus:
            share = {"num_gpus": float(tensor_parallel), "num_cpus": self.cpus or 1.0}
            return self.actors or max(1, gpus // tensor_parallel), share
        cpus = [node["CPU"] for node in nodes if node.get("CPU")]
        if not cpus:
            raise UserError("ray: the cluster has neither GPUs nor CPUs; start nodes with ray start")
        return self.actors or len(cpus), {"num_cpus": self.cpus or min(cpus)}


def _knock(address: str | None) -> None:
    """Ray itself waits for minutes at a host:port where nobody listens. Raises ``OSError``."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _row(number: int, window: list[Ask], done: Collection[tuple[str, str]]) -> str | None:
    """A window as JSON, or None if nothing of it is missing."""
    keys = [(ask.question.id, ask.condition) for ask in window]
    stored = [key for key in keys if key in done]
    if len(stored) == len(keys):
        return None
    return json.dumps({"number": number, "asks": [asdict(ask) for ask in window], "done": stored})


def _raise_user_error(error: BaseException) -> None:
    """What a worker refused, as the same one line here: Ray hands on its traceback as text."""
    found = re.findall(r"^\S*UserError: (.+)$", str(error), flags=re.MULTILINE)
    if found:
        raise UserError(found[-1]) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
