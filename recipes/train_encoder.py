"""Train the encoder gate: any pretrained encoder, made to say whether a turn, or a question, needs retrieval.

Methods full and lora fine-tune it. Method probe leaves it as it is and fits a logistic regression on its embedding of
what is asked now (and, with base dialogue_state, on acts, services and slots so far): a minute's work, and on KETOD,
where labels are few, the better F1. With the key probe both are made, OUTPUT/tuned and OUTPUT/probe, and the gate in
OUTPUT is the average of their log odds: they err in different places.

Reads turns (data_gen/collect_turns.py) or questions (data_gen/build.py), writes a gate folder (kbtrain.load_gate
opens it) with its scores of dev and, if given, test. A killed run goes on when the same command is given again.

Examples:
  accelerate launch --config_file ds_configs/accelerate_cpu.yaml recipes/train_encoder.py \\
      --config recipes/configs/encoder_probe_turns.yaml --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --test runs/ketod/turns.jsonl --output runs/ketod/encoder_probe
  accelerate launch --config_file ds_configs/accelerate_cpu.yaml recipes/train_encoder.py \\
      --config recipes/configs/encoder_minilm_turns.yaml --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --test runs/ketod/turns.jsonl --output runs/ketod/encoder --seed 0
  python recipes/train_encoder.py --config recipes/configs/encoder_minilm_questions.yaml \\
      --train runs/demo/examples/train.jsonl --dev runs/demo/examples/dev.jsonl --output runs/demo/encoder
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kbtrain.config import run_script
from kbtrain.gate_folder import CARD
from kbtrain.gates.encoder.input import EncoderInput, Feature
from kbtrain.gates.encoder.offset import OffsetGate, turns_only
from kbtrain.training.data import ClassifierData, act_targets, class_weights, common_acts
from kbtrain.training.data import read_classifier_data as read_data
from kbtrain.training.finish import (
    NOT_PART_OF_A_RUN,
    SCORES,
    ClassifierConfig,
    classifier_arguments,
    held_out_examples,
    train_to_end,
)
from kbtrain.training.run import claim, finished, identity, settled


class ProbeSettings(BaseModel):
    """What the probe beside a fine-tuned encoder does otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: Literal["dialogue_state"] | None = None
    max_length: int = Field(64, ge=16)
    class_weight: float = Field(0.0, ge=0, le=1)


class TrainEncoderConfig(ClassifierConfig):
    model: str = Field("all-minilm-l6-v2", description="pretrained encoder: embedded name, local folder or hub id")
    features: tuple[Feature, ...] = Field(
        ("structure",), description="turns only, before the context: structure, acts, resp, syn-resp, ner, know, source"
    )
    max_length: int = Field(256, ge=16, description="tokens; the oldest turns are cut away, or a reference's tail")
    head_learning_rate: float = Field(1e-3, gt=0, description="peak learning rate of the new layers")
    base: Literal["dialogue_state"] | None = Field(
        None, description="turns only: a gate fitted first, to whose log odds the encoder's are added (probe: jointly)"
    )
    frozen_layers: int | None = Field(
        None, ge=0, description="method full: embeddings and so many layers above them stay as they are"
    )
    layer_decay: float = Field(1.0, gt=0, le=1, description="each layer learns so much slower than the one above it")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="hard labels are taken this much less seriously")
    act_weight: float = Field(0.0, ge=0, description="turns only: weight of foreseeing what the system will do next")
    method: Literal["full", "lora", "probe"] = Field(
        "full", description="train all weights, low-rank adapters, or no weight (nothing about steps is read then)"
    )
    probe: ProbeSettings | None = Field(
        None, description="methods full and lora: fit a probe too ({base, max_length, class_weight}), average the two"
    )
    lora_rank: int = Field(16, ge=1, description="rank of the adapters")
    lora_alpha: int = Field(32, ge=1, description="scale of the adapters")

    @model_validator(mode="after")
    def _possible(self) -> TrainEncoderConfig:
        if self.method != "full" and self.layer_decay < 1:
            raise ValueError("layer_decay is for method full; adapters learn at one rate")
        if self.method != "full" and self.frozen_layers is not None:
            raise ValueError("frozen_layers is for method full; beside adapters nothing else learns")
        if self.method == "probe" and self.act_weight:
            raise ValueError("act_weight is for methods full and lora; a probe foresees nothing")
        if self.method == "probe" and self.probe:
            raise ValueError("key probe is for methods full and lora; method probe is that probe alone")
        return self

    def members(self) -> list[TrainEncoderConfig]:
        """The trainings of a pair, each in a folder of its own inside ``output``."""
        if not self.probe:
            return []
        tuned = {"probe": None, "output": self.output / "tuned"}
        settings = {"method": "probe", "probe": None, "output": self.output / "probe", **self.probe.model_dump()}
        only_tuned = {"act_weight": 0.0, "layer_decay": 1.0, "frozen_layers": None}  # a probe has no such thing
        return [self.model_copy(update=changes) for changes in (tuned, settings | only_tuned)]


def say(text: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def main(config: TrainEncoderConfig) -> None:
    started = time.time()
    data = read_data(config.train, config.dev, config.key, config.labels)
    test = held_out_examples(config.test)  # a wrong file is told before the training, not after it
    if config.base or (config.probe and config.probe.base):
        turns_only([*(row.example for row in (*data.train, *data.dev)), *test])
    if config.dry_run:
        return say("\n".join(dry_run(member, data) for member in config.members() or [config]))
    if not config.probe:
        return train_one(config, data, started)

    from kbtrain.gates.encoder.pair import finish_pair
    from kbtrain.models.load import choose_device
    from kbtrain.training.processes import main_first, start_processes

    device = choose_device(config.device)
    start_processes(device)
    run = identity(config.model_dump(mode="json"), config.train, config.dev, NOT_PART_OF_A_RUN)
    main_first(lambda: claim(config.output, run))
    if finished(config.output, CARD, SCORES):
        return say(f"train_encoder: {config.output} is finished already; nothing to do")
    for member in config.members():
        train_one(member, data, time.time())
    if int(os.environ.get("RANK", "0")) == 0:
        folders = [member.output for member in config.members()]
        say(f"train_encoder: {finish_pair(config, folders, data, device, run)}")


def train_one(config: TrainEncoderConfig, data: ClassifierData, started: float) -> None:
    from kbtrain.models.load import choose_device
    from kbtrain.training.processes import main_first, start_processes

    device = choose_device(config.device)
    processes = start_processes(device)
    run = identity(config.model_dump(mode="json"), config.train, config.dev, NOT_PART_OF_A_RUN)
    main_first(lambda: claim(config.output, run))
    if finished(config.output, CARD, SCORES):
        return say(f"train_encoder: {config.output} is finished already; nothing to do")

    from kbtrain.training.finish import finish

    if config.method == "probe":
        if int(os.environ.get("RANK", "0")) == 0:  # nothing to share among processes
            probe = fitted_probe(config, data, device)
            facts = {"device": device, "seconds": round(time.time() - started)}
            say(f"train_encoder: {finish(config, config.output, 'encoder_probe', probe, data, None, run | facts)}")
        return
    gate, trainer, facts = train(config, data, device)
    if trainer.args.should_save:
        model = trainer.plain_model()
        gate.model = (model.merge_and_unload() if config.method == "lora" else model).float()
        facts |= {"device": device, "processes": processes, "seconds": round(time.time() - started)}
        say(f"train_encoder: {finish(config, config.output, 'encoder', gate, data, trainer.state, run | facts)}")
    trainer.accelerator.wait_for_everyone()


def train(config: TrainEncoderConfig, data: ClassifierData, device: str) -> tuple[Any, Any, dict[str, Any]]:
    from transformers import set_seed

    from kbtrain.gates.encoder.gate import EncoderGate
    from kbtrain.metrics.dev import classifier_metrics
    from kbtrain.models.encoders import has_segments, open_encoder
    from kbtrain.training.classifier_trainer import (
        ClassifierCollator,
        ClassifierRow,
        ClassifierTrainer,
        Objective,
        Rates,
        freeze,
    )
    from kbtrain.training.processes import compute_dtype, main_first

    acts = common_acts(data.train) if config.act_weight else ()
    weights = class_weights(data.train, config.class_weight)
    base, offsets = fitted_base(config, data)
    set_seed(config.seed)  # the new classifier's first weights
    model, tokenizer = open_encoder(config.model, "fp32", device, n_logits=1 + len(acts))
    if config.frozen_layers is not None:
        freeze(model, config.frozen_layers)
    compute = main_first(lambda: settled(config.output, "compute", lambda: compute_dtype(config.dtype, device, model)))
    reader = EncoderInput(tokenizer, config.max_length, config.features)
    gate = EncoderGate(model, reader, base=base)
    rows = []
    for row, offset in zip(data.train, offsets, strict=True):
        read = reader.encode(row.example)
        rows.append(ClassifierRow(read.ids, read.segments, (), row.need, act_targets(row.example, acts), offset))
    asked, need = [row.example for row in data.dev], [row.need for row in data.dev]
    trainer = ClassifierTrainer(
        with_adapter(model, config) if config.method == "lora" else model,
        classifier_arguments(config, compute, device),
        rows,
        ClassifierCollator(reader.pad_id, has_segments(model), len(acts)),
        Objective(weights, 1, config.label_smoothing, config.act_weight),
        lambda: classifier_metrics(need, gate.score(asked)),
        Rates(config.learning_rate, config.layer_decay, config.head_learning_rate),
        progress_bar(),
    )
    train_to_end(trainer, config.output, say)
    facts = {"compute": compute, "acts_foreseen": acts, "class_weights": weights}
    return gate, trainer, facts | ({"base_slope": base.slope, "base_intercept": base.intercept} if base else {})


def fitted_probe(config: TrainEncoderConfig, data: ClassifierData, device: str) -> Any:
    from kbtrain.gates.encoder.probe import EncoderProbe, ProbeInput
    from kbtrain.models.encoders import open_body

    model, tokenizer = open_body(config.model, config.dtype, device)
    reader = ProbeInput(tokenizer, config.max_length, config.base == "dialogue_state")
    examples, need = [row.example for row in data.train], [row.need for row in data.train]
    return EncoderProbe.fit(model, reader, examples, need, class_weights(data.train, config.class_weight))


def fitted_base(config: TrainEncoderConfig, data: ClassifierData) -> tuple[OffsetGate | None, list[float]]:
    """The base, if there shall be one, and what the training rows' logits are added to."""
    if not config.base or config.method == "probe":
        return None, [0.0] * len(data.train)
    turns = turns_only([row.example for row in data.train])
    return OffsetGate.fit(turns, class_weights(data.train, config.class_weight))


def dry_run(config: TrainEncoderConfig, data: ClassifierData) -> str:
    no, yes = class_weights(data.train, config.class_weight)
    base, _ = fitted_base(config, data)
    acts = common_acts(data.train) if config.act_weight else ()
    start = f"adds to {config.base}, slope {base.slope:.2f}" if base else f"base: {config.base or 'none'}"
    counts = (f"{sum(r.need > 0.5 for r in rows)} of {len(rows)}" for rows in (data.train, data.dev))
    steps = math.ceil(len(data.train) / (config.device_batch_size * config.gradient_accumulation_steps))
    return (
        f"train_encoder: {' in train, '.join(counts)} in dev need retrieval; class weights {no:.2f}, {yes:.2f}; "
        + ("" if config.method == "probe" else f"{steps} steps an epoch and process; ")
        + f"acts foreseen: {', '.join(acts) or 'none'}; {start}"
    )


def with_adapter(model: Any, config: TrainEncoderConfig) -> Any:
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(
        r=config.lora_rank, lora_alpha=config.lora_alpha, target_modules="all-linear", task_type="SEQ_CLS"
    )
    return get_peft_model(model, lora)


def progress_bar() -> Any:
    from tqdm import tqdm

    bar = tqdm(unit="step", disable=int(os.environ.get("RANK", "0")) > 0)

    def show(step: int, steps: int, logs: Mapping[str, float]) -> None:
        bar.total = steps
        bar.update(step - bar.n)
        if "eval_loss" in logs:
            bar.write(f"step {step}: dev " + ", ".join(f"{k[5:]} {v:.3f}" for k, v in logs.items() if k[:4] == "eval"))

    return show


if __name__ == "__main__":
    run_script(main, TrainEncoderConfig, __doc__)
