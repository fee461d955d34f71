"""Train RAGate-MHA: a small multi-head attention encoder that says whether a dialogue's next turn needs knowledge.

Reads turns (data_gen/collect_turns.py), trains its own tokenizer and the network, keeps the epoch with the best dev
F1, and writes a gate folder (kbtrain.load_gate opens it) with its scores of dev and, if given, test. --sweep trains
the paper's grid, one folder a network, and writes sweep.json, sweep.md and sweep.svg; the folder of the best one is
named there. --compare-inputs trains each of these inputs with each of --seeds for the same number of epochs, of which
dev chooses one, and writes inputs.json and inputs.md. A killed run goes on when the same command is given again.

Examples:
  accelerate launch --config_file ds_configs/accelerate_cpu.yaml recipes/train_ragate_mha.py \\
      --config recipes/configs/ragate_mha.yaml --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --test runs/ketod/turns.jsonl --output runs/ketod/mha
  python recipes/train_ragate_mha.py --config recipes/configs/ragate_mha_sweep.yaml --train runs/ketod/turns.jsonl \\
      --dev runs/ketod/turns.jsonl --output runs/ketod/mha_sweep
  python recipes/train_ragate_mha.py --config recipes/configs/ragate_mha_inputs.yaml \\
      --train runs/ketod/turns_features.jsonl --dev runs/ketod/turns_features.jsonl \\
      --test runs/ketod/turns_features.jsonl --output runs/ketod/mha_inputs
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from kbtrain.config import run_script
from kbtrain.gate.card import CARD
from kbtrain.gates.late_scores import score_late_test
from kbtrain.gates.ragate.mha import Inputs, RagateMHA, input_folder
from kbtrain.gates.ragate.train_mha import MHAConfig, mha_input, mha_rows, new_gate
from kbtrain.report.mha_sweep import Shape, grid, train_sweep
from kbtrain.training.config import classifier_arguments
from kbtrain.training.data import ClassifierData, class_weights, read_classifier_data
from kbtrain.training.finish import SCORES, ClassifierEnding, dev_metrics, held_out_examples
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from kbtrain.training.classifier_trainer import ClassifierTrainer


class TrainRagateMHAConfig(MHAConfig):
    not_part_of_a_run = MHAConfig.not_part_of_a_run | {
        "sweep", "sweep_layers", "sweep_heads", "sweep_sizes", "compare_inputs", "seeds"
    }  # fmt: skip

    sweep: bool = Field(False, description="train all networks of the grid below")
    sweep_layers: tuple[int, ...] = Field((2, 3, 4, 5, 6, 7, 8), description="the paper's")
    sweep_heads: tuple[int, ...] = Field((2, 4), description="the paper's")
    sweep_sizes: tuple[int, ...] = Field((64, 128, 256), description="the paper's")
    compare_inputs: tuple[Inputs, ...] = Field((), description="train each of these, and compare the first with all")
    seeds: tuple[int, ...] = Field((0, 1, 2), min_length=1, description="compare_inputs: seeds of each input")

    @model_validator(mode="after")
    def _possible(self) -> TrainRagateMHAConfig:
        for shape in self.shapes():
            if shape.d_model % shape.heads or shape.d_model % 2:
                raise ValueError(f"d_model {shape.d_model} must be even and divisible by {shape.heads} heads")
        if self.sweep and self.compare_inputs:
            raise ValueError("sweep, compare_inputs: one at a time; compare inputs for one network")
        if self.gradient_checkpointing:
            raise ValueError("key 'gradient_checkpointing': the network is too small to need it")
        return self

    def shapes(self) -> list[Shape]:
        if self.sweep:
            return grid(self.sweep_layers, self.sweep_heads, self.sweep_sizes)
        return [Shape(self.layers, self.heads, self.d_model)]

    def for_shape(self, shape: Shape) -> TrainRagateMHAConfig:
        """The training of one network of a sweep, in a folder of its own."""
        own = {"sweep": False, "output": self.output / shape.folder}
        return self.model_copy(update=dataclasses.asdict(shape) | own)

    def reading(self, inputs: Inputs, seed: int) -> TrainRagateMHAConfig:
        """The training of one input and seed of a comparison, in a folder of its own."""
        folder = self.output / input_folder(inputs, seed)
        return self.model_copy(update={"inputs": inputs, "seed": seed, "compare_inputs": (), "output": folder})


def main(config: TrainRagateMHAConfig) -> None:
    recipe = Recipe("train_ragate_mha", config)
    data = read_classifier_data(config.train, config.dev, config.key, config.labels)
    held_out_examples(config.test)  # a wrong file is an error before the training, not after it
    if config.dry_run:
        no, yes = class_weights(data.train, config.class_weight)
        counts = f"{len(data.train)} train and {len(data.dev)} dev examples, class weights {no:.2f}, {yes:.2f}"
        return recipe.say(f"{counts}; networks: {', '.join(shape.name for shape in config.shapes())}")
    if config.compare_inputs:
        from kbtrain.report.mha_inputs import train_inputs

        return train_inputs(recipe, config, config.compare_inputs, config.seeds, lambda inputs, seed: train_one(
            config.reading(inputs, seed), data, config.shapes()[0], f"{inputs}, seed {seed}"))  # fmt: skip
    if config.sweep:
        return train_sweep(
            recipe, config, config.shapes(), lambda shape: train_one(config.for_shape(shape), data, shape)
        )
    return train_one(config, data, config.shapes()[0])


def train_one(config: TrainRagateMHAConfig, data: ClassifierData, shape: Shape, label: str = "") -> None:
    recipe = Recipe("train_ragate_mha", config, label or shape.name)
    if not recipe.claim(CARD, SCORES, late=partial(score_late_test, config)):
        return
    gate, trainer = train(recipe, config, data)
    if recipe.first:
        gate.model = trainer.plain_model()
        recipe.say(ClassifierEnding(config, "ragate_mha", gate, data, trainer.state, recipe.facts()).finish())
    recipe.leave()


def train(recipe: Recipe, config: TrainRagateMHAConfig, data: ClassifierData) -> tuple[RagateMHA, ClassifierTrainer]:
    from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierTrainer, Objective

    gate = new_gate(config, mha_input(config, data), recipe.device)
    trainer = ClassifierTrainer(
        gate.model,
        classifier_arguments(config, "fp32", recipe.device),
        mha_rows(gate.reader, data),
        ClassifierCollator(gate.model.config.pad_token_id),
        Objective(class_weights(data.train, config.class_weight), 2),
        dev_metrics(gate, data),
        on_log=recipe.bar(dev_lines=False),
    )
    recipe.train_to_end(trainer)
    return gate, trainer


if __name__ == "__main__":
    run_script(main, TrainRagateMHAConfig, __doc__)
