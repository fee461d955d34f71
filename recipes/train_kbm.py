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
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from kbtrain.config import Config, run_script
from kbtrain.gates.folder import CARD, GateCard
from kbtrain.prompts import ALL_KEYS, Key, kbm_fingerprint
from kbtrain.provenance import meta_path, package_versions, peak_rss_mb, read_meta, write_meta
from kbtrain.training.arguments import Adapter, Schedule, Select, Settings, training_arguments
from kbtrain.training.data import Labels, check_dev, read_data, target
from kbtrain.training.identity import claim, identity, settled

NOT_PART_OF_A_RUN = frozenset({"output", "dry_run", "keep_checkpoints", "report_to"})


class TrainKBMConfig(Config):
    model: str = Field(description="model to fine-tune: embedded name, local folder or hub id")
    train: Path = Field(description="training examples (JSONL)")
    dev: Path | None = Field(None, description="dev examples (JSONL); choose the checkpoint")
    output: Path = Field(description="folder the gate is written to")
    keys: tuple[Key, ...] = Field(ALL_KEYS, description="what the gate learns to say, in this order")
    labels: Labels = Field("hard", description="hard: True/False as in the paper; soft: the sampled shares")
    method: Literal["full", "lora"] = Field("full", description="train all weights, or low-rank adapters")
    lora_rank: int = Field(16, ge=1, description="rank of the adapters")
    lora_alpha: int = Field(32, ge=1, description="scale of the adapters")
    lora_dropout: float = Field(0.05, ge=0, lt=1, description="dropout before the adapters")
    merge_adapter: bool = Field(True, description="also save merged weights, so that the folder needs no base model")
    epochs: float = Field(3, gt=0, description="passes over the training examples")
    device_batch_size: int = Field(4, ge=1, description="rows per device and forward pass")
    gradient_accumulation_steps: int = Field(1, ge=1, description="forward passes per step")
    learning_rate: float = Field(1e-5, gt=0, description="peak learning rate")
    warmup_share: float = Field(0.02, ge=0, lt=1, description="share of the steps over which the rate rises")
    schedule: Schedule = Field("cosine", description="how the rate falls afterwards: cosine, linear, constant")
    weight_decay: float = Field(0.0, ge=0, description="AdamW's weight decay")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    max_length: int = Field(1580, ge=64, description="tokens of prompt and answer; a longer reference loses its tail")
    save_steps: int | None = Field(None, ge=1, description="checkpoint and dev scores every N steps; else every epoch")
    select: Select = Field("loss", description="the checkpoint kept: best dev loss, best dev auroc, or last")
    dtype: str = Field("auto", description="compute in auto, bf16, fp32 or fp16; weights are kept in fp32")
    device: str = Field("auto", description="auto, cpu or cuda")
    gradient_checkpointing: bool = Field(False, description="less memory for a third more time")
    seed: int = Field(0, ge=0, description="order of the rows, dropout, initial adapters")
    report_to: Literal["none", "wandb"] = Field("none", description="where else losses go")
    keep_checkpoints: bool = Field(False, description="keep the last and best checkpoint of a finished run")
    dry_run: bool = Field(False, description="show rendered examples, lengths, steps and estimates, and stop")

    @model_validator(mode="after")
    def _possible(self) -> TrainKBMConfig:
        if not self.keys or len(set(self.keys)) < len(self.keys):
            raise ValueError("keys must name one key or more, each once")
        return self

    def settings(self, compute: str) -> Settings:
        fields = {name: getattr(self, name) for name in Settings.__dataclass_fields__ if name != "compute"}
        return Settings(compute=compute, **fields)

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
        from kbtrain.training.dry_run import dry_run

        at_once = config.device_batch_size * config.gradient_accumulation_steps
        shape = (config.keys, config.labels, config.max_length, config.epochs, at_once)
        return say(dry_run(config.model, data, *shape, config.adapter()))
    from accelerate.state import PartialState  # type: ignore[import-untyped]
    from transformers.utils.logging import disable_progress_bar

    from kbtrain.llm.load import choose_device, load_model
    from kbtrain.llm.precision import choose_dtype, name_of
    from kbtrain.training.processes import start_processes, under_deepspeed

    device = choose_device(config.device)
    world = start_processes(device)
    run = identity(config.model_dump(mode="json"), config.train, config.dev, NOT_PART_OF_A_RUN)
    with PartialState().main_process_first():
        claim(config.output, run)
    if (config.output / CARD).exists():
        return say(f"train_kbm: {config.output} is finished already; nothing to do")
    disable_progress_bar()  # transformers' own, of loading and writing
    base, tokenizer = load_model(config.model, "bf16" if under_deepspeed() else "fp32", device)
    kind = base.config.model_type
    with PartialState().main_process_first():  # once for all ranks and for every resume: auto is a measurement
        compute = settled(config.output, "compute", lambda: name_of(choose_dtype(config.dtype, device, kind)))
    adapter = config.adapter()
    model: Any = adapter(base) if adapter else base
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    from kbtrain.gates.kbm import KBM
    from kbtrain.training.checkpoints import last_good
    from kbtrain.training.rows import make_row
    from kbtrain.training.trainer import KBMTrainer

    kbm = KBM(model, tokenizer, config.keys, config.max_length)
    encode = kbm.scorer.encoder.encode
    rows = [make_row(encode(e), [target(e, key, config.labels) for key in config.keys]) for e in data.train]
    checkpoints = config.output / "checkpoints"
    arguments = training_arguments(config.settings(compute), checkpoints, device, bool(data.dev))
    trainer = KBMTrainer(kbm, arguments, rows, data.dev, config.labels, progress_bar())
    checkpoint, broken = last_good(checkpoints)
    for path in broken:
        say(f"{path}: incomplete (killed while saving); left out")
        shutil.rmtree(path, ignore_errors=world > 1)  # each rank sweeps
    if checkpoint:
        say(f"train_kbm: goes on from {checkpoint}")
    trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    model, state = trainer.plain_model(), trainer.state
    if arguments.should_save:
        state.save_to_json(str(config.output / "trainer_state.json"))
        from kbtrain.training.save import save_checked

        cut = sum(row.cut for row in rows)
        facts: dict[str, Any] = {"train_examples": len(rows), "dev_examples": len(data.dev)}
        facts |= {"without_label": data.unlabelled, "reference_tokens_cut": cut, "steps": state.global_step}
        facts |= {"best_step": state.best_global_step, "compute": compute, "device": device, "processes": world}
        facts |= {"seconds": round(time.time() - started), "peak_rss_mb": peak_rss_mb()}
        card = gate_card(config, tokenizer, compute, {**run, **facts})
        worst, scores = save_checked(config.output, model, kbm, card, data.dev, data.train[:64])
        inputs = [path for path in (config.train, config.dev) if path]
        write_meta(config.output / CARD, stage="train", config=run, inputs=inputs, extra=facts, started=started)
        if not config.keep_checkpoints:
            shutil.rmtree(checkpoints)
        say(
            f"train_kbm: {len(rows)} examples ({data.unlabelled} without a label left out, "
            f"{cut} reference tokens cut), {state.global_step} steps in {facts['seconds']} s "
            f"({compute}); dev: {', '.join(f'{name} {value:.3f}' for name, value in scores.items()) or 'none'}; saved, "
            f"opened again, scores equal (to {worst:.0e}) -> {config.output}"
        )
    trainer.accelerator.wait_for_everyone()


def gate_card(config: TrainKBMConfig, tokenizer: Any, compute: str, run: dict[str, Any]) -> GateCard:
    return GateCard(
        kind="kbm",
        base_model=config.model,
        keys=config.keys,
        prompt_fingerprint=kbm_fingerprint(tokenizer, config.keys),
        max_length=config.max_length,
        dtype="bf16" if compute == "bf16" else "fp32",
        method=config.method,
        labels=config.labels,
        merged=config.method == "full" or config.merge_adapter,
        label_rule=read_meta(config.train).get("label_rule", {}) if meta_path(config.train).exists() else {},
        run=run,
        versions=package_versions(),
    )


def progress_bar() -> Any:
    from tqdm import tqdm

    bar = tqdm(unit="step", disable=int(os.environ.get("RANK", "0")) > 0)

    def show(step: int, steps: int, logs: Mapping[str, float]) -> None:
        bar.total, bar.initial = steps, bar.initial or step - 1
        bar.update(step - bar.n)
        if "loss" in logs:
            bar.set_postfix(loss=f"{logs['loss']:.4f}")
        if "eval_loss" in logs:
            bar.write(f"step {step}: dev " + ", ".join(f"{k[5:]} {v:.3f}" for k, v in logs.items() if k[:4] == "eval"))

    return show


if __name__ == "__main__":
    run_script(main, TrainKBMConfig, __doc__)
