"""Train RAGate-PEFT: a language model with low-rank adapters (beside 4-bit weights: QLoRA) as a gate for turns.

Reads turns (data_gen/collect_turns.py, with features of data_gen/turn_features.py), writes a gate folder with the
adapter alone and its scores of dev and, if given, test. The features are those of RAGate's table 2. A killed run goes
on when the same command is given again, and ends with the same weights.

Examples:
  accelerate launch --config_file ds_configs/accelerate_cpu.yaml recipes/train_ragate_peft.py \\
      --config recipes/configs/ragate_peft_smollm2.yaml --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --test runs/ketod/turns.jsonl --output runs/ketod/peft0 --seed 0
  python recipes/train_ragate_peft.py --config recipes/configs/ragate_peft_smollm2.yaml ... \\
      --features '[syn-resp, ner, know]' --dry-run     (no weights are loaded)
  accelerate launch --config_file ds_configs/accelerate_1gpu.yaml recipes/train_ragate_peft.py \\
      --config recipes/configs/ragate_peft_llama2_7b.yaml --train turns.jsonl --dev turns.jsonl --output peft
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from kbtrain.config import run_script
from kbtrain.gate_folder import CARD
from kbtrain.models.adapters import Adapter
from kbtrain.prompts.ragate import PeftFeature
from kbtrain.records import TurnExample
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.data import ClassifierData
from kbtrain.training.finish import SCORES, held_out_examples, train_to_end
from kbtrain.training.run import claim, finished, identity, settled

NOT_PART_OF_A_RUN = frozenset({"output", "test", "dry_run", "keep_checkpoints", "report_to"})


class TrainRagatePeftConfig(TrainingConfig):
    dev: Path = Field(description="dev turns (JSONL); they choose checkpoint and threshold")
    test: Path | None = Field(None, description="scored after the training; chooses nothing")
    features: tuple[PeftFeature, ...] = Field(
        (), description="what is read beside the context: resp, syn-resp, ner, know, source"
    )
    max_length: int = Field(512, ge=64, description="tokens of prompt and answer; the oldest turns are left out")
    method: Literal["lora", "qlora"] = Field("qlora", description="adapters beside 16-bit weights, or beside NF4")
    lora_rank: int = Field(16, ge=1, description="rank of the adapters")
    lora_alpha: int = Field(64, ge=1, description="scale of the adapters")
    lora_dropout: float = Field(0.1, ge=0, lt=1, description="dropout before the adapters")
    merge_adapter: bool = Field(False, description="also write 16-bit weights with the adapter in them")
    select: Literal["loss", "auroc", "average_precision", "f1", "last"] = Field(  # type: ignore[assignment]
        "f1", description="checkpoint kept, by dev: loss, auroc, average_precision, f1; or the last"
    )

    @model_validator(mode="after")
    def _possible(self) -> TrainRagatePeftConfig:
        if len(set(self.features)) < len(self.features):
            raise ValueError("features must name each one once")
        return self

    def adapter(self) -> Adapter:
        return Adapter(self.lora_rank, self.lora_alpha, self.lora_dropout, self.seed)


def say(text: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def main(config: TrainRagatePeftConfig) -> None:
    started = time.time()
    from kbtrain.gates.ragate.train_peft import read_turns

    data = read_turns(config.train, config.dev, config.features)
    test = turns_of_test(config)  # a wrong file is told before the training, not after it
    if config.dry_run:
        return say(dry_run(config, data))

    from kbtrain.models.load import choose_device
    from kbtrain.training.processes import main_first, start_processes

    device = choose_device(config.device)
    processes = start_processes(device)
    run = identity(config.model_dump(mode="json"), config.train, config.dev, NOT_PART_OF_A_RUN)
    main_first(lambda: claim(config.output, run))
    if finished(config.output, CARD, SCORES):
        return say(f"train_ragate_peft: {config.output} is finished already; nothing to do")
    trainer, compute = train(config, data, test, device, processes)
    model = trainer.plain_model(lambda: opened(config, device, compute)[0])
    if trainer.args.should_save:
        from kbtrain.gates.ragate.peft import RagatePeft
        from kbtrain.gates.ragate.train_peft import finish_peft

        gate = RagatePeft(model, trainer.kbm.prompts.encoder.tokenizer, config.features, config.max_length)
        facts = {"compute": compute, "device": device, "processes": processes, "turns_cut": trainer.turns_cut}
        facts["seconds"] = round(time.time() - started)
        say(f"train_ragate_peft: {finish_peft(config, config.output, gate, data, trainer.state, run | facts)}")
    trainer.accelerator.wait_for_everyone()


def opened(config: TrainRagatePeftConfig, device: str, compute: str) -> tuple[Any, Any]:
    from kbtrain.models.adapters import open_base, trainable

    base, tokenizer = open_base(config.model, config.method, device, compute)
    return trainable(base, config.adapter(), config.gradient_checkpointing), tokenizer


def turns_of_test(config: TrainRagatePeftConfig) -> list[TurnExample]:
    from kbtrain.gates.ragate.train_peft import check_turns

    return check_turns(held_out_examples(config.test), config.test, config.features) if config.test else []


def train(
    config: TrainRagatePeftConfig, data: ClassifierData, test: Sequence[TurnExample], device: str, processes: int
) -> tuple[Any, str]:
    from transformers.utils.logging import disable_progress_bar

    from kbtrain.gates.ragate.peft import RagatePeft, TurnPrompts
    from kbtrain.gates.ragate.train_peft import RagatePeftTrainer, peft_arguments, turn_row, turns_of
    from kbtrain.models.adapters import compute_of
    from kbtrain.training.checks import check_base, check_fits, check_rows
    from kbtrain.training.plan.plan import planned
    from kbtrain.training.processes import main_first

    disable_progress_bar()  # transformers' own, of loading and writing
    tokenizer = check_base(config.model, config.method, config.dtype, device)
    prompts = TurnPrompts(tokenizer, config.features, config.max_length)
    turns = turns_of(data.train)
    rows = [turn_row(prompts, turn) for turn in turns]
    check_rows(rows, [turn.id for turn in turns])
    turns_cut = prompts.cut
    for turn in (*turns_of(data.dev), *test):
        prompts.encode(turn)  # one that does not fit is told of now, not after an epoch
    compute = main_first(
        lambda: settled(config.output, "compute", lambda: compute_of(config.model, config.dtype, device))
    )
    check_fits(planned(config), device, max(len(row.ids) for row in rows), processes)
    model, tokenizer = opened(config, device, compute)
    arguments = peft_arguments(training_arguments(config, compute, device, has_dev=True), config.select, device)
    gate = RagatePeft(model, tokenizer, config.features, config.max_length)
    trainer = RagatePeftTrainer(gate, arguments, rows, turns_of(data.dev), "hard", progress_bar())
    trainer.turns_cut = turns_cut
    train_to_end(trainer, config.output, say)
    return trainer, compute


def dry_run(config: TrainRagatePeftConfig, data: ClassifierData) -> str:
    from kbtrain.gates.ragate.peft import TurnPrompts
    from kbtrain.gates.ragate.train_peft import turn_row, turns_of
    from kbtrain.training.checks import check_base, count_steps

    tokenizer = check_base(config.model, config.method, config.dtype, "cpu" if config.device == "cpu" else "auto")
    prompts = TurnPrompts(tokenizer, config.features, config.max_length)
    rows = [turn_row(prompts, turn) for turn in turns_of(data.train)]
    shown = f"{tokenizer.decode(rows[0].ids[:-1])}[[{tokenizer.decode(rows[0].ids[-1:])}]]"
    lengths = sorted(len(row.ids) for row in rows)
    group = config.device_batch_size * config.gradient_accumulation_steps * int(os.environ.get("WORLD_SIZE", "1"))
    return (
        f"{shown}\ndry run: {len(rows)} turns, {sum(row.need > 0.5 for row in data.train)} positive, of {lengths[0]}-"
        f"{lengths[-1]} tokens (median {lengths[len(lengths) // 2]}), {prompts.cut} old turns left out; "
        f"{count_steps(len(rows), group, config.epochs)} steps of {group} rows"
    )


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
    run_script(main, TrainRagatePeftConfig, __doc__)
