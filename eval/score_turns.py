"""Score dialogue turns by the gates that need no training of their own: RUN/turns.jsonl -> RUN/gates/NAME/scores.jsonl.

always retrieves for every turn; structural is a logistic regression on ten numbers about what was said so far (fitted
on train), dialogue_state another one on acts, services and slots of the past; average is the mean of other gates' log
odds (--members); ragate_prompt_zero_shot and ragate_prompt_in_context ask a language model (RAGate, appendix A).

Examples:
  python eval/score_turns.py --run runs/ketod --gate structural
  python eval/score_turns.py --run runs/ketod --gate average --members "[gates/dialogue_state, encoder]"
  python eval/score_turns.py --run runs/ketod --gate ragate_prompt_in_context --model smollm2-135m-instruct
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.gate_folder import CARD, read_json
from kbtrain.gates.average import AverageGate
from kbtrain.gates.registry import fitted, keep_threshold
from kbtrain.gates.score_stage import ScoreFile, Timing
from kbtrain.progress import progress_bar
from kbtrain.provenance import file_sha256, write_meta
from kbtrain.records import GateScore, TurnExample

Gate = Literal[
    "always", "structural", "dialogue_state", "average", "ragate_prompt_zero_shot", "ragate_prompt_in_context"
]


class ScoreTurnsConfig(Config):
    run: Path = Field(Path("runs/ketod"), description="run folder with turns.jsonl")
    turns: Path | None = Field(None, description="another file of turns, e.g. turns_features.jsonl of the run")
    gate: Gate = Field("structural", description="one of those above")
    members: list[Path] = Field([], description="gate average: gate folders, relative to the run")
    model: str = Field("smollm2-135m-instruct", description="language model of the prompts")
    know: bool = Field(False, description="the prompts show the turn's knowledge")
    dtype: str = Field("auto", description="auto, bf16, fp32 or fp16")
    device: str = Field("auto", description="auto, cpu or cuda")
    batch: int = Field(64, ge=1, description="turns scored at a time; finished ones are kept")


def main(config: ScoreTurnsConfig) -> None:
    started = time.time()
    source = config.turns or config.run / "turns.jsonl"
    turns = list(jsonl.read(TurnExample, source))
    asked = [turn for turn in turns if turn.split != "train"]
    if not asked:
        raise UserError(f"{source}: no dev or test turn to score")
    folder = config.run / "gates" / (config.gate + "_know" * config.know)
    inputs = {"turns": file_sha256(source), **{str(member): file_sha256(member / CARD) for member in members(config)}}
    inputs |= config.model_dump(mode="json", exclude={"run", "turns", "batch", "members"})
    target = folder / "scores.jsonl"
    with ScoreFile(target, inputs) as out:
        done = {name for _, name in out.done}
        rest = [turn for turn in asked if turn.id not in done]
        gate = opened(config, turns, folder) if rest else None
        for i in progress_bar(range(0, len(rest), config.batch), desc=config.gate, unit="batches"):
            batch, begun = rest[i : i + config.batch], time.time()
            scores = gate.score(batch)
            rows = [GateScore(turn.id, folder.name, score) for turn, score in zip(batch, scores, strict=True)]
            out.append(rows, Timing((folder.name,), batch[0].split, len(batch), time.time() - begun))
    keep_threshold(folder, [turn for turn in turns if turn.split == "dev"], source)
    facts: dict[str, Any] = {"seed": 0, "turns_cut": getattr(gate, "cut", 0)}
    options = config.model_dump(mode="json")
    write_meta(target, stage="score_turns", config=options, inputs=[source], extra=facts, started=started)
    print(f"{len(asked)} turns scored by {folder.name}, {len(rest)} of them now -> {target}")


def members(config: ScoreTurnsConfig) -> list[Path]:
    folders = [config.run / member for member in config.members]
    for folder in folders:  # a wrong one is told at once
        read_json(folder)
    if bool(folders) == (config.gate == "average"):
        return folders
    raise UserError("gate 'average' and the key 'members' belong together: two gate folders at least")


def opened(config: ScoreTurnsConfig, turns: Sequence[TurnExample], folder: Path) -> Any:
    if config.gate == "average":
        return AverageGate.of(folder, members(config), config.dtype, config.device)
    if not config.gate.startswith("ragate_prompt"):
        return fitted(config.gate, [turn for turn in turns if turn.split == "train"], folder)
    from kbtrain.gates.ragate.prompt import RagatePrompt
    from kbtrain.models.load import load_model

    shots: Any = config.gate.removeprefix("ragate_prompt_")
    return RagatePrompt(*load_model(config.model, config.dtype, config.device), shots, config.know)


if __name__ == "__main__":
    run_script(main, ScoreTurnsConfig, __doc__)
