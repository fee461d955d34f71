"""Gate scores on a Ray cluster: actors on many machines score, this process alone writes them.

A row of the job is one chunk of examples, so its batches, and therefore its scores, are those of one machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from pydantic import TypeAdapter

from kbtrain.distributed.ray_cluster import RayCluster, RowWorker
from kbtrain.errors import UserError
from kbtrain.gates.registry import Opening, Source, source_of
from kbtrain.gates.score_chunks import Chunk, ScoredChunk, scored_chunk

_CHUNK = TypeAdapter(Chunk)
_SCORED = TypeAdapter(ScoredChunk)


class ScoreWorker(RowWorker):
    """Scores chunks."""

    def open(self, config: str) -> None:
        """``config``: an :class:`Opening` and what its scores depend on, as JSON."""
        wanted = json.loads(config)
        opening = _settled(Opening(**wanted["opening"]))
        self.source = source_of(opening)
        if self.source.depends != wanted["depends"]:
            raise UserError(f"{opening.model}: other weights or settings here than where scoring was started")
        self.dtype = opening.dtype
        self.model = self.source.open()

    def do(self, row: str) -> str:
        """A chunk -> its scores, and the number format that this machine computes in."""
        scored = scored_chunk(self.source, self.model, _CHUNK.validate_python(json.loads(row)))
        return json.dumps({"scored": asdict(scored), "dtype": self.dtype})


@dataclass(frozen=True)
class RayScoring(RayCluster):
    """An :data:`~kbtrain.gates.score_chunks.Engine`; an actor takes one GPU where there are GPUs."""

    worker: type[RowWorker] = ScoreWorker

    def __call__(self, source: Source, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
        if source.opening is None:
            raise ValueError(f"source of {', '.join(source.names)} has no opening: another process cannot open it")
        config = json.dumps({"opening": asdict(source.opening), "depends": source.depends})
        rows = {number: json.dumps(asdict(chunk)) for number, chunk in enumerate(chunks)}
        dtypes = set()
        for _, text in self.map_rows(self.worker, config, rows, "chunk", gpus=int(source.opening.device != "cpu")):
            done = json.loads(text)
            dtypes.add(done["dtype"])
            if len(dtypes) > 1:  # 'auto' is measured, and the machines differ
                found = " and ".join(sorted(dtypes))
                raise UserError(f"key 'dtype': auto means {found} on different machines; name one of them")
            yield _SCORED.validate_python(done["scored"])


def _settled(opening: Opening) -> Opening:
    """The opening with the number format that ``auto`` means on this machine, where it is measured: for the prompt
    baseline. Folders say their own."""
    if opening.kind != "prompt" or opening.dtype != "auto":
        return opening
    from kbtrain.models.load import choose_device
    from kbtrain.models.precision import choose_dtype, name_of

    return replace(opening, dtype=name_of(choose_dtype("auto", choose_device(opening.device), "")))
