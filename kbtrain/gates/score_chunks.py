"""The scoring stage: examples -> chunks -> scores on disk. Whoever scores a chunk, one process writes the file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kbtrain.gates.registry import Score, Source
from kbtrain.gates.score_stage import ScoreFile, Timing
from kbtrain.provenance import device
from kbtrain.records import GateExample, GateScore, Split


@dataclass(frozen=True)
class Chunk:
    """Examples of one split that are scored together: a score can depend on its batch in the last digits."""

    split: Split
    examples: tuple[GateExample, ...]


@dataclass(frozen=True)
class ScoredChunk:
    """A chunk's scores and what they took."""

    scores: tuple[GateScore, ...]
    timing: Timing


Engine = Callable[[Source, Sequence[Chunk]], Iterator[ScoredChunk]]


def chunks_left(
    file: ScoreFile, source: Source, examples: Mapping[Split, Sequence[GateExample]], size: int
) -> list[Chunk]:
    """The chunks of which any score is missing, each as a whole."""
    chunks = [Chunk(s, tuple(rows[i : i + size])) for s, rows in examples.items() for i in range(0, len(rows), size)]
    return [c for c in chunks if any((n, e.question_id) not in file.done for n in source.names for e in c.examples)]


def score_chunks(file: ScoreFile, source: Source, chunks: Sequence[Chunk], engine: Engine) -> Iterator[int]:
    """Score and write; yields how many examples were written each time. Without chunks nothing is opened."""
    if chunks:
        for scored in engine(source, chunks):
            file.append(scored.scores, scored.timing)
            yield scored.timing.n


def local(source: Source, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
    """The engine of one process: it opens the gate itself."""
    model = source.open()
    for chunk in chunks:
        yield scored_chunk(source, model, chunk)


def scored_chunk(source: Source, model: Score, chunk: Chunk) -> ScoredChunk:
    """One chunk by an opened gate, timed."""
    begin, before = time.perf_counter(), source.spent.copy()
    found = model(chunk.examples)
    seconds, spent = time.perf_counter() - begin, dict(source.spent - before)
    scores = [GateScore(e.question_id, n, found[n][i]) for n in source.names for i, e in enumerate(chunk.examples)]
    return ScoredChunk(tuple(scores), Timing(source.names, chunk.split, len(chunk.examples), seconds, spent, device()))
