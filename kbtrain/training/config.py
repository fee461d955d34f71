"""Settings that every fine-tuning recipe has, as transformers' TrainingArguments."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from kbtrain.config import Config, check_each_once
from kbtrain.errors import UserError, require
from kbtrain.prompts.kbm import Key
from kbtrain.records import DtypeName
from kbtrain.training.data import Labels

if TYPE_CHECKING:
    from transformers import TrainingArguments

    from kbtrain.models.adapters import Adapter


class RecipeConfig(Config):
    """Settings of every recipe that reads a model, whether it trains in steps or in closed form."""

    # keys that do not decide the result: a run may resume, or be moved, with others
    not_part_of_a_run: ClassVar[frozenset[str]] = frozenset(
        {"output", "test", "dry_run", "keep_checkpoints", "report_to"}
    )

    model: str = Field(description="model to fine-tune: embedded name, local folder or hub id")
    train: Path = Field(description="training examples (JSONL)")
    dev: Path | None = Field(None, description="dev examples (JSONL), which choose the checkpoint")
    output: Path = Field(description="folder the gate is written to")
    dtype: DtypeName = Field(
        "auto", description="number format of the computation; auto: chosen for the processor; parameters stay in fp32"
    )
    device: str = Field("auto", description="auto, cpu or cuda")
    dry_run: bool = Field(False, description="print rendered examples, lengths, steps and estimates, and stop")

    def writes(self) -> tuple[Path, ...]:
        return (self.output,)


class FitConfig(Config):
    """Settings of every recipe that fits a gate in seconds."""

    train: Path = Field(description="training examples (JSONL)")
    dev: Path = Field(description="dev examples (JSONL), which choose the thresholds stored in the folder")
    output: Path = Field(description="folder the gate is written to")
    labels: Labels = Field("soft", description="hard, or soft (sampled shares)")

    def writes(self) -> tuple[Path, ...]:
        return (self.output,)


class KeyedFitConfig(FitConfig):
    """Settings of every such recipe for gates with several keys."""

    keys: tuple[Key, ...] = Field(("mastery", "benefit"), min_length=1, description="labels to learn")
    seed: int = Field(0, ge=0, lt=2**31, description="of the folds")

    @model_validator(mode="after")
    def _each_once(self) -> KeyedFitConfig:
        check_each_once("keys", self.keys)
        return self


class TrainingConfig(RecipeConfig):
    """Settings of every training; a recipe adds its own.

    For any ``dtype``, weights are kept in fp32 (DeepSpeed keeps its own copy): AdamW's updates at 1e-5 are smaller
    than what bf16 can add to a weight.
    """

    shared_work: ClassVar[bool] = True

    epochs: float = Field(3, gt=0, le=1e6, description="passes over the training examples")
    device_batch_size: int = Field(4, ge=1, description="rows per device and forward pass")
    gradient_accumulation_steps: int = Field(1, ge=1, description="forward passes per step")
    learning_rate: float = Field(1e-5, gt=0, le=1, description="peak learning rate")
    warmup_share: float = Field(0.02, ge=0, lt=1, description="share of the steps over which the rate rises")
    schedule: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="decay of the learning rate after the warm-up; constant has neither"
    )
    weight_decay: float = Field(0.0, ge=0, le=1e3, description="AdamW's weight decay")
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    save_steps: int | None = Field(None, ge=1, description="checkpoint and dev scores every N steps; null: every epoch")
    select: Literal["loss", "auroc", "last"] = Field(
        "loss", description="which checkpoint to keep: best dev loss or auroc, or the last"
    )
    gradient_checkpointing: bool = Field(False, description="less memory for a third more time")
    seed: int = Field(0, ge=0, lt=2**31, description="order of the rows, dropout, initial adapters")
    report_to: Literal["none", "wandb", "tensorboard"] = Field("none", description="other places to report losses to")
    keep_checkpoints: bool = Field(False, description="keep the last and best checkpoint of a finished run")

    def trained_by(self) -> Literal["full", "lora", "qlora"]:
        """All weights are trained, unless a recipe has adapters."""
        return "full"

    def adapter(self) -> Adapter | None:
        """The adapters that are trained; None where all weights are."""
        return None


_SAME_NAME = (
    "gradient_accumulation_steps", "learning_rate", "weight_decay", "max_grad_norm", "seed", "report_to",
)  # fmt: skip


def training_arguments(config: TrainingConfig, compute: str, device: str, has_dev: bool) -> TrainingArguments:
    """``compute``: fp32, bf16 or fp16. Raises :class:`UserError` for fp16 on a CPU, and for a GPU but the first."""
    from transformers import TrainingArguments

    if compute == "fp16" and device == "cpu":
        raise UserError("key 'dtype': fp16 training needs a GPU; use bf16 or fp32")
    if device.startswith("cuda:") and device != "cuda:0":  # transformers would take the model to the first
        raise UserError(
            f"key 'device': a training takes the first GPU; CUDA_VISIBLE_DEVICES={device[5:]} makes it that"
        )
    if config.report_to != "none":
        require(config.report_to, config.report_to)
        os.environ.setdefault("WANDB_DIR", str(config.output))
        os.environ.setdefault("WANDB_PROJECT", "kbtrain")
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(config.output / "tensorboard")
    os.environ["ACCELERATE_MIXED_PRECISION"] = "no" if compute == "fp32" else compute  # a launcher may say another
    when = "epoch" if config.save_steps is None else "steps"
    checkpoints: dict[str, Any] = {"save_strategy": when, "eval_strategy": when if has_dev else "no"}
    if config.save_steps is not None:
        checkpoints |= {"save_steps": config.save_steps, "eval_steps": config.save_steps}
    if config.select != "last":
        checkpoints |= {"load_best_model_at_end": True, "metric_for_best_model": config.select}
        checkpoints["greater_is_better"] = config.select != "loss"
    arguments = TrainingArguments(
        output_dir=str(config.output / "checkpoints"),
        num_train_epochs=config.epochs,
        per_device_train_batch_size=config.device_batch_size,
        warmup_steps=config.warmup_share,
        lr_scheduler_type=config.schedule,
        optim="adamw_torch_fused" if device == "cpu" or device.startswith("cuda") else "adamw_torch",
        bf16=compute == "bf16",
        fp16=compute == "fp16",
        use_cpu=device == "cpu",
        logging_steps=1,
        logging_nan_inf_filter=False,  # else a NaN loss is shown as the one before
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        dataloader_pin_memory=device != "cpu",
        **{name: getattr(config, name) for name in _SAME_NAME},
        **checkpoints,
    )
    # a process computes on one GPU: transformers would put copies on all, and take as many times the rows
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


LoraRank = Annotated[int, Field(ge=1, description="rank of the adapters")]
LoraAlpha = Annotated[int, Field(ge=1, description="scale of the adapters")]
LoraDropout = Annotated[float, Field(ge=0, lt=1, description="dropout before the adapters")]


class LanguageModelConfig(TrainingConfig):
    """Settings of every fine-tuning of a causal language model, whole or by adapters."""

    max_length: int = Field(
        1580, ge=64, description="longest prompt and answer, in tokens; a longer reference loses its end"
    )
    method: Literal["full", "lora", "qlora"] = Field(
        "full", description="train all parameters, low-rank adapters, or adapters beside parameters in 4 bits (NF4)"
    )
    lora_rank: LoraRank = 16
    lora_alpha: LoraAlpha = 32
    lora_dropout: LoraDropout = 0.05
    merge_adapter: bool = Field(True, description="also save merged parameters, so that the folder needs no base model")

    def trained_by(self) -> Literal["full", "lora", "qlora"]:
        return self.method

    def adapter(self) -> Adapter | None:
        from kbtrain.models.adapters import Adapter

        full = self.method == "full"
        return None if full else Adapter(self.lora_rank, self.lora_alpha, self.lora_dropout, self.seed)


class HeldOutConfig(TrainingConfig):
    """Settings of every gate whose dev examples choose its threshold, and that is scored at its end."""

    dev: Path = Field(description="dev examples (JSONL), which choose checkpoint and threshold")
    test: Path | None = Field(None, description="test examples, scored after the training")
    select: Literal["loss", "auroc", "average_precision", "f1", "last"] = Field(  # type: ignore[assignment]
        "f1", description="which checkpoint to keep, by dev: loss, auroc, average_precision, f1; or the last"
    )


class ClassifierConfig(HeldOutConfig):
    """Settings of every gate that classifies questions or turns (encoder, probe, RAGate-MHA)."""

    key: Key = Field("mastery", description="questions only: label to learn")
    labels: Labels = Field("hard", description="questions only: hard, or soft (sampled shares)")
    class_weight: float = Field(
        1.0,
        ge=0,
        le=1,
        description="0: no class weights; 1: both classes count the same in a step that has their usual shares",
    )
