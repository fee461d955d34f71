"""Write thresholds into gate folders; rules for overwriting one.

``eval/calibrate.py`` and ``eval/end_to_end.py`` both choose thresholds. A threshold goes into the folder of the very
gate that made the scores, under the gate's own name for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError
from kbtrain.gate.card import CARD, Threshold, read_gate_json, set_threshold
from kbtrain.gates.handles import GateHandle, gate_identity


@dataclass(frozen=True)
class Source:
    """The gate behind stored scores: its ``folder``, its own ``name`` for them, and its ``identity`` then."""

    folder: Path
    name: str
    identity: str


def sources_of(gate: GateHandle, run: Path) -> dict[str, dict[str, str]]:
    """The gate behind each of a handle's scores, for their file's metadata; empty for one without a folder.

    A folder inside the run is named relative to it, so that both can be moved.
    """
    if gate.folder is None:
        return {}
    folder = gate.folder.resolve()
    place = folder.relative_to(run.resolve()) if folder.is_relative_to(run.resolve()) else folder
    facts = {"folder": str(place), "identity": gate_identity(folder)}
    return {stored: {**facts, "name": name} for name, stored in gate.own_names.items()}


def source_of(run: Path, meta: Mapping[str, Any], gate: str) -> Source | None:
    """The gate behind stored scores, by their metadata (see ``StoredScores``); None where those do not say."""
    facts = meta.get("gates", {}).get(gate, {})
    if not {"folder", "name"} <= set(facts):
        return None
    return Source(run / facts["folder"], facts["name"], facts.get("identity", ""))


def has_other_gate(source: Source) -> bool:
    """True if the folder holds a gate, but not the one that the scores note."""
    return (source.folder / CARD).exists() and gate_identity(source.folder) != source.identity


def missing_reason(source: Source) -> str:
    """Reason why no threshold can be noted for scores of this gate; empty if it is there as it was."""
    if not (source.folder / CARD).exists():
        return f"{source.folder} no longer exists"
    if has_other_gate(source):
        return f"{source.folder} holds another gate than the one that made the scores"
    return ""


@dataclass(frozen=True)
class ThresholdNote:
    """The threshold of a gate's card afterwards: the new one, or the ``kept`` one; ``old``: the one before."""

    chosen: Threshold
    kept: bool
    old: Threshold | None

    def line(self, gate: str, folder: Path) -> str:
        """A sentence on what was replaced or kept; empty if nothing was."""
        if self.old is None or (self.old.threshold, self.old.rule) == (self.chosen.threshold, self.chosen.rule):
            return ""
        digits = ".4f" if f"{self.old.threshold:.4f}" != f"{self.chosen.threshold:.4f}" else ".9g"
        old, new = (
            f"{'always' if one.always else format(one.threshold, digits)} ({one.rule})"
            for one in (self.old, self.chosen)
        )
        if self.kept:
            return f"{gate}: {folder} keeps its threshold {old}, not {new}; --replace-thresholds stores this one"
        return f"{gate}: {folder} had threshold {old}, now {new}"


def promises_less(chosen: Threshold, old: Threshold) -> bool:
    """True if ``old`` has a guarantee for new questions that ``chosen`` does not imply."""
    before, after = (threshold.evidence.get("guarantee") for threshold in (old, chosen))
    if not before or not after:
        return bool(before)
    same = before.get("promise") == after.get("promise")
    return not same or after["limit"] > before["limit"] or after["delta"] > before["delta"]


def note(folder: Path, name: str, chosen: Threshold, replace: bool = False, keep: bool = False) -> ThresholdNote:
    """Note a threshold under the gate's own name, unless the one that is there stays.

    With ``replace`` none stays. Else a calibrated one stays unless the new one is calibrated too, and one with a
    guarantee unless the new one promises as much; with ``keep`` one by another rule. One that is given again (rule
    ``given``) stays with what is known of it.
    """
    if (stored := read_gate_json(folder).get("thresholds", {}).get(name)) is None:
        set_threshold(folder, name, chosen)
        return ThresholdNote(chosen, False, None)
    old = Threshold.model_validate(stored)
    again = chosen.rule == "given" and not chosen.evidence and chosen.threshold == old.threshold
    weaker = (bool(old.evidence) and not chosen.evidence) or promises_less(chosen, old)
    weaker |= keep and old.rule != chosen.rule and old.chosen_later
    stays = again or (weaker and not replace)
    written = old if stays else chosen
    if again and chosen.test is not None:
        written = old.model_copy(update={"test": chosen.test})
    if written != old or not stays:
        set_threshold(folder, name, written)
    return ThresholdNote(old if again else chosen, stays, old)


def note_calibrated(folder: Path, name: str, chosen: Threshold, replace: bool = False) -> ThresholdNote:
    """As :func:`note`. Raises :class:`UserError` where a guarantee would be lost."""
    outcome = note(folder, name, chosen, replace)
    if outcome.kept and outcome.old is not None:
        raise UserError(
            f"{folder}: gate '{name}' has threshold {outcome.old.shown} with a guarantee of its own; "
            "give --replace to store one that promises less"
        )
    return outcome
