"""Sampling and scoring on a Ray cluster; the keys of every script that scores.

A row of the job is a window of requests, or a chunk of examples. So batches, and with them answers and scores, are
those of one machine.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import Field, TypeAdapter

from kbtrain.distributed.ray_cluster import EngineConfig, RayCluster, RowWorker, engine
from kbtrain.errors import UserError
from kbtrain.gates.handles import GateHandle, GateOpening, check_bases, handle_of_opening
from kbtrain.gates.scoring import Chunk, Engine, ScoredChunk, local, scored_chunk
from kbtrain.records import DtypeName, SampleSet, Split

if TYPE_CHECKING:  # scoring needs no back end
    from kbtrain.llm.backends import LLMConfig
    from kbtrain.llm.base import AnswerRequest
    from kbtrain.llm.sample_stage import AnswersWithFacts

_SETS = TypeAdapter(list[SampleSet])
_CHUNK = TypeAdapter(Chunk)
_SCORED = TypeAdapter(ScoredChunk)


class SampleWorker(RowWorker):
    def open(self, config: Any) -> None:
        """``config``: the fields of an :class:`LLMConfig`, and others."""
        from kbtrain.llm.backends import LLMConfig, open_llm
        from kbtrain.llm.base import AnswerRequest

        self._llm = open_llm(LLMConfig(**{name: config[name] for name in LLMConfig.model_fields}))
        self._requests = TypeAdapter(list[AnswerRequest])

    def do(self, row: Any) -> Any:
        """Requests of a window, and which are answered already -> facts of the model and the sets of answers."""
        done = {(question, condition) for question, condition in row["done"]}
        groups = self._llm.answer(self._requests.validate_python(row["requests"]), done)
        sets = [answers for group in groups for answers in group]
        return {"facts": self._llm.facts(), "sets": sets}


@dataclass(frozen=True)
class RaySampling(RayCluster):
    """An :data:`~kbtrain.llm.sample_stage.Engine`; an actor takes ``tensor_parallel`` GPUs."""

    worker: type[RowWorker] = SampleWorker

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
        for _, reply in self.map_rows(self.worker, config.model_dump(mode="json"), rows, config.tensor_parallel):
            yield reply["facts"], _SETS.validate_python(reply["sets"])


class ScoreWorker(RowWorker):
    def open(self, config: Any) -> None:
        """``config``: a :class:`GateOpening` and what its scores depend on."""
        opening = _with_dtype(GateOpening(**config["opening"]))
        self.handle = handle_of_opening(opening)
        if self.handle.identity != config["identity"]:
            raise UserError(f"{opening.model}: other parameters or settings here than where scoring was started")
        self.dtype = opening.dtype
        self.gate = self.handle.open()

    def do(self, row: Any) -> Any:
        """A chunk -> its scores, and the number format that this machine computes in."""
        return {"scored": scored_chunk(self.handle, self.gate, _CHUNK.validate_python(row)), "dtype": self.dtype}


@dataclass(frozen=True)
class RayScoring(RayCluster):
    """An :data:`~kbtrain.gates.scoring.Engine`; an actor takes one GPU where there are GPUs."""

    worker: type[RowWorker] = ScoreWorker

    def __call__(self, handle: GateHandle, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
        if handle.opening is None:
            raise ValueError(f"gate {', '.join(handle.names)} has no opening: another process cannot open it")
        if handle.folder:  # here, before a cluster is looked for: a worker's refusal costs minutes
            check_bases(handle.folder)
        config, gpus = {"opening": handle.opening, "identity": handle.identity}, int(handle.opening.device != "cpu")
        dtypes = set()
        for _, reply in self.map_rows(self.worker, config, dict(enumerate(chunks)), gpus):
            dtypes.add(reply["dtype"])
            if len(dtypes) > 1:  # 'auto' follows the processor, and the machines differ
                names = " and ".join(sorted(dtypes))
                raise UserError(f"key 'dtype': auto means {names} on different machines; name one of them")
            yield _SCORED.validate_python(reply["scored"])


def _with_dtype(opening: GateOpening) -> GateOpening:
    """The opening with the number format that ``auto`` means on this machine: for the gate that
    prompts a model by its name. Folders store their own."""
    if not opening.prompt or opening.dtype != "auto":
        return opening
    from kbtrain.models.load import choose_device, choose_dtype, name_of

    return replace(opening, dtype=name_of(choose_dtype("auto", choose_device(opening.device), "")))


class ScoringConfig(EngineConfig):
    """Splits, chunk size and engine of a scoring; base class of the scripts' configs."""

    splits: tuple[Split, ...] = Field(("dev", "test"), min_length=1, description="which questions to score")
    chunk: int = Field(128, ge=1, description="questions per step of the progress bar, kept together when resuming")
    dtype: DtypeName = Field("auto", description="auto: as the gate was saved, else by the processor")
    device: str = Field("auto", description="auto, cpu or cuda")

    def scoring(self) -> Engine:
        return engine(self, local, RayScoring)
