"""Labelled turns of a run folder, and a gate's dev and test scores of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from kbtrain.errors import UserError, at
from kbtrain.evaluation.run_folder import first_ids
from kbtrain.evaluation.seen import Seen, seen_of
from kbtrain.gates.thresholds_store import has_other_gate, missing_reason, source_of
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_current, check_unchanged, meta_of
from kbtrain.metrics.dev import best_f1_threshold
from kbtrain.metrics.turns import SeedScores
from kbtrain.records import GateScore, Split, TurnExample


def labelled_turns(source: Path, split: Split) -> list[TurnExample]:
    """The labelled turns of a split. Raises :class:`UserError` without any, and for a file that was changed since it
    was made."""
    check_unchanged(source)
    turns = [t for t in jsonl.read(TurnExample, source) if t.split == split and t.label is not None]
    if not turns:
        raise UserError(f"{source}: no {split} turn with a label")
    return turns


def score_file(run: Path, gate: Path) -> Path:
    """The scores of a gate in a run folder: ``RUN/scores/<gate>.jsonl``, or ``scores.jsonl`` in the gate's folder.

    A training leaves them in the second place. Raises :class:`UserError` without
    scores, and for scores of other turns than the run's, or of an older gate.
    """
    inside = run / gate / "scores.jsonl"
    stored = run / "scores" / f"{gate.name}.jsonl" if len(gate.parts) == 1 else inside
    scores = next((path for path in (stored, inside) if path_exists(path)), None)
    if scores is None:
        raise UserError(f"{stored}: no such file, nor {inside}; run eval/score.py --run {run} first")
    _check_current(scores, run)
    return scores


def _check_current(path: Path, run: Path) -> None:
    command = f"eval/score.py --run {run}"
    check_current(path, run / "turns.jsonl", command=command)  # own scores, or of a file with features, pass
    meta = meta_of(path)
    for name in meta.get("gates", {}):
        gate = source_of(run, meta, name)
        if gate and has_other_gate(gate):
            raise UserError(f"{at(path)}: {missing_reason(gate)}; run {command} again")


def seen_in_files(files: Mapping[str, Sequence[Path]]) -> list[str]:
    """The gates, of all their score files together, whose training knew some of the turns: names and numbers."""
    counts = {
        gate: sum((seen_of(meta, name) for meta in map(meta_of, paths) for name in meta.get("seen", {})), Seen())
        for gate, paths in files.items()
    }  # fmt: skip
    return [f"{gate}{n.mark}" for gate, n in counts.items() if n.mark]


def seed_scores(path: Path, turns: Mapping[Split, Sequence[TurnExample]]) -> SeedScores:
    """Dev scores choose the threshold, test scores are kept. Raises :class:`UserError` for turns without a score."""
    scores = {score.question_id: score.score for score in jsonl.read(GateScore, path)}
    missing = [turn.id for split in ("dev", "test") for turn in turns[split] if turn.id not in scores]
    if missing:
        names = first_ids(missing, "turn")
        raise UserError(f"{at(path)}: no score for {names}; score dev and test of the same turns.jsonl")
    dev, test = ([scores[turn.id] for turn in turns[split]] for split in ("dev", "test"))
    cut = best_f1_threshold([float(bool(turn.label)) for turn in turns["dev"]], dev)
    return SeedScores(np.array(test), cut.value)
