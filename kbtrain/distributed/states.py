"""States of the answering model's prompts on a Ray cluster: actors on many machines read them, the caller alone writes.

A row of the job is some prompts of like length. Actors compute in one number format, named by the caller, and with the
caller's weights, so a state is that of one machine up to the rounding of its batch.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

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

    def open(self, config: str) -> None:
        """``config``: a :class:`ReadModel` as JSON. Raises :class:`UserError` for other weights on this machine."""
        from kbtrain.models.load import load_model

        spec = ReadModel(**json.loads(config))
        if base_fingerprint(spec.name) != spec.fingerprint:
            raise UserError(f"{spec.name}: other weights here than where the extraction was started")
        model, tokenizer = load_model(spec.name, spec.dtype, spec.device)
        self.reader = Reader(model, tokenizer, "draft" if spec.draft else "llm", draft_tokens=spec.draft)

    def do(self, row: str) -> str:
        """Prompts (lists of token ids, JSON) -> shape and bf16 bytes of their states."""
        return packed(self.reader.read(json.loads(row)))


def packed(states: States) -> str:
    """JSON of states (prompts, layers, d) in 16 bits, as they are stored."""
    import torch

    raw = torch.from_numpy(states).bfloat16().contiguous().view(torch.uint8).numpy().tobytes()
    return json.dumps({"shape": states.shape, "bf16": base64.b64encode(raw).decode("ascii")})


def unpacked(text: str) -> States:
    """States in fp32 of what :func:`packed` wrote."""
    import torch

    record = json.loads(text)
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
        rows = {number: json.dumps([missing[key] for key in part]) for number, part in enumerate(parts)}
        gpus = int(model.device != "cpu")
        for number, text in self.map_rows(self.worker, json.dumps(asdict(model)), rows, "group of prompts", gpus):
            store.add(parts[number], unpacked(text))
            yield len(parts[number])
