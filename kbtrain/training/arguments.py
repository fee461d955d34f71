"""A recipe's plain settings as transformers' TrainingArguments, and the adapter that LoRA adds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kbtrain.errors import UserError

if TYPE_CHECKING:
    from transformers import TrainingArguments

Select = Literal["loss", "auroc", "last"]
Schedule = Literal["cosine", "linear", "constant"]


@dataclass(frozen=True)
class Settings:
    """``warmup_share``: share of all steps; ``save_steps``: None saves (and looks at dev) once an epoch.

    ``compute``: fp32, bf16 or fp16. Weights are kept in fp32 whatever it is (DeepSpeed keeps its own copy): AdamW's
    updates at 1e-5 are smaller than bf16 can add to a weight.
    """

    epochs: float
    device_batch_size: int
    gradient_accumulation_steps: int
    learning_rate: float
    warmup_share: float
    schedule: Schedule
    weight_decay: float
    max_grad_norm: float
    save_steps: int | None
    select: Select
    seed: int
    compute: str
    report_to: str


def training_arguments(settings: Settings, checkpoints: Path, device: str, has_dev: bool) -> TrainingArguments:
    """Raises :class:`UserError` for fp16 on a CPU."""
    from transformers import TrainingArguments

    if settings.compute == "fp16" and device == "cpu":
        raise UserError("key 'dtype': fp16 training needs a GPU; use bf16 or fp32")
    every: dict[str, Any] = {"save_strategy": "epoch", "eval_strategy": "epoch" if has_dev else "no"}
    if settings.save_steps is not None:
        every = {"save_strategy": "steps", "eval_strategy": "steps" if has_dev else "no"}
        every |= {"save_steps": settings.save_steps, "eval_steps": settings.save_steps}
    best: dict[str, Any] = {}
    if settings.select != "last":
        best = {"load_best_model_at_end": True, "metric_for_best_model": settings.select}
        best["greater_is_better"] = settings.select == "auroc"
    return TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.device_batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        learning_rate=settings.learning_rate,
        warmup_steps=settings.warmup_share,
        lr_scheduler_type=settings.schedule,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        optim="adamw_torch",
        bf16=settings.compute == "bf16",
        fp16=settings.compute == "fp16",
        use_cpu=device == "cpu",
        seed=settings.seed,
        logging_steps=1,
        logging_nan_inf_filter=False,  # else a loss that is no number is shown as the one before
        remove_unused_columns=False,
        dataloader_pin_memory=device != "cpu",
        report_to=settings.report_to,
        **every,
        **best,
    )


@dataclass(frozen=True)
class Adapter:
    """Low-rank adapters (LoRA) on all linear layers but the output layer."""

    rank: int
    alpha: int
    dropout: float
    seed: int  # of the initial values

    def __call__(self, model: Any) -> Any:
        """The model wrapped with new adapters (peft)."""
        from peft import LoraConfig, get_peft_model
        from transformers import set_seed

        set_seed(self.seed)
        config = LoraConfig(
            r=self.rank,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        return get_peft_model(model, config)
