"""Train a knowledge-boundary model: fine-tune a language model to say what it masters, from sampled labels.

Reads examples made by data_gen/build.py, writes a gate folder (kbtrain.load_gate opens it). A killed run goes on from
its last checkpoint when the same command is given again, and ends with the same weights; a finished one does nothing.

Examples:
  accelerate launch recipes/train_kbm.py --config recipes/configs/kbm_smollm2.yaml \\
      --train runs/demo/examples/train.jsonl --dev runs/demo/examples/dev.jsonl --output runs/demo/kbm
  python recipes/train_kbm.py --config recipes/configs/kbm_smollm2.yaml ... --dry-run     (no weights are loaded)
  accelerate launch --config_file ds_configs/accelerate_zero2_4gpu.yaml recipes/train_kbm.py \\
      --config recipes/configs/kbm_qwen2_7b.yaml --train train.jsonl --dev dev.jsonl --output kbm
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from kbtrain.config import run_script
from kbtrain.gate_folder import CARD
from kbtrain.models.adapters import Adapter
from kbtrain.prompts.kbm import ALL_KEYS, Key, kbm_fingerprint
from kbtrain.provenance import package_versions, peak_rss_mb, write_meta
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.data import Labels, TrainingData, check_dev, label_rule, read_data, target
from kbtrain.training.run import claim, finished, identity, settled

if TYPE_CHECKING:
    from kbtrain.gates.kbm.train import KBMTrainer

NOT_PART_OF_A_RUN = frozenset({"output", "dry_run", "keep_checkpoints", "report_to"})


class TrainKBMConfig(TrainingConfig):
    keys: tuple[Key, ...] = Field(ALL_KEYS, description="what the gate learns to say, in this order")
    labels: Labels = Field("hard", description="hard: True/False as in the paper; soft: the sampled shares")
    max_length: int = Field(1580, ge=64, description="tokens of prompt and answer; a longer reference loses its tail")
    method: Literal["full", "lora", "qlora"] = Field(
        "full", description="train all weights, low-rank adapters, or these beside weights in 4 bits (NF4)"
    )
    lora_rank: int = Field(16, ge=1, description="rank of the adapters")
    lora_alpha: int = Field(32, ge=1, description="scale of the adapters")
    lora_dropout: float = Field(0.05, ge=0, lt=1, description="dropout before the adapters")
    merge_adapter: bool = Field(True, description="also save merged weights, so that the folder needs no base model")

    @model_validator(mode="after")
    def _possible(self) -> TrainKBMConfig:
        if not self.keys or len(set(self.keys)) < len(self.keys):
            raise ValueError("keys must name one key or more, each once")
        return self

    def adapter(self) -> Adapter | None:
        full = self.method == "full"
        return None if full else Adapter(self.lora_rank, self.lora_alpha, self.lora_dropout, self.seed)


def say(text: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def main(config: TrainKBMConfig) -> None:
    started = time.time()
    data = read_data(config.train, config.dev, config.keys, config.labels)
    check_dev(data, config.keys, config.labels, config.select, config.dev)
    if config.dry_run:
        from kbtrain.gates.kbm.train import dry_run

        at_once = config.device_batch_size * config.gradient_accumulation_steps
        shape = (config.keys, config.labels, config.max_length, config.epochs, at_once)
        return say(dry_run(config.model, data, *shape, config.adapter()))

    from kbtrain.models.load import choose_device
    from kbtrain.training.processes import main_first, start_processes

    device = choose_device(config.device)
    processes = start_processes(device)
    run = identity(config.model_dump(mode="json"), config.train, config.dev, NOT_PART_OF_A_RUN)
    main_first(lambda: claim(config.output, run))
    if finished(config.output, CARD):
        return say(f"train_kbm: {config.output} is finished already; nothing to do")
    trainer, compute = train(config, data, device, processes)
    model = trainer.plain_model(lambda: opened(config, device, compute)[0])
    if trainer.args.should_save:
        facts = {"compute": compute, "device": device, "processes": processes, "seconds": round(time.time() - started)}
        save(config, data, trainer, model, run | facts)
    trainer.accelerator.wait_for_everyone()


def opened(config: TrainKBMConfig, device: str, compute: str) -> tuple[Any, Any]:
    from kbtrain.models.adapters import open_base, trainable

    base, tokenizer = open_base(config.model, config.method, device, compute)
    return trainable(base, config.adapter(), config.gradient_checkpointing), tokenizer


def train(config: TrainKBMConfig, data: TrainingData, device: str, processes: int) -> tuple[KBMTrainer, str]:
    from transformers.utils.logging import disable_progress_bar

    from kbtrain.gates.kbm.gate import KBM
    from kbtrain.gates.kbm.train import KBMTrainer, make_row
    from kbtrain.gates.true_false.template import Encoder, kbm_template
    from kbtrain.models.adapters import compute_of
    from kbtrain.training.checks import check_base, check_fits, check_rows
    from kbtrain.training.plan.plan import planned
    from kbtrain.training.processes import main_first
    from kbtrain.training.run import last_good

    disable_progress_bar()  # transformers' own, of loading and writing
    tokenizer = check_base(config.model, config.method, config.dtype, device)
    encode = Encoder(tokenizer, kbm_template(config.keys), config.max_length).encode
    rows = [make_row(encode(e), [target(e, key, config.labels) for key in config.keys]) for e in data.train]
    check_rows(rows, [e.id for e in data.train])
    for example in data.dev:
        encode(example)  # one that does not fit is told of now, not after an epoch
    compute = main_first(
        lambda: settled(config.output, "compute", lambda: compute_of(config.model, config.dtype, device))
    )
    check_fits(planned(config), device, max(len(row.ids) for row in rows), processes)
    model, tokenizer = opened(config, device, compute)
    kbm = KBM(model, tokenizer, config.keys, config.max_length)
    arguments = training_arguments(config, compute, device, bool(data.dev))
    trainer = KBMTrainer(kbm, arguments, rows, data.dev, config.labels, progress_bar())
    checkpoint, broken = last_good(config.output / "checkpoints")
    trainer.accelerator.wait_for_everyone()  # all have looked before one of them sweeps
    for path in broken:
        say(f"{path}: incomplete (killed while saving); left out")
        shutil.rmtree(path, ignore_errors=True)
    if checkpoint:
        say(f"train_kbm: goes on from {checkpoint}")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return trainer, compute


def save(config: TrainKBMConfig, data: TrainingData, trainer: KBMTrainer, model: Any, run: dict[str, Any]) -> None:
    from kbtrain.gates.kbm.gate import KBMCard
    from kbtrain.gates.kbm.train import save_checked
    from kbtrain.models.adapters import base_fingerprint
    from kbtrain.training.run import write_run_files

    state, cut = trainer.state, sum(row.cut for row in trainer.rows)
    state.save_to_json(str(config.output / "trainer_state.json"))
    facts: dict[str, Any] = {
        "train_examples": len(data.train),
        "dev_examples": len(data.dev),
        "without_label": data.unlabelled,
    }
    facts |= {"reference_tokens_cut": cut, "steps": state.global_step, "best_step": state.best_global_step}
    card = KBMCard(
        base_model=config.model,
        prompt_fingerprint=kbm_fingerprint(trainer.kbm.scorer.encoder.tokenizer, config.keys),
        dtype="bf16" if run["compute"] == "bf16" else "fp32",
        merged=config.method == "full" or config.merge_adapter,
        base_fingerprint=None if config.method == "full" else base_fingerprint(config.model),
        label_rule=label_rule(config.train),
        run={**run, **facts, "peak_rss_mb": peak_rss_mb()},
        versions=package_versions(),
        **config.model_dump(include={"keys", "max_length", "method", "labels"}),
    )
    worst, scores = save_checked(config.output, model, trainer.kbm, card, data.dev, data.train[:64])
    inputs = [path for path in (config.train, config.dev) if path]
    write_run_files(config.output, config, ("train", "dev"), state.log_history)
    write_meta(config.output / CARD, stage="train", config=card.run, inputs=inputs, extra=facts)
    if not config.keep_checkpoints:
        shutil.rmtree(config.output / "checkpoints")
    say(
        f"train_kbm: {len(data.train)} examples ({data.unlabelled} without a label left out, {cut} reference tokens "
        f"cut), {state.global_step} steps in {run['seconds']} s ({run['compute']}); dev: "
        f"{', '.join(f'{name} {value:.3f}' for name, value in scores.items()) or 'none'}; saved, opened again, "
        f"scores equal (to {worst:.0e}) -> {config.output}"
    )


def progress_bar() -> Any:
    from tqdm import tqdm

    bar = tqdm(unit="step", disable=int(os.environ.get("RANK", "0")) > 0)

    def show(step: int, steps: int, logs: Mapping[str, float]) -> None:
        bar.total = steps
        if bar.n == 0:
            bar.initial = step - 1
        bar.update(step - bar.n)
        if "loss" in logs:
            bar.set_postfix(loss=f"{logs['loss']:.4f}")
        if "eval_loss" in logs:
            bar.write(f"step {step}: dev " + ", ".join(f"{k[5:]} {v:.3f}" for k, v in logs.items() if k[:4] == "eval"))

    return show


if __name__ == "__main__":
    run_script(main, TrainKBMConfig, __doc__)
