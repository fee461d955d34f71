"""Train a knowledge-boundary model: fine-tune a language model to say what it masters, from sampled labels.

Reads examples made by data_gen/build.py, writes a gate folder (kbtrain.load_gate opens it). A killed run resumes from
its last checkpoint when the same command is given again, and ends with the same weights; a finished one does nothing.

Examples:
  accelerate launch recipes/train_kbm.py --config recipes/configs/kbm_smollm2.yaml \\
      --train runs/demo/examples/train.jsonl --dev runs/demo/examples/dev.jsonl --output runs/demo/kbm
  python recipes/train_kbm.py --config recipes/configs/kbm_smollm2.yaml ... --dry-run     (no weights are loaded)
  accelerate launch --config_file ds_configs/accelerate_zero2_4gpu.yaml recipes/train_kbm.py \\
      --config recipes/configs/kbm_qwen2_7b.yaml --train train.jsonl --dev dev.jsonl --output kbm
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from kbtrain.config import check_each_once, run_script
from kbtrain.gate.card import CARD
from kbtrain.models.adapters import base_fingerprint, compute_of, open_trainable
from kbtrain.prompts.kbm import DEFAULT_KEYS, KBMPrompt, Key, kbm_fingerprint
from kbtrain.training.config import LanguageModelConfig, training_arguments
from kbtrain.training.data import Labels, TrainingData, check_dev, label_rule, read_data, smoothed_targets
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from kbtrain.gates.kbm.gate import KBMCard
    from kbtrain.gates.kbm.train import KBMTrainer


class TrainKBMConfig(LanguageModelConfig):
    keys: tuple[Key, ...] = Field(DEFAULT_KEYS, description="what the gate learns to say, in this order")
    labels: Labels = Field("hard", description="hard: True/False as in the paper; soft: the sampled shares")
    label_smoothing: float = Field(0, ge=0, lt=1, description="share of each target that is replaced by 1/2")
    loss_on: Literal["answer", "values"] = Field(
        "answer", description="the answer's tokens, as in the paper, or those that read True or False alone"
    )
    prompt: KBMPrompt = Field(
        "paper", description="figure 14 of the paper, or answer: the project's prompt for an answer (no own templates)"
    )

    @model_validator(mode="after")
    def _possible(self) -> TrainKBMConfig:
        check_each_once("keys", self.keys)
        return self


def main(config: TrainKBMConfig) -> None:
    recipe = Recipe("train_kbm", config)
    data = read_data(config.train, config.dev, config.keys, config.labels)
    check_dev(data, config.keys, config.labels, config.select, config.dev)
    if config.dry_run:
        from kbtrain.gates.kbm.train import dry_run
        from kbtrain.training.plan.plan import as_plan

        return recipe.show(dry_run(as_plan(config), data, config.labels))
    if not recipe.claim(CARD):
        return None
    trainer, compute = train(recipe, config, data)
    model = trainer.plain_model(lambda: open_model(config, recipe.device, compute)[0])
    if recipe.first:
        from kbtrain.gates.kbm.train import KBMEnding

        card = card_of(config, trainer, compute)
        recipe.say(KBMEnding(config, trainer, model, card, data, recipe.facts(compute=compute)).finish())
    recipe.leave()


def train(recipe: Recipe, config: TrainKBMConfig, data: TrainingData) -> tuple[KBMTrainer, str]:
    from kbtrain.gates.kbm.gate import KBM
    from kbtrain.gates.kbm.train import KBMTrainer, make_row
    from kbtrain.gates.true_false import Encoder, kbm_template
    from kbtrain.training.answer_trainer import answer_loss
    from kbtrain.training.checks import check_base, check_fits, check_rows
    from kbtrain.training.plan.plan import as_plan

    tokenizer = check_base(config.model, config.method, config.dtype, recipe.device)
    encode = Encoder(tokenizer, kbm_template(config.keys, config.prompt), config.max_length).encode
    taught = [smoothed_targets(e, config.keys, config.labels, config.label_smoothing) for e in data.train]
    rows = [make_row(encode(e), t, config.loss_on == "values") for e, t in zip(data.train, taught, strict=True)]
    check_rows(rows, [e.id for e in data.train])
    for example in data.dev:
        encode(example)  # one that does not fit is an error now, not after an epoch
    compute = recipe.compute(lambda: compute_of(config.model, config.dtype, recipe.device))
    check_fits(as_plan(config), recipe.device, max(len(row.ids) for row in rows), recipe.processes)
    model, tokenizer = open_model(config, recipe.device, compute)
    kbm = KBM(model, tokenizer, config.keys, config.max_length, config.prompt)
    arguments = training_arguments(config, compute, recipe.device, bool(data.dev))
    # Cross-entropy of the answer's tokens alone; a soft label weighs True against False. A mean over the step's tokens.
    trainer = KBMTrainer(kbm, arguments, rows, data.dev, config.labels, answer_loss)
    recipe.train_to_end(trainer)
    return trainer, compute


def open_model(config: TrainKBMConfig, device: str, compute: str) -> tuple[Any, Any]:
    return open_trainable(config.model, config.method, device, compute, config.adapter(), config.gradient_checkpointing)


def card_of(config: TrainKBMConfig, trainer: KBMTrainer, compute: str) -> KBMCard:
    from kbtrain.gates.kbm.gate import KBMCard

    return KBMCard(
        base_model=config.model,
        prompt_fingerprint=kbm_fingerprint(trainer.kbm.scorer.encoder.tokenizer, config.keys, config.prompt),
        dtype="bf16" if compute == "bf16" else "fp32",
        merged=config.method == "full" or config.merge_adapter,
        base_fingerprint=None if config.method == "full" else base_fingerprint(config.model),
        label_rule=label_rule(config.train),
        prompt=None if config.prompt == "paper" else config.prompt,
        **config.model_dump(include={"keys", "max_length", "method", "labels"}),
    )


if __name__ == "__main__":
    run_script(main, TrainKBMConfig, __doc__)
