"""Train RAGate-MHA: a small multi-head attention encoder that says whether a dialogue's next turn needs knowledge.

Reads turns (data_gen/collect_turns.py), trains its own tokenizer and the network, keeps the epoch with the best dev
F1, and writes a gate folder (kbtrain.load_gate opens it) with its scores of dev and, if given, test. --sweep trains
the paper's grid, one folder a network, and writes sweep.json, sweep.md and sweep.svg; the folder of the best one is
named there. A killed run or sweep goes on when the same command is given again.

Examples:
  accelerate launch --config_file ds_configs/accelerate_cpu.yaml recipes/train_ragate_mha.py \\
      --config recipes/configs/ragate_mha.yaml --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --test runs/ketod/turns.jsonl --output runs/ketod/mha
  python recipes/train_ragate_mha.py --config recipes/configs/ragate_mha_sweep.yaml --train runs/ketod/turns.jsonl \\
      --dev runs/ketod/turns.jsonl --output runs/ketod/mha_sweep
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from kbtrain.config import run_script
from kbtrain.gate_folder import CARD, ClassifierCard
from kbtrain.gates.ragate.mha import Inputs, MHAInput, kept_tokenizer, train_tokenizer
from kbtrain.provenance import write_atomically
from kbtrain.report.mha_sweep import Shape, SweptNetwork, best, grid, sweep_figure, sweep_table
from kbtrain.training.data import ClassifierData, class_weights, read_classifier_data
from kbtrain.training.finish import (
    NOT_PART_OF_A_RUN,
    SCORES,
    ClassifierConfig,
    classifier_arguments,
    held_out_examples,
    train_to_end,
)
from kbtrain.training.run import claim, finished, identity


class TrainRagateMHAConfig(ClassifierConfig):
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

    @model_validator(mode="after")
    def _possible(self) -> TrainRagateMHAConfig:
        for shape in self.shapes():
            if shape.d_model % shape.heads or shape.d_model % 2:
                raise ValueError(f"d_model {shape.d_model} must be even and divisible by {shape.heads} heads")
        if self.gradient_checkpointing:
            raise ValueError("gradient_checkpointing: the network is too small to need it")
        return self

    def shapes(self) -> list[Shape]:
        if self.sweep:
            return grid(self.sweep_layers, self.sweep_heads, self.sweep_sizes)
        return [Shape(self.layers, self.heads, self.d_model)]


def say(text: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def main(config: TrainRagateMHAConfig) -> None:
    data = read_classifier_data(config.train, config.dev, config.key, config.labels)
    held_out_examples(config.test)  # a wrong file is told before the training, not after it
    if config.dry_run:
        no, yes = class_weights(data.train, config.class_weight)
        names = ", ".join(shape.name for shape in config.shapes())
        return say(f"train_ragate_mha: {len(data.train)} train and {len(data.dev)} dev examples, class weights "
                   f"{no:.2f}, {yes:.2f}; networks: {names}")  # fmt: skip
    if not config.sweep:
        return train_one(config, data, config.shapes()[0], config.output)
    rows = []
    for shape in config.shapes():
        folder = config.output / shape.folder
        train_one(config, data, shape, folder)
        rows.append(row_of(folder, shape))
        show_sweep(config.output, rows)
    say(sweep_table(rows))
    top = best(rows)
    say(f"train_ragate_mha: {len(rows)} networks; best dev F1 {top.f1:.3f}: {config.output / top.shape.folder}")


def train_one(config: TrainRagateMHAConfig, data: ClassifierData, shape: Shape, output: Path) -> None:
    started = time.time()
    from kbtrain.models.load import choose_device
    from kbtrain.training.processes import main_first, start_processes

    device = choose_device(config.device)
    processes = start_processes(device)
    settings = config.model_dump(mode="json", exclude={"sweep", "sweep_layers", "sweep_heads", "sweep_sizes"})
    run = identity(settings | dataclasses.asdict(shape), config.train, config.dev, NOT_PART_OF_A_RUN)
    main_first(lambda: claim(output, run))
    if finished(output, CARD, SCORES):
        return say(f"train_ragate_mha: {output} is finished already; nothing to do")
    gate, trainer = train(config, data, shape, output, device)
    if trainer.args.should_save:
        from kbtrain.training.finish import finish

        gate.model = trainer.plain_model()
        facts = {"device": device, "processes": processes, "seconds": round(time.time() - started)}
        done = finish(config, output, "ragate_mha", gate, data, trainer.state, run | facts)
        say(f"train_ragate_mha: {shape.name}: {done}")
    trainer.accelerator.wait_for_everyone()


def train(config: TrainRagateMHAConfig, data: ClassifierData, shape: Shape, output: Path, device: str) -> Any:
    from transformers import set_seed

    from kbtrain.gates.ragate.mha import RagateMHA
    from kbtrain.gates.ragate.mha_model import RagateMHAConfig, RagateMHAModel
    from kbtrain.metrics.dev import classifier_metrics
    from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierRow, ClassifierTrainer, Objective
    from kbtrain.training.processes import main_first

    examples = [row.example for row in data.train]
    kept = output / "checkpoints" / "tokenizer.json"
    tokenizer = main_first(
        lambda: kept_tokenizer(kept, lambda: train_tokenizer(examples, config.inputs, config.vocabulary))
    )
    reader = MHAInput(tokenizer, config.max_length, config.inputs)
    set_seed(config.seed)
    network = RagateMHAConfig(
        vocab_size=len(tokenizer), d_model=shape.d_model, n_layers=shape.layers, n_heads=shape.heads,
        dropout=config.dropout, attends_to="knowledge" if "*" in config.inputs else "self",
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    gate = RagateMHA(RagateMHAModel(network).to(device), reader)
    rows = []
    for row in data.train:
        read = reader.encode(row.example)
        rows.append(ClassifierRow(read.ids, other=read.other, need=row.need))
    asked, need = [row.example for row in data.dev], [row.need for row in data.dev]
    trainer = ClassifierTrainer(
        gate.model, classifier_arguments(config.model_copy(update={"output": output}), "fp32", device), rows,
        ClassifierCollator(network.pad_token_id), Objective(class_weights(data.train, config.class_weight), 2),
        lambda: classifier_metrics(need, gate.score(asked)), watch=progress_bar(shape.name),
    )  # fmt: skip
    train_to_end(trainer, output, say)
    return gate, trainer


def row_of(folder: Path, shape: Shape) -> SweptNetwork:
    run = ClassifierCard.read(folder, "ragate_mha").run
    dev = run["dev"]
    return SweptNetwork(shape, dev["f1"], dev["auroc"], dev["average_precision"], run["best_epoch"], run["seconds"])


def show_sweep(output: Path, rows: list[SweptNetwork]) -> None:
    """Written anew after each network, so that a long sweep can be watched."""
    document = [dataclasses.asdict(row) for row in rows]
    write_atomically(output / "sweep.json", json.dumps(document, indent=1) + "\n")
    write_atomically(output / "sweep.md", "```\n" + sweep_table(rows) + "\n```\n")
    write_atomically(output / "sweep.svg", sweep_figure(rows))


def progress_bar(name: str) -> Any:
    from tqdm import tqdm

    bar = tqdm(unit="step", desc=name, disable=int(os.environ.get("RANK", "0")) > 0)

    def show(step: int, steps: int, logs: Mapping[str, float]) -> None:
        bar.total = steps
        bar.update(step - bar.n)
        if "eval_f1" in logs:
            bar.set_postfix(dev_f1=f"{logs['eval_f1']:.3f}", dev_auc=f"{logs['eval_auroc']:.3f}")

    return show


if __name__ == "__main__":
    run_script(main, TrainRagateMHAConfig, __doc__)
