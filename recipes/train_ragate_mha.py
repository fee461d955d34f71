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
from kbtrain.gate_folder import CARD
from kbtrain.gates.late_scores import score_late_test
from kbtrain.gates.ragate.mha import Inputs
from kbtrain.report.mha_sweep import Shape, best, grid, sweep_table, trained, write_sweep
from kbtrain.training.config import ClassifierConfig, classifier_arguments
from kbtrain.training.data import ClassifierData, class_weights, read_classifier_data
from kbtrain.training.finish import SCORES, finish_classifier, held_out_examples
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from kbtrain.gates.ragate.mha import RagateMHA
    from kbtrain.training.classifier_trainer import ClassifierTrainer


class TrainRagateMHAConfig(ClassifierConfig):
    not_part_of_a_run = ClassifierConfig.not_part_of_a_run | {
        "sweep", "sweep_layers", "sweep_heads", "sweep_sizes", "compare_inputs", "seeds"
    }  # fmt: skip

    model: None = Field(None, description="none: the network is trained from nothing")  # type: ignore[assignment]
    inputs: Inputs = Field("contx", description="contx, contx+know, contx*know, contx+resp or contx+syn-resp")
    layers: int = Field(5, ge=1, description="layers of the encoder")
    heads: int = Field(4, ge=1, description="attention heads")
    d_model: int = Field(64, ge=2, description="embedding size and width of the feed-forward network")
    dropout: float = Field(0.1, ge=0, lt=1, description="after embedding, attention and feed-forward network")
    vocabulary: int = Field(8000, ge=300, description="entries of the tokenizer, at most")
    max_length: int = Field(512, ge=16, description="tokens; the oldest turns are cut away")
    epochs: float = Field(50, gt=0, description="passes over the training examples")
    device_batch_size: int = Field(32, ge=1, description="rows per device and forward pass")
    learning_rate: float = Field(5e-4, gt=0, description="peak learning rate")
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
            raise ValueError("gradient_checkpointing: the network is too small to need it")
        return self

    def shapes(self) -> list[Shape]:
        if self.sweep:
            return grid(self.sweep_layers, self.sweep_heads, self.sweep_sizes)
        return [Shape(self.layers, self.heads, self.d_model)]

    def of(self, shape: Shape) -> TrainRagateMHAConfig:
        """The training of one network of a sweep, in a folder of its own."""
        changes = {**dataclasses.asdict(shape), "sweep": False, "output": self.output / shape.folder}
        return self.model_copy(update=changes)

    def reading(self, inputs: Inputs, seed: int) -> TrainRagateMHAConfig:
        """The training of one input and seed of a comparison, in a folder of its own."""
        name = f"{inputs.replace('+', '-and-').replace('*', '-x-')}_seed{seed}"
        changes = {"inputs": inputs, "seed": seed, "compare_inputs": (), "output": self.output / name}
        return self.model_copy(update=changes)


def main(config: TrainRagateMHAConfig) -> None:
    recipe = Recipe("train_ragate_mha", config)
    data = read_classifier_data(config.train, config.dev, config.key, config.labels)
    held_out_examples(config.test)  # a wrong file is an error before the training, not after it
    if config.dry_run:
        no, yes = class_weights(data.train, config.class_weight)
        names = ", ".join(shape.name for shape in config.shapes())
        counts = f"{len(data.train)} train and {len(data.dev)} dev examples"
        return recipe.say(f"{counts}, class weights {no:.2f}, {yes:.2f}; networks: {names}")
    if config.compare_inputs:
        return compare(recipe, config, data)
    if not config.sweep:
        return train_one(config, data, config.shapes()[0])
    rows = []
    for shape in config.shapes():
        train_one(config.of(shape), data, shape)
        rows.append(trained(config.output / shape.folder, shape))
        write_sweep(config.output, rows)  # after each network, so that a long sweep can be watched
    recipe.show(sweep_table(rows))
    top = best(rows)
    return recipe.say(f"{len(rows)} networks; best dev F1 {top.f1:.3f}: {config.output / top.shape.folder}")


def compare(recipe: Recipe, config: TrainRagateMHAConfig, data: ClassifierData) -> None:
    """All inputs with one seed, then with the next: whenever it is stopped, all had about as many."""
    from kbtrain.report.mha_inputs import compared_inputs, write_inputs

    shape, folders = config.shapes()[0], {}
    for seed in config.seeds:
        for inputs in config.compare_inputs:
            one = config.reading(inputs, seed)
            train_one(one, data, shape, f"{inputs}, seed {seed}")
            folders[inputs, seed] = one.output
    if recipe.first:
        found = compared_inputs(folders, config.epochs, config.test)
        write_inputs(config.output, found)
        recipe.show(found.text())
    recipe.say(f"{len(folders)} networks, at most {config.epochs:g} epochs each -> {config.output / 'inputs.md'}")


def train_one(config: TrainRagateMHAConfig, data: ClassifierData, shape: Shape, label: str = "") -> None:
    recipe = Recipe("train_ragate_mha", config, label or shape.name)
    if not recipe.claim(CARD, SCORES, late=partial(score_late_test, config)):
        return
    gate, trainer = train(recipe, config, data)
    if recipe.first:
        gate.model = trainer.plain_model()
        recipe.say(finish_classifier(config, "ragate_mha", gate, data, trainer.state, recipe.facts()))
    recipe.wait()


def train(recipe: Recipe, config: TrainRagateMHAConfig, data: ClassifierData) -> tuple[RagateMHA, ClassifierTrainer]:
    from kbtrain.gates.ragate.train_mha import mha_input, mha_rows, new_gate
    from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierTrainer, Objective
    from kbtrain.training.finish import dev_metrics

    reader = mha_input(config.output, data, config.inputs, config.vocabulary, config.max_length)
    shape = (config.layers, config.heads, config.d_model)
    gate = new_gate(reader, recipe.device, *shape, config.dropout, config.seed)
    trainer = ClassifierTrainer(
        gate.model,
        classifier_arguments(config, "fp32", recipe.device),
        mha_rows(reader, data),
        ClassifierCollator(gate.model.config.pad_token_id),
        Objective(class_weights(data.train, config.class_weight), 2),
        dev_metrics(gate, data),
        on_log=recipe.bar(dev_lines=False),
    )
    recipe.train_to_end(trainer)
    return gate, trainer


if __name__ == "__main__":
    run_script(main, TrainRagateMHAConfig, __doc__)
