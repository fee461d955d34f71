"""Gates on dialogue turns that need seconds of fitting or none; and the threshold of a gate folder by dev scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from kbtrain import jsonl
from kbtrain.folder import CARD, Threshold, set_threshold
from kbtrain.provenance import file_sha256
from kbtrain.records import GateScore, TurnExample


def fitted(gate: Literal["always", "structural", "dialogue_state"], train: Sequence[TurnExample], folder: Path) -> Any:
    """Fit the gate to labelled turns and save it in ``folder``. Raises :class:`UserError` for a single class."""
    if gate == "always":
        from kbtrain.gates.simple import Always

        return Always()
    if gate == "structural":
        from kbtrain.gates.turns.structural import StructuralGate

        ten_numbers = StructuralGate.fit(train)
        ten_numbers.save(folder / "structural.json")
        return ten_numbers
    from kbtrain.gates.turns.dialogue_state import DialogueStateGate

    state = DialogueStateGate.fit(train)
    state.save(folder)
    return state


def keep_threshold(folder: Path, dev: Sequence[TurnExample], dev_file: Path) -> None:
    """Write the cut of the best F1 on labelled dev turns into the folder's ``gate.json``; nothing without either."""
    known = [turn for turn in dev if turn.label is not None]
    if not known or not (folder / CARD).exists():
        return
    from kbtrain.metrics.dev import best_f1_threshold

    scores = {score.question_id: score.score for score in jsonl.read(GateScore, folder / "scores.jsonl")}
    need = [float(bool(turn.label)) for turn in known]
    cut = best_f1_threshold(need, [scores[turn.id] for turn in known]).value
    found = Threshold(threshold=cut, rule="best_f1", dev_file_sha256=file_sha256(dev_file), n_dev=len(known))
    set_threshold(folder, folder.name, found)
