"""Examples of a run folder that gates are to score, and the prompts that a gate must share to score them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from kbtrain.distributed.scoring import ScoringConfig
from kbtrain.errors import UserError
from kbtrain.gate.gate import Reads
from kbtrain.gates.handles import GateHandle
from kbtrain.gates.registry import read_card
from kbtrain.gates.scoring import plain_examples
from kbtrain.gates.training_overlap import AllowedOverlap
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import file_sha256
from kbtrain.records import Example, Split, TurnExample
from kbtrain.retrieval.base import attach_hits
from kbtrain.training.data import label_rule, own_prompts


class ScoringInputsConfig(ScoringConfig):
    """Keys that say which examples are scored."""

    run: Path = Field(Path("runs/demo"), description="run folder with examples/ or turns.jsonl")
    turns: Path | None = Field(None, description="another file of turns, e.g. turns_features.jsonl of the run")
    allow_trained: bool = Field(
        False, description="score questions that a gate was trained on, or dev has of test; all tables count them"
    )
    allow_entities: bool = Field(
        False, description="score questions about entities of a gate's training, or dev's of test's; all tables count"
    )

    def allowed(self) -> AllowedOverlap:
        """Settings of questions that are counted instead of refused."""
        return AllowedOverlap(self.allow_trained, self.allow_entities)


@dataclass(frozen=True)
class ScoringInputs:
    """Questions or turns to score by split, and their files by the name under which the hash is stored.

    ``train`` and ``dev``: all turns of these splits, also where others are scored.
    """

    reads: Reads
    examples: Mapping[Split, Sequence[Example]]
    files: Mapping[str, Path]
    train: Sequence[TurnExample] = ()
    dev: Sequence[TurnExample] = ()


def read_inputs(config: ScoringInputsConfig) -> ScoringInputs:
    """Turns where the run folder has turns.jsonl, else questions without a reference."""
    source = config.turns or config.run / "turns.jsonl"
    if not path_exists(source) and config.turns is None:
        files = {f"{split}.jsonl": config.run / "examples" / f"{split}.jsonl" for split in config.splits}
        examples = {split: plain_examples(files[f"{split}.jsonl"], split) for split in config.splits}
        return ScoringInputs("question", examples, files)
    turns = list(jsonl.read(TurnExample, source))
    rows = {split: [turn for turn in turns if turn.split == split] for split in config.splits}
    if not any(rows.values()):
        raise UserError(f"{source}: no {' or '.join(config.splits)} turn to score")
    train, dev = ([turn for turn in turns if turn.split == split] for split in ("train", "dev"))
    return ScoringInputs("turn", rows, {"turns.jsonl": source}, train, dev)


def check_own_prompts(inputs: ScoringInputs, gates: Sequence[GateHandle]) -> None:
    """Raise :class:`UserError` for a gate of a folder that is about answers to other prompts than the run's."""
    path = next(iter(inputs.files.values()))
    rule = label_rule(path)
    if inputs.reads != "question" or not rule:
        return
    answered = own_prompts(rule, path)
    for gate in gates:
        if gate.folder is None:
            continue
        card = read_card(gate.folder)
        if (card.label_rule or hasattr(card, "prompt_fingerprint")) and card.own_prompts() != answered:
            of_gate, of_run = (p.fingerprint() if p else "the project's" for p in (card.own_prompts(), answered))
            raise UserError(
                f"{gate.folder}: gate '{gate.name}' is about answers to prompts {of_gate}, the run's answers "
                f"are to {of_run}; make the gate from this run, or leave it out (only)"
            )


def attach_passages(
    run: Path, inputs: ScoringInputs, hashes: Mapping[str, str]
) -> tuple[ScoringInputs, dict[str, str]]:
    """The questions with the passages that were found for them, and all hashes."""
    source = run / "evidence.jsonl"
    examples = {split: attach_hits(rows, source) for split, rows in inputs.examples.items()}
    files = {**inputs.files, "evidence.jsonl": source}
    return replace(inputs, examples=examples, files=files), {**hashes, "evidence.jsonl": file_sha256(source)}
