"""Map rows over Ray actors on many machines; the calling process alone writes files.

The rows are a Ray Data job, and travel as JSON. When a node dies, Ray starts its actors again and repeats their rows.
"""

from __future__ import annotations

import os
import re
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import Field, model_validator
from pydantic_core import from_json, to_json

from kbtrain.config import Config
from kbtrain.errors import UserError

EngineT = TypeVar("EngineT")

_DEATHS = 3  # times a row is repeated when its process dies; Ray's own default is for ever, without a word


class EngineConfig(Config):
    """The process or cluster that computes a job's rows. A script's own config is a child of it."""

    engine: Literal["local", "ray"] = Field("local", description="local (this process) or ray (actors of a cluster)")
    ray_address: str | None = Field(None, description="ray: the cluster; null: $RAY_ADDRESS, or this machine alone")
    ray_actors: int = Field(0, ge=0, description="ray: models open at once; 0: one per GPU, or per node without GPUs")
    ray_cpus: float = Field(0, ge=0, description="ray: CPUs of each; 0: those of a node (with GPUs: 1)")

    @model_validator(mode="after")
    def _of_ray(self) -> EngineConfig:
        ray_key = next((key for key in ("ray_address", "ray_actors", "ray_cpus") if getattr(self, key)), None)
        if ray_key is not None and self.engine != "ray":
            raise ValueError(f"key '{ray_key}': needs engine: ray; set it, or remove the key")
        return self


class RowWorker(ABC):
    """One actor: opens its model once, then works row by row (JSON in, JSON out)."""

    def __init__(self, config: str, folder: str) -> None:
        if os.path.isdir(folder):  # so that relative names mean what they mean to the process that asks
            os.chdir(folder)
        try:
            self.open(from_json(config))
        except UserError as error:  # what one machine lacks, another may have
            raise UserError(f"{error} (on machine {socket.gethostname()})") from None

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        done = [to_json(self.do(from_json(str(row)))).decode() for row in batch["row"]]
        return {"number": batch["number"], "done": done}

    @abstractmethod
    def open(self, config: Any) -> None:
        """Open the model that ``config`` describes, as JSON values."""

    @abstractmethod
    def do(self, row: Any) -> Any:
        """The result of one row of JSON values: a value, or a record, that JSON can hold."""


@dataclass(frozen=True)
class RayCluster:
    """Address of a cluster, and the share of it to use, as in :class:`EngineConfig`."""

    address: str | None = None
    actors: int = 0
    cpus: float = 0

    def map_rows(
        self, worker: type[RowWorker], config: Any, rows: Mapping[int, Any], gpus: int = 1
    ) -> Iterator[tuple[int, Any]]:
        """Number and result of each row, in the order in which they are finished. ``config`` and rows are values or
        records that JSON can hold; ``gpus`` of each actor where there are GPUs."""
        ray = self.connect()
        try:
            for number, result in self._job(worker, to_json(config).decode(), rows, gpus) if rows else ():
                yield number, from_json(result)
        except ray.exceptions.RayError as error:
            # a worker's refusal is the same one line here: Ray passes its traceback as text
            if messages := re.findall(r"^\S*UserError: (.+)$", str(error), flags=re.MULTILINE):
                raise UserError(messages[-1]) from None
            raise UserError(
                f"ray: {_first_line(error)}; what was finished is kept: see ray's log, then run the same command again"
            ) from None

    def connect(self) -> Any:
        """Ray's module, connected. Raises :class:`UserError`."""
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

    def _job(
        self, worker: type[RowWorker], config: str, rows: Mapping[int, Any], gpus: int
    ) -> Iterator[tuple[int, str]]:
        import ray.data

        ray.data.DataContext.get_current().enable_progress_bars = False
        actors, resources = self._pool(gpus)
        items = [{"number": number, "row": to_json(row).decode()} for number, row in rows.items()]
        results = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            worker,
            fn_constructor_args=(config, os.getcwd()),
            batch_size=1,
            # one row on its way to each actor: what a dying node takes with it is little
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=actors, max_tasks_in_flight_per_actor=2),
            max_task_retries=_DEATHS,
            **resources,
        )
        for row in results.iter_rows():
            yield int(row["number"]), row["done"]

    def _pool(self, gpus: int) -> tuple[int, dict[str, float]]:
        """Number of actors that the live cluster can hold, and the resources of each."""
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        n_gpus = int(sum(node.get("GPU", 0) for node in nodes))
        if n_gpus and gpus:
            return self.actors or max(1, n_gpus // gpus), {"num_gpus": float(gpus), "num_cpus": self.cpus or 1.0}
        cpus = [node["CPU"] for node in nodes if node.get("CPU")]
        if not cpus:
            raise UserError("ray: the cluster has neither GPUs nor CPUs; start nodes with ray start")
        return self.actors or len(cpus), {"num_cpus": self.cpus or min(cpus)}


ClusterT = TypeVar("ClusterT", bound=RayCluster)


def engine(config: EngineConfig, local: EngineT, on_ray: type[ClusterT]) -> EngineT | ClusterT:
    """``local``, or the engine of kind ``on_ray`` on the cluster that ``config`` names."""
    return local if config.engine == "local" else on_ray(config.ray_address, config.ray_actors, config.ray_cpus)


def _knock(address: str | None) -> None:
    """Ray itself waits for minutes at a host:port without a listener. Raises ``OSError``."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()


def _first_line(error: BaseException) -> str:
    """Cause of a failure: the last error of a worker's traceback that is not Ray's wrapping; else the first line."""
    text = str(error).strip() or type(error).__name__
    causes = re.findall(r"^(?!\S*UserCodeException)(\S*(?:Error|Exception): .+)$", text, flags=re.MULTILINE)
    return str(causes[-1] if causes else text.splitlines()[0])[:200]
