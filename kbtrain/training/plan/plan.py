"""Plan of a training: memory by ZeRO stage, steps, operations and hours, and what to change where it does not fit.

It is made from the keys of a recipe's YAML file that decide what a training needs; the others are left alone.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, model_validator

from kbtrain.config import build
from kbtrain.models.files_read import config_of, parameters_of
from kbtrain.prompts.kbm import PAPER_KEYS, KBMPrompt, Key
from kbtrain.training.config import LanguageModelConfig, TrainingConfig
from kbtrain.training.plan.memory import (
    CONTEXT,
    LAYOUTS,
    NF4_BYTES,
    Activations,
    Batch,
    Layout,
    Need,
    Weights,
    activations,
    needs,
)

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from kbtrain.models.adapters import Adapter


class PlannedTraining(LanguageModelConfig):
    """A recipe of a causal language model (train_kbm.py, train_ragate_peft.py), with or without its files."""

    # neither memory nor time depends on these keys of the two recipes
    unread_keys = frozenset({"labels", "label_smoothing", "loss_on", "features", "test"})

    train: Path | None = Field(None, description="training examples")  # type: ignore[assignment]
    output: Path | None = Field(None, description="folder")  # type: ignore[assignment]
    select: str = Field("loss", description="checkpoint kept")  # type: ignore[assignment]
    keys: tuple[Key, ...] = Field(PAPER_KEYS, description="what a KBM learns to say")
    prompt: KBMPrompt = Field("paper", description="a KBM's prompt")

    @model_validator(mode="before")
    @classmethod
    def _check_plan(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name not in cls.unread_keys}


def read_planned(path: Path, changes: dict[str, Any] | None = None) -> PlannedTraining:
    """A recipe's YAML file, with some keys changed. Raises :class:`~kbtrain.errors.UserError`."""
    return build(PlannedTraining, path, changes or {})


def as_plan(config: TrainingConfig) -> PlannedTraining:
    """A recipe's own configuration as a plan reads it."""
    return PlannedTraining.model_validate(config.model_dump(include=set(PlannedTraining.model_fields)))


@dataclass(frozen=True)
class Work:
    """``operations``: multiplications and additions of all devices; ``tokens`` of all epochs, padding not counted."""

    examples: int
    steps: int
    tokens: int
    operations: float

    def hours(self, rate: float, devices: int) -> float:
        """``rate``: operations a second that one device reaches in training."""
        return self.operations / (rate * devices) / 3600


ANSWER = 32  # tokens of an answer: figure 14's has about 20, RAGate's 1


@dataclass(frozen=True)
class Plan:
    """``memory`` on one device for each layout, at full length; ``weights`` counts."""

    config: PlannedTraining
    shape: Any
    weights: Weights
    devices: int
    cached_activations: Activations
    memory: tuple[Need, ...]

    def need(self, layout: Layout) -> Need:
        """The need of one layout."""
        return next(need for need in self.memory if need.layout == layout)


def make_plan(config: PlannedTraining, devices: int, context: float = CONTEXT, layouts: Sequence[Layout] = ()) -> Plan:
    """Raises :class:`~kbtrain.errors.UserError` for a model whose config cannot be opened. No weights are loaded."""
    shape = config_of(config.model)
    weights = count(config, shape)
    adapt, lean = None if weights.full else adapter_of(config), not config.gradient_checkpointing

    @functools.cache  # most layouts have the same
    def cached_activations(batch: Batch) -> Activations:
        return activations(shape, batch, adapt, lean)

    layer_bytes, memory = None, []
    for layout in layouts or tuple(LAYOUTS):
        layer_bytes = cached_activations(batch_of(config, layout))
        total = (
            layer_bytes.total_bytes(config.gradient_checkpointing) + layer_bytes.layer
        )  # and the gradients of one layer's tensors
        memory.append(needs(layout, weights, devices, total, context))
    assert layer_bytes is not None
    return Plan(config, shape, weights, devices, layer_bytes, tuple(memory))


def planned_work(plan: Plan, examples: int, mean_tokens: float) -> Work:
    """Work of a training on ``examples`` rows of that mean length.

    Two operations a weight and token forward, two for the gradient of the input, two for that of the weight.

    Frozen weights have no gradient of their own; checkpointing computes forward twice. Attention's products are
    counted over half the square (causal); embedding and output layer are not (a few positions have logits).
    """
    config, weights, checkpointing = plan.config, plan.weights, int(plan.config.gradient_checkpointing)
    text = plan.shape.get_text_config()
    outside = text.vocab_size * text.hidden_size * (1 if text.tie_word_embeddings else 2)
    tokens = round(examples * mean_tokens * config.epochs)
    passes = (2 if weights.full else 1) + 1 + checkpointing
    linear = 2.0 * ((weights.frozen or weights.trained) - outside) * tokens
    heads = text.num_attention_heads * (getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    attention = 2.0 * mean_tokens * heads * text.num_hidden_layers * tokens
    rows_a_step = config.device_batch_size * config.gradient_accumulation_steps * plan.devices
    steps = math.ceil(math.ceil(examples / rows_a_step) * config.epochs)
    return Work(examples, steps, tokens, passes * linear + (3 + checkpointing) * attention)


def batch_of(config: PlannedTraining, layout: Layout) -> Batch:
    """One forward pass at full length: fp32, 16 bits (DeepSpeed, frozen weights), or fp32 weights under autocast."""
    rows, tokens = config.device_batch_size, config.max_length
    if config.dtype == "fp32":
        return Batch(rows, tokens, ANSWER, bits=32)
    return Batch(rows, tokens, ANSWER, bits=16, autocast=layout == "none" and config.method == "full")


def count(config: PlannedTraining, shape: PretrainedConfig) -> Weights:
    """All weights and, with adapters, how many of them are trained."""
    total = parameters_of(shape)
    if config.method == "full":
        return Weights(0, total)
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = adapter_of(config)(AutoModelForCausalLM.from_config(shape))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if config.method == "lora":
        return Weights(total, trained, 4.0 if config.dtype == "fp32" else 2.0)
    text = shape.get_text_config()
    cached_activations = text.vocab_size * text.hidden_size * (1 if text.tie_word_embeddings else 2)
    size = (NF4_BYTES * (total - cached_activations) + 2.0 * cached_activations) / total
    return Weights(total, trained, size)


def adapter_of(config: PlannedTraining) -> Adapter:
    """The adapters that the recipe would add."""
    from kbtrain.models.adapters import Adapter

    return Adapter(config.lora_rank, config.lora_alpha, config.lora_dropout, config.seed)


@dataclass(frozen=True)
class LayoutChange:
    """One thing to change, the layout it is for, and the bytes a device then needs."""

    text: str
    layout: Layout
    peak: float


def ways_to_fit(plan: Plan, layout: Layout, memory: float) -> list[LayoutChange]:
    """Changes that make the training fit into ``memory`` bytes a device, the mildest first."""
    tried: list[tuple[str, PlannedTraining, Layout]] = []
    config = plan.config
    smaller, rows, passes = config, config.device_batch_size, config.gradient_accumulation_steps
    if not config.gradient_checkpointing:
        smaller = config.model_copy(update={"gradient_checkpointing": True})
        tried.append(("gradient_checkpointing: true", smaller, layout))
    while rows > 1 and rows % 2 == 0:
        rows, passes = rows // 2, passes * 2
        smaller = smaller.model_copy(update={"device_batch_size": rows, "gradient_accumulation_steps": passes})
        text = f"device_batch_size: {rows}, gradient_accumulation_steps: {passes}"
        tried.append(
            (text + (", gradient_checkpointing: true" if not config.gradient_checkpointing else ""), smaller, layout)
        )
    order: list[Layout] = ["none", "zero2", "zero3", "zero2_offload"]
    for other in order[order.index(layout) + 1 if layout in order else 1 :]:
        tried.append((f"launch with {LAYOUTS[other]}", config, other))
    for method in ("lora", "qlora"):
        if config.method == "full" or (config.method, method) == ("lora", "qlora"):
            tried.append((f"method: {method}", config.model_copy(update={"method": method}), layout))
    fitting = []
    for text, changed, other in tried:
        peak = make_plan(changed, plan.devices, layouts=[other]).memory[0].peak
        if peak <= memory:
            fitting.append(LayoutChange(text, other, peak))
    return fitting


def on_cpu(plan: Plan, layout: Layout) -> Need:
    """Without the GPU's context: what a process on a CPU adds to its libraries."""
    return replace(plan.need(layout), context=0.0)
