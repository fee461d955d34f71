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
from kbtrain.evaluation.training_overlap import dev_in_test, seen_in_training, seen_messages
from kbtrain.gates.handles import GateHandle
from kbtrain.gates.scoring import (
    Engine,
    ScoreFile,
    chunks_left,
    files_of_models,
    is_scored,
    score_chunks,
    score_path,
)
from kbtrain.gates.thresholds_store import sources_of
from kbtrain.io.files import writing
from kbtrain.io.provenance import check_unchanged, file_sha256
from kbtrain.runtime.progress import progress_bar


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
            engine = (members_engine(config, to_score, gate, hashes) if chunks else None) or config.scoring()
            for n in score_chunks(scores, gate, chunks, engine):
                bar.update(n)
        within = within_answer(config.run, gate, config.dtype)
        extra: dict[str, Any] = {
            "server": dict.fromkeys(gate.names, True) if gate.server else {},
            **({"within_answer": dict.fromkeys(gate.names, True)} if within else {}),
            **({"after_search": dict.fromkeys(gate.names, True)} if gate.stage == "search" else {}),
            "model": config.model if gate.opening and gate.opening.prompt else None,
            "trained_on": {split: n["questions"] for split, n in trained.items() if n["questions"]},
            "seen": {name: trained for name in gate.names if trained},
            "gates": sources_of(gate, config.run),
        }
        scores.finish("score", config, list(to_score.files.values()), started, gate.names, **extra)
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


if __name__ == "__main__":
    run_script(main, ChoiceConfig, __doc__)
