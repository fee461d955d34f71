"""Train RAGate-MHA: a small multi-head attention encoder that predicts whether a dialogue's next turn needs knowledge.

Reads turns (data_gen/collect_turns.py), trains its own tokenizer and the network, keeps the epoch with the best dev
F1, and writes a gate folder (kbtrain.load_gate opens it) with its scores of dev and, if given, test. The same command
resumes a killed run.

Examples:
  kbtrain run train_ragate_mha --launch cpu \\
      --config ragate_mha --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --test runs/ketod/turns.jsonl --output runs/ketod/mha
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import model_validator

from kbtrain.config import run_script
from kbtrain.gate.card import CARD
from kbtrain.gates.ragate.mha import MHAConfig, RagateMHA, mha_input, new_gate
from kbtrain.training.config import training_arguments
from kbtrain.training.data import ClassifierData, class_weights, read_classifier_data
from kbtrain.training.finish import SCORES, ClassifierEnding, checked_test, dev_metrics
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from kbtrain.training.classifier_trainer import ClassifierTrainer


class TrainRagateMHAConfig(MHAConfig):
    @model_validator(mode="after")
    def _possible(self) -> TrainRagateMHAConfig:
        if self.d_model % self.heads or self.d_model % 2:
            raise ValueError(f"d_model {self.d_model} must be even and divisible by {self.heads} heads")
        if self.gradient_checkpointing:
            raise ValueError("key 'gradient_checkpointing': the network is too small to need it")
        return self


def main(config: TrainRagateMHAConfig) -> None:
    recipe = Recipe("train_ragate_mha", config)
    data = read_classifier_data(config.train, config.dev, config.key, config.labels)
    checked_test(config, data)
    if config.dry_run:
        no, yes = class_weights(data.train, config.class_weight)
        counts = f"{len(data.train)} train and {len(data.dev)} dev examples, class weights {no:.2f}, {yes:.2f}"
        return recipe.say(f"{counts}; {config.layers} layers, {config.heads} heads, embedding {config.d_model}")
    if not recipe.claim(CARD, SCORES):
        return None
    gate, trainer = train(recipe, config, data)
    if recipe.first:
        gate.model = trainer.plain_model()
        recipe.say(ClassifierEnding(config, "ragate_mha", gate, data, trainer.state, recipe.facts()).finish())
    return recipe.leave()


def train(recipe: Recipe, config: TrainRagateMHAConfig, data: ClassifierData) -> tuple[RagateMHA, ClassifierTrainer]:
    from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierTrainer, Objective, classifier_rows

    gate = new_gate(config, mha_input(config, data), recipe.device)
    trainer = ClassifierTrainer(
        gate.model,
        training_arguments(config, "fp32", recipe.device, has_dev=True),
        classifier_rows(gate.reader, data),
        ClassifierCollator(gate.model.config.pad_token_id),
        Objective(class_weights(data.train, config.class_weight), 2),
        dev_metrics(gate, data),
    )
    recipe.train_to_end(trainer)
    return gate, trainer


if __name__ == "__main__":
    run_script(main, TrainRagateMHAConfig, __doc__)
