"""Gate scores, and states of the answering model's prompts, on a Ray cluster; the keys of every script that scores.

A row of a scoring is one chunk of examples, so its batches, and therefore its scores, are those of one machine. A row
of an extraction is some prompts of like length. Actors compute in one number format, named by the caller, and with the
caller's weights, so a state is that of one machine up to the rounding of its batch.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import Field, TypeAdapter

from kbtrain.distributed.ray_cluster import EngineConfig, RayCluster, RowWorker, engine
from kbtrain.errors import UserError
from kbtrain.gates.handles import GateHandle, GateOpening, check_bases, handle_of_opening
from kbtrain.gates.probe.gate import Reader
from kbtrain.gates.probe.states import StateStore, prompt_key
from kbtrain.gates.scoring import Chunk, Engine, ScoredChunk, local, scored_chunk
from kbtrain.models.adapters import base_fingerprint
from kbtrain.models.batching import windows
from kbtrain.records import DtypeName, Split

if TYPE_CHECKING:
    from kbtrain.arrays import States

_CHUNK = TypeAdapter(Chunk)
_SCORED = TypeAdapter(ScoredChunk)


class ScoreWorker(RowWorker):
    """Scores chunks."""

    def open(self, config: Any) -> None:
        """``config``: a :class:`GateOpening` and what its scores depend on."""
        opening = _with_dtype(GateOpening(**config["opening"]))
        self.handle = handle_of_opening(opening)
        if self.handle.identity != config["identity"]:
            raise UserError(f"{opening.model}: other weights or settings here than where scoring was started")
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
        for _, reply in self.map_rows(self.worker, config, dict(enumerate(chunks)), "chunk", gpus):
            dtypes.add(reply["dtype"])
            if len(dtypes) > 1:  # 'auto' follows the processor, and the machines differ
                names = " and ".join(sorted(dtypes))
                raise UserError(f"key 'dtype': auto means {names} on different machines; name one of them")
            yield _SCORED.validate_python(reply["scored"])


def _with_dtype(opening: GateOpening) -> GateOpening:
    """The opening with the number format that ``auto`` means on this machine: for gates that
    prompt a model by its name. Folders store their own."""
    if opening.prompt is None or opening.dtype != "auto":
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
        """The engine that scores the chunks."""
        return engine(self, local, RayScoring)


PER_ROW = 64  # prompts: 17 MB of states of a model of 7 billion


@dataclass(frozen=True)
class ReadModel:
    """The model whose states are read: its name, its weights' fingerprint, the format it computes in, and where.

    ``draft``: most tokens of the draft that is read, too; 0: none.
    """

    name: str
    fingerprint: str
    dtype: str
    device: str = "auto"
    draft: int = 0


class StateWorker(RowWorker):
    """Reads the states of some prompts."""

    def open(self, config: Any) -> None:
        """``config``: a :class:`ReadModel`. Raises :class:`UserError` for other weights on this machine."""
        from kbtrain.models.load import load_model

        spec = ReadModel(**config)
        if base_fingerprint(spec.name) != spec.fingerprint:
            raise UserError(f"{spec.name}: other weights here than where the extraction was started")
        model, tokenizer = load_model(spec.name, spec.dtype, spec.device)
        self.reader = Reader(model, tokenizer, "draft" if spec.draft else "llm", draft_tokens=spec.draft)

    def do(self, row: Any) -> Any:
        """Prompts (lists of token ids) -> shape and bf16 bytes of their states."""
        return packed(self.reader.read(row))


def packed(states: States) -> dict[str, Any]:
    """States (prompts, layers, d) for JSON, in 16 bits as they are stored."""
    import torch

    raw = torch.from_numpy(states).bfloat16().contiguous().view(torch.uint8).numpy().tobytes()
    return {"shape": states.shape, "bf16": base64.b64encode(raw).decode("ascii")}


def unpacked(record: dict[str, Any]) -> States:
    """States in fp32 of what :func:`packed` wrote."""
    import torch

    raw = bytearray(base64.b64decode(record["bf16"]))
    states: States = torch.frombuffer(raw, dtype=torch.bfloat16).float().numpy().reshape(record["shape"])
    return states


@dataclass(frozen=True)
class RayStates(RayCluster):
    """Extraction on a cluster; an actor takes one GPU where there are GPUs."""

    worker: type[RowWorker] = StateWorker

    def extract(self, store: StateStore, model: ReadModel, prompts: Sequence[Sequence[int]]) -> Iterator[int]:
        """As :meth:`~kbtrain.gates.probe.states.StateStore.extract`: yields how many were written each time."""
        missing = {key: list(ids) for ids in prompts if (key := prompt_key(ids)) not in store}
        store.warn_of_missing(len(missing), len(prompts))
        parts = list(windows(sorted(missing, key=lambda key: len(missing[key])), PER_ROW))
        rows = {number: [missing[key] for key in part] for number, part in enumerate(parts)}
        for number, record in self.map_rows(self.worker, model, rows, "group of prompts", int(model.device != "cpu")):
            store.add(parts[number], unpacked(record))
            yield len(parts[number])
