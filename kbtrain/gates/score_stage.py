"""The scoring stage: examples -> chunks -> a gate's file of scores, for questions and dialogue turns alike.

One process writes the file, wherever a chunk is scored (:mod:`kbtrain.gates.score_file`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbtrain.errors import UserError
from kbtrain.gate.card import CARD, Threshold, set_threshold
from kbtrain.gate.gate import Gate
from kbtrain.gates.handles import GateHandle, handle
from kbtrain.gates.registry import kind_of, kinds, read_card
from kbtrain.gates.score_file import ScoreFile, Timing, score_path, stored_inputs
from kbtrain.io import jsonl, provenance
from kbtrain.io.provenance import device
from kbtrain.llm.forecast import Forecast, Measurement, tokens_of
from kbtrain.records import Example, GateExample, GateScore, Split, TurnExample


def plain_examples(path: Path, split: Split) -> list[GateExample]:
    """The examples without a reference of one split. Raises :class:`UserError` without any."""
    examples = [e for e in jsonl.read(GateExample, path) if e.reference is None]
    wrong = next((e for e in examples if e.split != split), None)
    if wrong is not None:
        raise UserError(f"{path}: example '{wrong.id}' is of split '{wrong.split}', expected '{split}'")
    if not examples:
        raise UserError(f"{path}: no example without a reference to score; run data_gen/build.py first")
    return examples


@dataclass(frozen=True)
class Chunk:
    """Examples of one split that are scored together: a score can depend on its batch in the last digits."""

    split: Split
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class ScoredChunk:
    """A chunk's scores and what they took."""

    scores: tuple[GateScore, ...]
    timing: Timing


Engine = Callable[[GateHandle, Sequence[Chunk]], Iterator[ScoredChunk]]


def scored_id(example: Example) -> str:
    """The id that a score is stored under: the question's, or the turn's."""
    return example.id if isinstance(example, TurnExample) else example.question_id


def chunks_left(
    file: ScoreFile, gate: GateHandle, examples: Mapping[Split, Sequence[Example]], size: int
) -> list[Chunk]:
    """The chunks of which any score is missing, each as a whole."""
    chunks = [Chunk(s, tuple(rows[i : i + size])) for s, rows in examples.items() for i in range(0, len(rows), size)]
    return [c for c in chunks if any((n, scored_id(e)) not in file.done for n in gate.names for e in c.examples)]


def examples_left(
    run: Path, gate: GateHandle, inputs: Mapping[str, str], examples: Mapping[Split, Sequence[Example]]
) -> list[Example]:
    """The examples without a stored score of these inputs; nothing is written."""
    path = score_path(run, gate.name)
    done: set[tuple[str, str]] = set()
    if stored_inputs(path, inputs) is not None:
        done = {(record.gate, record.question_id) for record in jsonl.read(GateScore, path)}
    rows = [row for split in examples.values() for row in split]
    return [row for row in rows if any((name, scored_id(row)) not in done for name in gate.names)]


def price_of_scores(gate: GateHandle, rows: Sequence[Example], measured: int, prices: Path) -> list[str]:
    """Requests, tokens, money and time of scoring the rows, a line each; time by ``measured`` rows (0: none)."""
    passes = [prompt_pass for row in rows for prompt_pass in gate.passes(row)]
    measurement = measured_scores(gate, rows[:: max(1, len(rows) // measured)][:measured]) if measured else None
    tokens_in = round(sum(tokens_of(prompt_pass.prompt) for prompt_pass in passes))
    most = sum(prompt_pass.tokens for prompt_pass in passes)
    forecast = Forecast(len(rows), len(passes), len(rows), tokens_in, most, gate.server, measurement)
    return forecast.lines(prices, "examples", "scores")


def measured_scores(gate: GateHandle, some: Sequence[Example]) -> Measurement:
    """Score a few examples and throw the scores away; opening the gate is not counted."""
    opened = gate.open()
    start, before = time.perf_counter(), opened.spent["tokens"]
    gate.scores(opened, some)
    return Measurement(len(some), len(some), time.perf_counter() - start, opened.spent["tokens"] - before)


def score_chunks(file: ScoreFile, gate: GateHandle, chunks: Sequence[Chunk], engine: Engine) -> Iterator[int]:
    """Score and write; yields how many examples were written each time. Without chunks nothing is opened."""
    if chunks:
        for scored in engine(gate, chunks):
            file.append(scored.scores, scored.timing)
            yield scored.timing.n


def local(gate: GateHandle, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
    """The engine of one process: it opens the gate itself."""
    opened = gate.open()
    for chunk in chunks:
        yield scored_chunk(gate, opened, chunk)


def scored_chunk(gate: GateHandle, opened: Gate, chunk: Chunk) -> ScoredChunk:
    """One chunk by an opened gate, timed."""
    begin, before = time.perf_counter(), Counter(opened.spent)
    values = gate.scores(opened, chunk.examples)
    seconds, after = time.perf_counter() - begin, opened.spent
    spent = {name: after[name] - before[name] for name in after}  # 0 stays: no request is less than the usual one
    names = gate.names
    scores = [GateScore(scored_id(e), n, values[n][i]) for n in names for i, e in enumerate(chunk.examples)]
    return ScoredChunk(tuple(scores), Timing(names, chunk.split, len(chunk.examples), seconds, spent, device()))


def gates_of_run(run: Path, dtype: str = "auto", device: str = "auto", states: str | None = None) -> list[GateHandle]:
    """Gates with folders in a run folder, by kind, then name."""
    order, folders = list(kinds()), (path.parent for path in run.glob(f"*/{CARD}"))
    ordered = sorted(folders, key=lambda folder: (order.index(kind_of(folder)[0]), folder.name))
    return [handle(folder, dtype, device, states=states) for folder in ordered]


def note_best_f1(folder: Path, gate: GateHandle, scores: Path, dev: Sequence[Example], dev_file: Path) -> None:
    """Note the threshold of the best F1 on labelled dev turns in a gate's card; one that is there stays."""
    labelled = [turn for turn in dev if isinstance(turn, TurnExample) and turn.label is not None]
    card = read_card(folder)
    name = card.names()[0]
    if not labelled or name in card.thresholds:
        return
    from kbtrain.metrics.dev import best_f1_threshold

    by_id = {row.question_id: row.score for row in jsonl.read(GateScore, scores) if row.gate == gate.names[0]}
    best = best_f1_threshold([float(bool(turn.label)) for turn in labelled], [by_id[turn.id] for turn in labelled])
    chosen = Threshold(
        threshold=best.value, rule="best_f1", dev_file_sha256=provenance.file_sha256(dev_file), n_dev=len(labelled)
    )
    set_threshold(folder, name, chosen)
