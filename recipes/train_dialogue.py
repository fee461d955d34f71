"""Train a response generator on any causal language model, after KETOD's SimpleTOD-plus (RAGate, section 5.3).

Reads turns (data_gen/collect_turns.py; knowledge of data_gen/turn_features.py), writes a folder that
data_gen/respond.py generates with. Input: the dialogue so far, its oldest turns cut away; knowledge snippets where
there are some (gold first); then the response, which alone has a loss: the enriched one where people wrote one. A
killed run resumes when the same command is given again, and ends with the same weights.

Examples:
  accelerate launch --config_file ds_configs/accelerate_cpu.yaml recipes/train_dialogue.py \\
      --config recipes/configs/dialogue_smollm2.yaml --train runs/ketod/turns_features.jsonl \\
      --dev runs/ketod/turns_features.jsonl --output runs/ketod/dialogue
  python recipes/train_dialogue.py --config recipes/configs/dialogue_gpt2.yaml ... --dry-run   (no weights are loaded)
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from kbtrain.config import run_script
from kbtrain.dialogue.responder import CARD, Reads, Responder, ResponsePrompts
from kbtrain.io.provenance import file_sha256
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from kbtrain.dialogue.train_responder import DialogueData, DialogueTrainer


class TrainDialogueConfig(TrainingConfig):
    not_part_of_a_run = TrainingConfig.not_part_of_a_run | {"snippets"}  # their content is

    snippets: Path | None = Field(None, description="the dialogues' knowledge (snippets.jsonl): gold snippets go first")
    know: Literal["none", "enriched", "all"] = Field("enriched", description="turns that read knowledge in training")
    k: int = Field(3, ge=1, description="snippets of a turn that reads knowledge")
    acts: bool = Field(False, description="also read what the turn does (gold acts, as in the paper's comparison)")
    act_values: bool = Field(
        False, description="with acts: their slots and values too, as KETOD's generator reads them"
    )
    max_length: int = Field(512, ge=32, description="tokens of prompt and response; the oldest turns are skipped")
    knowledge_tokens: int = Field(160, ge=8, description="tokens of all snippets together, shared out")
    response_tokens: int = Field(80, ge=4, description="longest response, end token counted")
    select: Literal["loss", "last"] = Field("loss", description="checkpoint kept: best dev loss, or the last")  # type: ignore[assignment]

    @model_validator(mode="after")
    def _possible(self) -> TrainDialogueConfig:
        if self.select == "loss" and self.dev is None:
            raise ValueError("key 'select': loss needs a dev file; give --dev, or set select: last")
        if self.max_length < self.knowledge_tokens + self.response_tokens + 16:
            raise ValueError("max_length must be above knowledge_tokens + response_tokens + 16: the rest is context")
        return self

    @model_validator(mode="after")
    def _values_of_acts(self) -> TrainDialogueConfig:
        if self.act_values and not self.acts:
            raise ValueError("act_values needs acts: true")
        return self

    def reads(self) -> Reads:
        names = ("max_length", "response_tokens", "knowledge_tokens", "acts", "act_values")
        return Reads(**{name: getattr(self, name) for name in names})


def main(config: TrainDialogueConfig) -> None:
    from kbtrain.dialogue.train_responder import read_dialogue_data

    recipe = Recipe("train_dialogue", config)
    data = read_dialogue_data(config.train, config.dev, config.snippets, config.know, config.k, config.act_values)
    for lack, count in data.lacking.items():
        recipe.say(f"{lack}: {count}")
    if config.dry_run:
        return recipe.show(dry_run(config, data))
    if not recipe.claim(CARD, snippets_sha256=file_sha256(config.snippets) if config.snippets else None):
        return None
    trainer, tokenizer, facts = train(recipe, config, data)
    from kbtrain.models.adapters import open_base

    model = trainer.plain_model(lambda: open_base(config.model, "full", recipe.device, facts["compute"])[0])
    if recipe.first:
        from kbtrain.dialogue.train_responder import ResponderEnding

        responder, rows = Responder(model, tokenizer, config.reads()), trainer.dev or trainer.rows
        recipe.say(ResponderEnding(config, responder, data, rows, trainer.state, recipe.facts(**facts)).finish())
    return recipe.leave()


def train(
    recipe: Recipe, config: TrainDialogueConfig, data: DialogueData
) -> tuple[DialogueTrainer, Any, dict[str, Any]]:
    from dataclasses import asdict

    from kbtrain.dialogue.train_responder import DialogueTrainer, lesson_rows
    from kbtrain.models.adapters import compute_of, open_trainable
    from kbtrain.training.checks import check_base, check_fits, check_rows
    from kbtrain.training.plan.plan import as_plan

    prompts = ResponsePrompts(check_base(config.model, "full", config.dtype, recipe.device), config.reads())
    rows, cut = lesson_rows(prompts, [*data.train, *data.dev])
    check_rows(rows, [lesson.turn.id for lesson in (*data.train, *data.dev)])
    compute = recipe.compute(lambda: compute_of(config.model, config.dtype, recipe.device))
    check_fits(as_plan(config), recipe.device, max(len(row.ids) for row in rows), recipe.processes)
    model, tokenizer = open_trainable(config.model, "full", recipe.device, compute, None, config.gradient_checkpointing)
    arguments = training_arguments(config, compute, recipe.device, has_dev=bool(data.dev))
    n = len(data.train)
    trainer = DialogueTrainer(model, tokenizer, arguments, rows[:n], rows[n:])
    recipe.train_to_end(trainer)
    return trainer, tokenizer, {"compute": compute, **asdict(cut)}


def dry_run(config: TrainDialogueConfig, data: DialogueData) -> str:
    from kbtrain.dialogue.train_responder import dry_run
    from kbtrain.training.checks import check_base

    tokenizer = check_base(config.model, "full", config.dtype, "cpu" if config.device == "cpu" else "auto")
    rows_a_step = config.device_batch_size * config.gradient_accumulation_steps * int(os.environ.get("WORLD_SIZE", "1"))
    return dry_run(ResponsePrompts(tokenizer, config.reads()), data, rows_a_step, config.epochs)


if __name__ == "__main__":
    run_script(main, TrainDialogueConfig, __doc__)
