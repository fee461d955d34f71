"""Train a response generator on any causal language model, after KETOD's SimpleTOD-plus (RAGate, section 5.3).

Reads turns (data_gen/collect_turns.py; knowledge of studies/turn_entities.py), writes a folder that
studies/respond.py generates with. Input: the dialogue so far, its oldest turns cut away; knowledge snippets where
there are some (gold first); then the response, which alone has a loss: the enriched one where people wrote one. A
killed run resumes with the same command, and ends with the same parameters.

Examples:
  accelerate launch --config_file ds_configs/accelerate_cpu.yaml studies/train_dialogue.py \\
      --config studies/dialogue_smollm2.yaml --train runs/ketod/turns_features.jsonl \\
      --dev runs/ketod/turns_features.jsonl --output runs/ketod/dialogue
  python studies/train_dialogue.py --config studies/dialogue_gpt2.yaml ... --dry-run   (no weights are loaded)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator
from ragate_responses.responder import CARD, Reads, Responder, ResponsePrompts

from kbtrain.config import run_script
from kbtrain.io.provenance import file_sha256
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from ragate_responses.train_responder import Cut, DialogueData, DialogueTrainer, Lesson

    from kbtrain.training.answer_trainer import Opened, TrainingRow


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
        if self.act_values and not self.acts:
            raise ValueError("act_values needs acts: true")
        return self

    def reads(self) -> Reads:
        names = ("max_length", "response_tokens", "knowledge_tokens", "acts", "act_values")
        return Reads(**{name: getattr(self, name) for name in names})


def main(config: TrainDialogueConfig) -> None:
    from ragate_responses.train_responder import ResponderEnding, read_dialogue_data

    recipe = Recipe("train_dialogue", config)
    data = read_dialogue_data(config.train, config.dev, config.snippets, config.know, config.k, config.act_values)
    for lack, count in data.lacking.items():
        recipe.say(f"{lack}: {count}")
    if config.dry_run:
        from kbtrain.training.answer_trainer import dry_run, shown_row

        prompts, rows, cut = prompts_and_rows(config, data.train, "cpu" if config.device == "cpu" else "auto")
        counts = f"{len(rows)} turns, {sum(bool(lesson.hits) for lesson in data.train)} with knowledge"
        row = next((row for row, lesson in zip(rows, data.train, strict=True) if lesson.hits), rows[0])
        return recipe.show(dry_run(config, rows, shown_row(prompts.tokenizer, row), counts, str(cut)))
    if not recipe.claim(CARD, snippets_sha256=file_sha256(config.snippets) if config.snippets else None):
        return None
    trainer, opened, cut = train(recipe, config, data)
    model = trainer.plain_model()
    if recipe.first:
        responder, rows = Responder(model, opened.tokenizer, config.reads()), trainer.dev or trainer.rows
        run = recipe.facts(compute=opened.compute, **asdict(cut))
        recipe.say(ResponderEnding(config, responder, data, rows, trainer.state, run).finish())
    return recipe.leave()


def train(recipe: Recipe, config: TrainDialogueConfig, data: DialogueData) -> tuple[DialogueTrainer, Opened, Cut]:
    from ragate_responses.train_responder import DialogueTrainer

    from kbtrain.training.answer_trainer import answer_loss, open_to_train

    lessons, n = [*data.train, *data.dev], len(data.train)
    _, rows, cut = prompts_and_rows(config, lessons, recipe.device)
    opened = open_to_train(recipe, config, rows, [lesson.turn.id for lesson in lessons])
    arguments = training_arguments(config, opened.compute, recipe.device, has_dev=bool(data.dev))
    # Cross-entropy of the response's tokens and its end: a mean over the step's tokens.
    trainer = DialogueTrainer(opened.model, opened.tokenizer, arguments, rows[:n], rows[n:], answer_loss)
    recipe.train_to_end(trainer)
    return trainer, opened, cut


def prompts_and_rows(
    config: TrainDialogueConfig, lessons: Sequence[Lesson], device: str
) -> tuple[ResponsePrompts, list[TrainingRow], Cut]:
    from ragate_responses.train_responder import lesson_rows

    from kbtrain.training.checks import check_base

    prompts = ResponsePrompts(check_base(config.model, "full", config.dtype, device), config.reads())
    return prompts, *lesson_rows(prompts, lessons)


if __name__ == "__main__":
    run_script(main, TrainDialogueConfig, __doc__)
