"""Questions to be scored that a gate, or the choice of its threshold, has seen: refused, or counted by split.

Seen is a question itself (by its normalised text), and a question about an entity of the training: what a gate learnt
of that entity it knows every answer. Dialogue turns have their dialogue for an entity.
"""

from __future__ import annotations

from kbtrain.errors import UserError
from kbtrain.evaluation.scoring import ChoiceConfig, ScoringInputs
from kbtrain.gate.gate import Reads
from kbtrain.gate.trained_on import entity_hashes, example_hash, sharing_entities, trained_among
from kbtrain.gates.handles import GateHandle

Counts = dict[str, dict[str, int]]  # by split: "questions" and "entities", where there are any


def seen_in_training(gate: GateHandle, inputs: ScoringInputs, allowed: ChoiceConfig) -> Counts:
    """For each split how many questions the gate was trained on, and how many others share an entity with these.

    Of training questions that are scored only the first count: those beside them share their entities by right.
    Raises :class:`UserError` for what is not allowed.
    """
    folder, reads = gate.folder, inputs.reads
    if folder is None:
        return {}
    parts = [folder / part for part in (gate.card.parts() if gate.card else ())]
    held_out, of_parts = _held_out(gate)
    counts: Counts = {}
    for split, rows in inputs.examples.items():
        trained = {row.id for row in trained_among(folder, rows) if example_hash(row) not in held_out}
        trained |= {r.id for part in parts for r in trained_among(part, rows) if example_hash(r) not in of_parts}
        about = {row.id for row in sharing_entities(folder, rows) if example_hash(row) not in held_out}
        about |= {row.id for part in parts for row in sharing_entities(part, rows)}  # no fold of the whole omits these
        same = [row for row in rows if row.id in trained]
        near = [row for row in rows if row.id in about - trained and split != "train"]
        who = f"{folder}: gate '{gate.name}' was trained on"
        if same and not allowed.allow_trained:
            raise UserError(
                f"{who} {len(same)} of {len(rows)} {split} {reads}s (the first: '{same[0].id}'), so its scores of them "
                "say nothing; remove them from the run, or set allow_trained to score and count them"
            )
        if near and not allowed.allow_entities:
            raise UserError(
                f"{who} {_units(reads)} of {len(near)} of {len(rows)} {split} {reads}s (the first: '{near[0].id}'); "
                "remove them from the run, or set allow_entities to score and count them"
            )
        if same or near:
            counts[split] = {"questions": len(same), "entities": len(near)}
    return counts


def _held_out(gate: GateHandle) -> tuple[set[str], set[str]]:
    """Hashes of the questions whose every score comes from models fitted without them: the gate's own, and its parts.

    Where the gate keeps held-out scores under all of its names, a name that lacks a question was not fitted to it. The
    parts may have been, under another of their names: only a score that is kept is without them.
    """
    hashes = [{*gate.held_out.get(name, ())} for name in gate.names]
    return (set.union(*hashes) if all(hashes) else set()), set.intersection(*hashes)


def seen_messages(gate: str, counts: Counts, reads: Reads) -> list[str]:
    return [
        f"{gate}: trained on {n['questions']} {split} {reads}s, and on {_units(reads)} of {n['entities']} more"
        for split, n in counts.items()
    ]


def dev_in_test(inputs: ScoringInputs, allowed: ChoiceConfig) -> list[str]:
    """Lines on dev questions that are test questions too, or share an entity with them: dev chooses the thresholds that
    test judges. Raises :class:`UserError` for what is not allowed."""
    dev, test, reads = inputs.examples.get("dev", ()), inputs.examples.get("test", ()), inputs.reads
    hashes = {example_hash(row) for row in test}
    entities = {entity for row in test for entity in entity_hashes(row)}
    same = [row for row in dev if example_hash(row) in hashes]
    same_ids = {row.id for row in same}
    near = [row for row in dev if row.id not in same_ids and not entities.isdisjoint(entity_hashes(row))]
    lines = []
    for rows, free, what, flag in (
        (same, allowed.allow_trained, "stand in test too", "allow_trained"),
        (near, allowed.allow_entities, f"share their {_units(reads)} with test", "allow_entities"),
    ):
        if rows and not free:
            raise UserError(
                f"{allowed.run}: {len(rows)} of {len(dev)} dev {reads}s {what} (the first: '{rows[0].id}'), and dev "
                f"chooses the thresholds that test judges; remove them from the run, or set {flag}"
            )
        if rows:
            lines.append(f"{len(rows)} of {len(dev)} dev {reads}s {what}")
    return lines


def _units(reads: Reads) -> str:
    return "entities" if reads == "question" else "dialogues"
