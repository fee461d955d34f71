"""Score the dev and test questions, or dialogue turns, of a run folder with every gate in it.

The gates are all RUN/*/gate.json; --model adds those that ask an untrained language model (prompt; for turns
ragate_prompt_zero_shot and ragate_prompt_in_context, and the same with _know, which read knowledge, if --only names
them). Writes RUN/scores/<gate>.jsonl (higher = retrieval more needed) with the seconds per gate in its .meta.json.
Scores stay until something that they depend on changes: run it again after an interruption, or with another gate.
--engine ray distributes the work over a Ray cluster.

The stage stops at dev and test questions that a gate was trained on, or that ask about an entity of its training, and
at dev questions that are in test (or share an entity with it). With allow_trained and allow_entities they are scored,
and every table of that gate counts them.

Examples:
  kbtrain run score --run runs/demo --model smollm2-135m-instruct
  kbtrain run score --run runs/demo --only kbm --dtype fp32
  kbtrain run score --run runs/ketod --only ragate_prompt_in_context_know --model smollm2-135m-instruct
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.scoring import (
    ChoiceConfig,
    ScoringInputs,
    check_own_prompts,
    choose_gates,
    from_members,
    read_inputs,
    with_evidence,
    within_answer,
)
from kbtrain.gate.gate import Reads
from kbtrain.gate.trained_on import entity_hashes, example_hash, sharing_entities, trained_among
from kbtrain.gates.handles import GateHandle
from kbtrain.gates.scoring import Engine, ScoreFile, chunks_left, files_of_models, is_scored, score_chunks, score_path
from kbtrain.gates.thresholds_store import sources_of
from kbtrain.io.files import writing
from kbtrain.io.provenance import check_unchanged, file_sha256, meta_of
from kbtrain.runtime.progress import progress_bar

Counts = dict[str, dict[str, int]]  # by split: "questions" and "entities", where there are any


def main(config: ChoiceConfig) -> None:
    started = time.monotonic()
    inputs = read_inputs(config)
    check_unchanged(*inputs.files.values())
    gates = choose_gates(config, inputs)
    check_own_prompts(inputs, gates)
    for line in dev_in_test(inputs, config):
        print(line)
    hashes = {name: file_sha256(file) for name, file in inputs.files.items()}
    scored = []
    for gate in gates:
        with writing(score_path(config.run, gate.name)):  # other gates of the run may be scored meanwhile
            scored.append(score(config, inputs, gate, hashes))
    print(summary(config, inputs, scored, time.monotonic() - started))


def summary(config: ChoiceConfig, inputs: ScoringInputs, scored: Sequence[Scored], seconds: float) -> str:
    """A sentence: how many examples were scored now by which gates, and whose scores were there."""
    by_number: dict[int, list[str]] = {}
    for result in scored:
        by_number.setdefault(result.n, []).extend(result.names)
    complete, total = by_number.pop(0, []), sum(map(len, inputs.examples.values()))
    counts = ", ".join(f"{n} {inputs.reads}s with {', '.join(names)}" for n, names in by_number.items())
    parts = [f"scored {counts} in {seconds:.0f} s"] if counts else []
    parts += [f"all {total} {inputs.reads}s with {', '.join(complete)} were scored before"] if complete else []
    note = "; scores of other inputs were replaced" if any(result.restarted for result in scored) else ""
    return f"{'; '.join(parts)} -> {score_path(config.run, '*')}{note}"


def inputs_of(config: ChoiceConfig, gate: GateHandle, hashes: Mapping[str, str]) -> dict[str, str]:
    """Inputs that a gate's stored scores depend on."""
    gate_facts = {"gate": gate.identity, "dtype": config.dtype, "chunk": str(config.chunk)}
    return {**hashes, **gate_facts, **files_of_models(gate.models)}


class Scored(NamedTuple):
    """A gate's scores by ``names``: ``n`` examples scored now; ``restarted``: in place of scores of other inputs."""

    names: tuple[str, ...]
    n: int
    restarted: bool


def score(config: ChoiceConfig, to_score: ScoringInputs, gate: GateHandle, hashes: Mapping[str, str]) -> Scored:
    """One gate's file."""
    started, target = time.monotonic(), score_path(config.run, gate.name)
    to_score, hashes = with_evidence(config.run, gate, to_score, hashes)
    trained = seen_in_training(gate, to_score, config)
    if trained:
        print("\n".join(seen_messages(gate.name, trained, to_score.reads)))
    inputs = inputs_of(config, gate, hashes)
    with ScoreFile(target, inputs) as scores:
        chunks = chunks_left(scores, gate, to_score.examples, config.chunk)
        total = sum(len(chunk.examples) for chunk in chunks)
        with progress_bar(desc=gate.name, unit=f"{to_score.reads}s", total=total, disable=not chunks) as bar:
            members = members_engine(config, to_score, gate, hashes) if chunks else None
            for n in score_chunks(scores, gate, chunks, members or config.scoring()):
                bar.update(n)
        within = within_answer(config.run, gate, config.dtype)
        extra: dict[str, Any] = {
            "server": dict.fromkeys(gate.names, True) if gate.server else {},
            **({"within_answer": dict.fromkeys(gate.names, True)} if within else {}),
            **({"after_search": dict.fromkeys(gate.names, True)} if gate.stage == "search" else {}),
            "model": config.model if gate.opening and gate.opening.prompt else None,
            "trained_on": {split: n["questions"] for split, n in trained.items() if n["questions"]},
            "seen": {name: trained for name in gate.names if trained},
            "asked": to_score.split_hashes(),
            "gates": sources_of(gate, config.run),
        }
        scores.finish("score", config, list(to_score.files.values()), started, gate.names, **extra)
    for split, spent in meta_of(target)["spent_per_question"][gate.names[0]].items():
        lost = spent.get("neither", 0) + spent.get("refused", 0)
        if lost and members is None:  # else this was said of the members
            why = f"no usable reply to {lost:.1%} of the {split} {to_score.reads}s (refused, or neither yes nor no)"
            print(f"warning: {gate.name}: {why}; their scores say search")
    return Scored(gate.names, total, scores.restarted)


def members_engine(
    config: ChoiceConfig, inputs: ScoringInputs, gate: GateHandle, hashes: Mapping[str, str]
) -> Engine | None:
    """For a gate made of others whose scores are all stored: one that reads them. None: the members are asked."""
    if gate.card is None or not gate.card.parts():
        return None

    def is_stored(member: GateHandle) -> bool:
        member_inputs, files = with_evidence(config.run, member, inputs, hashes)
        if any(member.has_held_out(rows) for rows in member_inputs.examples.values()):
            return False  # it reads what the member says itself
        return is_scored(config.run, member, inputs_of(config, member, files), member_inputs.examples)

    return from_members(gate, config.run, is_stored)


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


if __name__ == "__main__":
    run_script(main, ChoiceConfig, __doc__)
