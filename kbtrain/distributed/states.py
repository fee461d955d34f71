"""States of the answering model's prompts, read on a Ray cluster. A row of the job is some prompts of like length.

Actors compute in one number format, named by the caller, and with the caller's weights, so a state is that of one
machine up to the rounding of its batch.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kbtrain.distributed.ray_cluster import RayCluster, RowWorker
from kbtrain.errors import UserError
from kbtrain.gates.probe.gate import Reader
from kbtrain.gates.probe.states import StateStore, prompt_key
from kbtrain.models.adapters import base_fingerprint
from kbtrain.models.batching import windows

if TYPE_CHECKING:
    from kbtrain.arrays import States

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
