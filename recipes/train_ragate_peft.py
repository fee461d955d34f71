"""Train RAGate-PEFT: a language model with low-rank adapters (with 4-bit parameters: QLoRA) as a gate for turns.

Reads turns (data_gen/collect_turns.py, with features of data_gen/turn_features.py), writes a gate folder with only the
adapter and its scores of dev and, if given, test. The features are those of RAGate's table 2. After a kill the same
command resumes and ends with the same parameters.

Examples:
  kbtrain run train_ragate_peft --launch cpu \\
      --config ragate_peft_smollm2 --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --test runs/ketod/turns.jsonl --output runs/ketod/peft0 --seed 0
  kbtrain run train_ragate_peft --config ragate_peft_smollm2 ... \\
      --features '[syn-resp, ner, know]' --dry-run     (no weights are loaded)
  kbtrain run train_ragate_peft --launch 1gpu \\
      --config ragate_peft_llama2_7b --train turns.jsonl --dev turns.jsonl --output peft
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from kbtrain.config import run_script
from kbtrain.gate.card import CARD
from kbtrain.prompts.ragate import PeftFeature
from kbtrain.records import TurnExample
from kbtrain.training.config import HeldOutConfig, LanguageModelConfig, LoraAlpha, LoraDropout, training_arguments
from kbtrain.training.data import ClassifierData, examples_of
from kbtrain.training.finish import SCORES, checked_test
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from kbtrain.gates.ragate.peft import TurnPrompts
    from kbtrain.gates.ragate.train_peft import RagatePeftTrainer
    from kbtrain.training.answer_trainer import Opened, TrainingRow


class TrainRagatePeftConfig(HeldOutConfig, LanguageModelConfig):
    features: tuple[PeftFeature, ...] = Field(
        (), description="additional inputs beside the context: resp, syn-resp, ner, know, source"
    )
    max_length: int = Field(512, ge=64, description="longest prompt and answer, in tokens; the oldest turns are cut")
    method: Literal["lora", "qlora"] = Field(  # type: ignore[assignment]
        "qlora", description="adapters beside parameters in 16 bits, or in NF4"
    )
    lora_alpha: LoraAlpha = 64
    lora_dropout: LoraDropout = 0.1
    merge_adapter: bool = Field(False, description="also save 16-bit parameters with the adapter merged in")

    @model_validator(mode="after")
    def _possible(self) -> TrainRagatePeftConfig:
        if len(set(self.features)) < len(self.features):
            raise ValueError("features must name each one once")
        return self


def main(config: TrainRagatePeftConfig) -> None:
    from kbtrain.gates.ragate.train_peft import PeftEnding, check_turns, new_card, read_turns

    recipe = Recipe("train_ragate_peft", config)
    data = read_turns(config.train, config.dev, config.features)
    held_out = checked_test(config, data)
    test = check_turns(held_out, config.test, config.features) if config.test else []
    if config.dry_run:
        from kbtrain.training.answer_trainer import dry_run, shown_row

        prompts, rows = prompts_and_rows(config, data, "cpu" if config.device == "cpu" else "auto")
        counts = f"{len(rows)} turns, {sum(row.need > 0.5 for row in data.train)} positive"
        rendered, cut = shown_row(prompts.tokenizer, rows[0]), f"{prompts.n_truncated} old turns skipped"
        return recipe.show(dry_run(config, rows, rendered, counts, cut))
    if not recipe.claim(CARD, SCORES):
        return None
    trainer, opened, turns_cut = train(recipe, config, data, test)
    model = trainer.plain_model()
    if recipe.first:
        from kbtrain.gates.ragate.peft import RagatePeft

        gate = RagatePeft(model, opened.tokenizer, config.features, config.max_length)
        run = recipe.facts(compute=opened.compute, turns_cut=turns_cut)
        settings = config.model_dump(include={"method", "max_length", "seed"}) | {"merged": config.merge_adapter}
        card = new_card(config, opened.compute, config.features, opened.tokenizer, **settings)
        recipe.say(PeftEnding(config, gate, card, data, trainer.state, run).finish())
    return recipe.leave()


def train(
    recipe: Recipe, config: TrainRagatePeftConfig, data: ClassifierData, test: Sequence[TurnExample]
) -> tuple[RagatePeftTrainer, Opened, int]:
    """Also the number of old turns that the training prompts have no room for."""
    from kbtrain.gates.ragate.peft import RagatePeft
    from kbtrain.gates.ragate.train_peft import RagatePeftTrainer, paged_on_gpu
    from kbtrain.training.answer_trainer import answer_loss, open_to_train

    prompts, rows = prompts_and_rows(config, data, recipe.device)
    turns_cut = prompts.n_truncated
    for turn in (*examples_of(TurnExample, data.dev), *test):
        prompts.encode(turn)  # one that does not fit is an error now, not after an epoch
    opened = open_to_train(recipe, config, rows, [row.example.id for row in data.train])
    arguments = training_arguments(config, opened.compute, recipe.device, has_dev=True)
    gate = RagatePeft(opened.model, opened.tokenizer, config.features, config.max_length)
    # Cross-entropy of the one token that reads True or False: a mean over the step's turns.
    trainer = RagatePeftTrainer(
        gate, paged_on_gpu(arguments, recipe.device), rows, examples_of(TurnExample, data.dev), "hard", answer_loss
    )
    recipe.train_to_end(trainer)
    return trainer, opened, turns_cut


def prompts_and_rows(
    config: TrainRagatePeftConfig, data: ClassifierData, device: str
) -> tuple[TurnPrompts, list[TrainingRow]]:
    from kbtrain.gates.ragate.peft import peft_prompts
    from kbtrain.gates.ragate.train_peft import turn_row
    from kbtrain.training.checks import check_base

    tokenizer = check_base(config.model, config.method, config.dtype, device)
    prompts = peft_prompts(tokenizer, config.features, config.max_length)
    return prompts, [turn_row(prompts, turn) for turn in examples_of(TurnExample, data.train)]


if __name__ == "__main__":
    run_script(main, TrainRagatePeftConfig, __doc__)
