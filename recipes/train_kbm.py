"""Train a knowledge-boundary model: fine-tune a language model to predict what it masters, from sampled labels.

Reads examples made by data_gen/build.py, writes a gate folder (kbtrain.load_gate opens it). After a kill the same
command resumes from the last checkpoint and ends with the same parameters; after a finished run it does nothing.

Examples:
  kbtrain run train_kbm --config kbm_smollm2 \\
      --train runs/demo/examples/train.jsonl --dev runs/demo/examples/dev.jsonl --output runs/demo/kbm
  kbtrain run train_kbm --config kbm_smollm2 ... --dry-run     (no weights are loaded)
  kbtrain run train_kbm --launch zero2_4gpu \\
      --config kbm_qwen2_7b --train train.jsonl --dev dev.jsonl --output kbm
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from kbtrain.config import check_each_once, run_script
from kbtrain.gate.card import CARD
from kbtrain.models.adapters import base_fingerprint
from kbtrain.prompts.kbm import DEFAULT_KEYS, Key, kbm_fingerprint
from kbtrain.training.config import LanguageModelConfig, training_arguments
from kbtrain.training.data import Labels, TrainingData, check_dev, label_rule, read_data, target
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from kbtrain.gates.kbm.gate import KBMCard
    from kbtrain.gates.kbm.train import KBMTrainer
    from kbtrain.gates.true_false import Encoder
    from kbtrain.training.answer_trainer import Opened, TrainingRow


class TrainKBMConfig(LanguageModelConfig):
    keys: tuple[Key, ...] = Field(DEFAULT_KEYS, description="labels that the gate learns to predict, in this order")
    labels: Labels = Field("hard", description="hard: True/False as in the paper; soft: the sampled shares")

    @model_validator(mode="after")
    def _possible(self) -> TrainKBMConfig:
        check_each_once("keys", self.keys)
        return self


def main(config: TrainKBMConfig) -> None:
    recipe = Recipe("train_kbm", config)
    data = read_data(config.train, config.dev, config.keys, config.labels)
    check_dev(data, config.keys, config.labels, config.select, config.dev)
    if config.dry_run:
        from kbtrain.training.answer_trainer import dry_run, shown_row

        encoder, rows = encoder_and_rows(config, data, "cpu" if config.device == "cpu" else "auto")
        pairs = list(zip(data.train, rows, strict=True))[:2]
        rendered = "\n".join(f"--- {example.id}\n{shown_row(encoder.tokenizer, row)}" for example, row in pairs)
        cut = f"{sum(row.n_truncated for row in rows)} reference tokens cut, {data.unlabelled} without a label skipped"
        return recipe.show(dry_run(config, rows, rendered, f"{len(rows)} examples", cut))
    if not recipe.claim(CARD):
        return None
    trainer, opened = train(recipe, config, data)
    model = trainer.plain_model()
    if recipe.first:
        from kbtrain.gates.kbm.train import KBMEnding

        card = card_of(config, trainer, opened.compute)
        run = recipe.facts(compute=opened.compute)
        recipe.say(KBMEnding(config, trainer, model, card, data, run).finish())
    return recipe.leave()


def train(recipe: Recipe, config: TrainKBMConfig, data: TrainingData) -> tuple[KBMTrainer, Opened]:
    from kbtrain.gates.kbm.gate import KBM
    from kbtrain.gates.kbm.train import KBMTrainer
    from kbtrain.training.answer_trainer import answer_loss, open_to_train

    encoder, rows = encoder_and_rows(config, data, recipe.device)
    for example in data.dev:
        encoder.encode(example)  # one that does not fit is an error now, not after an epoch
    opened = open_to_train(recipe, config, rows, [example.id for example in data.train])
    kbm = KBM(opened.model, opened.tokenizer, config.keys, config.max_length)
    arguments = training_arguments(config, opened.compute, recipe.device, bool(data.dev))
    # Cross-entropy of the answer's tokens alone; a soft label weighs True against False. A mean over the step's tokens.
    trainer = KBMTrainer(kbm, arguments, rows, data.dev, config.labels, answer_loss)
    recipe.train_to_end(trainer)
    return trainer, opened


def encoder_and_rows(config: TrainKBMConfig, data: TrainingData, device: str) -> tuple[Encoder, list[TrainingRow]]:
    from kbtrain.gates.kbm.train import make_row
    from kbtrain.gates.true_false import Encoder, kbm_template
    from kbtrain.training.checks import check_base

    tokenizer = check_base(config.model, config.method, config.dtype, device)
    encoder = Encoder(tokenizer, kbm_template(config.keys), config.max_length)
    taught = [[target(e, key, config.labels) for key in config.keys] for e in data.train]
    return encoder, [make_row(encoder.encode(e), targets) for e, targets in zip(data.train, taught, strict=True)]


def card_of(config: TrainKBMConfig, trainer: KBMTrainer, compute: str) -> KBMCard:
    from kbtrain.gates.kbm.gate import KBMCard

    return KBMCard(
        base_model=config.model,
        prompt_fingerprint=kbm_fingerprint(trainer.kbm.scorer.encoder.tokenizer, config.keys),
        dtype="bf16" if compute == "bf16" else "fp32",
        merged=config.method == "full" or config.merge_adapter,
        base_fingerprint=None if config.method == "full" else base_fingerprint(config.model),
        label_rule=label_rule(config.train),
        **config.model_dump(include={"keys", "max_length", "method", "labels"}),
    )


if __name__ == "__main__":
    run_script(main, TrainKBMConfig, __doc__)
