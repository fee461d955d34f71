"""Train a response generator on any causal language model, after KETOD's SimpleTOD-plus (RAGate, section 5.3).

Reads turns (data_gen/collect_turns.py; knowledge of data_gen/turn_features.py), writes a folder that
data_gen/respond.py generates with. Input: the dialogue so far, its oldest turns cut away; knowledge snippets where
there are some (gold first); then the response, which alone has a loss: the enriched one where people wrote one. A
killed run goes on when the same command is given again, and ends with the same weights.

Examples:
  accelerate launch --config_file ds_configs/accelerate_cpu.yaml recipes/train_dialogue.py \\
      --config recipes/configs/dialogue_smollm2.yaml --train runs/ketod/turns_features.jsonl \\
      --dev runs/ketod/turns_features.jsonl --output runs/ketod/dialogue
  python recipes/train_dialogue.py --config recipes/configs/dialogue_gpt2.yaml ... --dry-run   (no weights are loaded)
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from kbtrain.config import run_script
from kbtrain.dialogue.responder import CARD, Reads
from kbtrain.provenance import file_sha256
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.run import claim, finished, identity, settled

NOT_PART_OF_A_RUN = frozenset({"output", "snippets", "dry_run", "keep_checkpoints", "report_to"})


class TrainDialogueConfig(TrainingConfig):
    """Settings of this recipe."""

    snippets: Path | None = Field(None, description="the dialogues' knowledge (snippets.jsonl): gold snippets go first")
    know: Literal["none", "enriched", "all"] = Field("enriched", description="turns that read knowledge in training")
    k: int = Field(3, ge=1, description="snippets of a turn that reads knowledge")
    acts: bool = Field(False, description="also read what the turn does (gold acts, as in the paper's comparison)")
    max_length: int = Field(512, ge=32, description="tokens of prompt and response; the oldest turns are left out")
    knowledge_tokens: int = Field(160, ge=8, description="tokens of all snippets together, shared out")
    response_tokens: int = Field(80, ge=4, description="longest response, end token counted")
    select: Literal["loss", "last"] = Field("loss", description="checkpoint kept: best dev loss, or the last")  # type: ignore[assignment]

    @model_validator(mode="after")
    def _possible(self) -> TrainDialogueConfig:
        if self.select == "loss" and self.dev is None:
            raise ValueError("select: loss needs a dev file; give --dev, or set select: last")
        if self.max_length < self.knowledge_tokens + self.response_tokens + 16:
            raise ValueError("max_length must be above knowledge_tokens + response_tokens + 16: the rest is context")
        return self

    def reads(self) -> Reads:
        names = ("max_length", "response_tokens", "knowledge_tokens", "acts")
        return Reads(**{name: getattr(self, name) for name in names})


def say(text: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def main(config: TrainDialogueConfig) -> None:
    started = time.time()
    from kbtrain.dialogue.train_responder import read_dialogue_data

    data = read_dialogue_data(config.train, config.dev, config.snippets, config.know, config.k)
    for what, count in data.lacking.items():
        say(f"train_dialogue: {what}: {count}")
    if config.dry_run:
        return say(dry_run(config, data))

    from kbtrain.models.load import choose_device
    from kbtrain.training.processes import main_first, start_processes

    device = choose_device(config.device)
    processes = start_processes(device)
    run = identity(config.model_dump(mode="json"), config.train, config.dev, NOT_PART_OF_A_RUN)
    run["snippets_sha256"] = file_sha256(config.snippets) if config.snippets else None
    main_first(lambda: claim(config.output, run))
    if finished(config.output, CARD):
        return say(f"train_dialogue: {config.output} is finished already; nothing to do")
    trainer, tokenizer, facts = train(config, data, device, processes)
    from kbtrain.models.adapters import open_base

    model = trainer.plain_model(lambda: open_base(config.model, "full", device, facts["compute"])[0])
    if trainer.args.should_save:
        from kbtrain.dialogue.responder import Responder
        from kbtrain.dialogue.train_responder import finish_dialogue

        responder, rows = Responder(model, tokenizer, config.reads()), trainer.dev or trainer.rows
        run |= {**facts, "device": device, "processes": processes, "seconds": round(time.time() - started)}
        say(f"train_dialogue: {finish_dialogue(config, responder, data, rows, trainer.state, run)}")
    trainer.accelerator.wait_for_everyone()


def train(config: TrainDialogueConfig, data: Any, device: str, processes: int) -> tuple[Any, Any, dict[str, Any]]:
    from dataclasses import asdict

    from transformers.utils.logging import disable_progress_bar

    from kbtrain.dialogue.responder import ResponsePrompts
    from kbtrain.dialogue.train_responder import DialogueTrainer, lesson_rows
    from kbtrain.models.adapters import compute_of, open_base, trainable
    from kbtrain.training.checks import check_base, check_fits, check_rows
    from kbtrain.training.plan.plan import planned
    from kbtrain.training.processes import main_first

    disable_progress_bar()  # transformers' own, of loading and writing
    prompts = ResponsePrompts(check_base(config.model, "full", config.dtype, device), config.reads())
    rows, cut = lesson_rows(prompts, [*data.train, *data.dev])
    check_rows(rows, [lesson.turn.id for lesson in (*data.train, *data.dev)])
    compute = main_first(
        lambda: settled(config.output, "compute", lambda: compute_of(config.model, config.dtype, device))
    )
    check_fits(planned(config), device, max(len(row.ids) for row in rows), processes)
    base, tokenizer = open_base(config.model, "full", device, compute)
    arguments = training_arguments(config, compute, device, has_dev=bool(data.dev))
    model, n = trainable(base, None, config.gradient_checkpointing), len(data.train)
    trainer = DialogueTrainer(model, tokenizer, arguments, rows[:n], rows[n:], progress_bar())
    from kbtrain.training.finish import train_to_end

    train_to_end(trainer, config.output, say)
    return trainer, tokenizer, {"compute": compute, **asdict(cut)}


def dry_run(config: TrainDialogueConfig, data: Any) -> str:
    from kbtrain.dialogue.responder import ResponsePrompts
    from kbtrain.dialogue.train_responder import answer_tokens, lesson_rows
    from kbtrain.training.checks import check_base, count_steps

    tokenizer = check_base(config.model, "full", config.dtype, "cpu" if config.device == "cpu" else "auto")
    rows, cut = lesson_rows(ResponsePrompts(tokenizer, config.reads()), data.train)
    shown = next((i for i, lesson in enumerate(data.train) if lesson.hits), 0)
    n = answer_tokens(rows[shown])
    text = f"{tokenizer.decode(rows[shown].ids[:-n])}[[{tokenizer.decode(rows[shown].ids[-n:])}]]"
    lengths = sorted(len(row.ids) for row in rows)
    group = config.device_batch_size * config.gradient_accumulation_steps * int(os.environ.get("WORLD_SIZE", "1"))
    return (
        f"{text}\ndry run: {len(rows)} turns, {sum(bool(lesson.hits) for lesson in data.train)} with knowledge, of "
        f"{lengths[0]}-{lengths[-1]} tokens (median {lengths[len(lengths) // 2]}, {sum(lengths)} in all); cut: "
        f"{cut.turns_cut} old turns, {cut.knowledge_cut} tokens of knowledge, {cut.responses_cut} of responses; "
        f"{count_steps(len(rows), group, config.epochs)} steps of {group} rows"
    )


def progress_bar() -> Any:
    from tqdm import tqdm

    bar = tqdm(unit="step", disable=int(os.environ.get("RANK", "0")) > 0)

    def show(step: int, steps: int, logs: Mapping[str, float]) -> None:
        bar.total = steps
        bar.update(step - bar.n)
        if "eval_loss" in logs:
            bar.write(f"step {step}: dev loss {logs['eval_loss']:.3f}")

    return show


if __name__ == "__main__":
    run_script(main, TrainDialogueConfig, __doc__)
