"""Plan of a training before any weights are loaded: checks, memory by ZeRO stage, steps, operations and hours.

It is made from the keys of a recipe's YAML file that decide what a training needs; the others are left alone. Where a
training does not fit, the plan says what to change.
"""

from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, model_validator

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.io.jsonl import read_json
from kbtrain.kernels.memory import available_memory, machine_memory
from kbtrain.models.files_read import config_of, folder_of, mlp_width, parameters_of
from kbtrain.models.weights import weight_files
from kbtrain.prompts.kbm import PAPER_KEYS, KBMPrompt, Key
from kbtrain.show import aligned
from kbtrain.training.config import LanguageModelConfig, TrainingConfig
from kbtrain.training.plan_memory import (
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
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

_GIB = 2**30
_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")


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
    memory: tuple[Need, ...]

    def need(self, layout: Layout) -> Need:
        """The need of one layout."""
        return next(need for need in self.memory if need.layout == layout)

    @property
    def rows_a_step(self) -> int:
        """Rows of one optimizer step, all devices together."""
        return self.config.device_batch_size * self.config.gradient_accumulation_steps * self.devices


def make_plan(
    config: PlannedTraining, devices: int, context: float = CONTEXT, layouts: Sequence[Layout] = tuple(LAYOUTS)
) -> Plan:
    """Raises :class:`~kbtrain.errors.UserError` for a model whose config cannot be opened. No weights are loaded."""
    shape = config_of(config.model)
    weights = count(config, shape)
    adapt, lean = None if weights.full else config.adapter(), not config.gradient_checkpointing

    @functools.cache  # most layouts have the same
    def of_batch(batch: Batch) -> Activations:
        return activations(shape, batch, adapt, lean)

    memory = []
    for layout in layouts:
        of_pass = of_batch(batch_of(config, layout))
        total = of_pass.total_bytes(config.gradient_checkpointing) + of_pass.layer  # and one layer's gradients
        memory.append(needs(layout, weights, devices, total, context))
    return Plan(config, shape, weights, devices, tuple(memory))


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
    steps = math.ceil(math.ceil(examples / plan.rows_a_step) * config.epochs)  # an epoch's last may have fewer rows
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
    adapter = config.adapter()
    if adapter is None:
        return Weights(0, total)
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: Any = adapter(AutoModelForCausalLM.from_config(shape))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    if config.method == "lora":
        return Weights(total, trained, 4.0 if config.dtype == "fp32" else 2.0)
    text = shape.get_text_config()
    unquantised = text.vocab_size * text.hidden_size * (1 if text.tie_word_embeddings else 2)
    size = (NF4_BYTES * (total - unquantised) + 2.0 * unquantised) / total
    return Weights(total, trained, size)


def ways_to_fit(plan: Plan, layout: Layout, memory: float) -> list[tuple[str, Layout, float]]:
    """Changes that make the training fit into ``memory`` bytes a device, the mildest first: each in words, the layout
    that it is for, and the bytes that a device then needs."""
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
            fitting.append((text, other, peak))
    return fitting


class Workload(NamedTuple):
    """``examples`` and their mean ``tokens`` give steps; ``rate`` in TFLOP/s a GPU gives hours."""

    examples: int | None = None
    tokens: float | None = None
    rate: float | None = None


def text_plan(path: Path, gpus: int, gpu_memory: float, changes: dict[str, Any], workload: Workload) -> str:
    """A recipe's plan; ``gpu_memory`` in GiB. Raises :class:`UserError`."""
    plan = make_plan(read_planned(path, changes), gpus)
    parts = [_head(plan, path, gpu_memory), _table(plan, gpu_memory), _work(plan, workload), _advice(plan, gpu_memory)]
    return "\n\n".join(parts)


def _head(plan: Plan, path: Path, gpu_memory: float) -> str:
    c, w = plan.config, plan.weights
    trained = "all trained" if w.full else f"frozen; {w.trained:,} trained in adapters"
    checkpointing = "with" if c.gradient_checkpointing else "without"
    return (
        f"{path}: {c.model}, method {c.method}, {plan.devices} GPU{'s' * (plan.devices > 1)} of {gpu_memory:g} GiB\n"
        f"{(w.frozen or w.trained):,} weights, {trained}; {c.device_batch_size} rows of at most {c.max_length} tokens "
        f"a forward pass, {plan.rows_a_step} rows a step, {checkpointing} gradient checkpointing"
    )


def _table(plan: Plan, gpu_memory: float) -> str:
    rows = []
    for need in plan.memory:
        states = (need.weights, need.gradients, need.optimizer)
        numbers = (*states, need.activations, need.stepping, need.buffers, need.peak)
        host, fits = f"{need.host / _GIB:.0f}" if need.host else "", need.peak <= gpu_memory * _GIB
        rows.append([LAYOUTS[need.layout], *(f"{n / _GIB:.1f}" for n in numbers), host, "yes" if fits else "no"])
    head = ("GiB a device", "weights", "gradients", "AdamW", "activations", "step", "buffers", "peak", "host", "fits")
    note = "peak: all but the smaller of activations and step, plus 1 GiB assumed for context and allocator"
    return f"{aligned(head, rows)}\n{note}"


def _work(plan: Plan, workload: Workload) -> str:
    examples, tokens, rate = workload
    if examples is None:
        return "steps and time: give --train FILE, or --examples N and --tokens MEAN"
    work = planned_work(plan, examples, float(plan.config.max_length if tokens is None else tokens))
    line = f"{work.examples:,} examples: {work.steps:,} steps, {work.tokens:,} tokens, {work.operations:.2g} operations"
    if rate is None:
        return line + "; give --rate TFLOPS (what a GPU reaches in training) for the time"
    return line + f"; {work.hours(rate * 1e12, plan.devices):.1f} hours at {rate:g} TFLOP/s a GPU"


def _advice(plan: Plan, gpu_memory: float) -> str:
    layout: Layout = "none" if plan.devices == 1 or not plan.weights.full else "zero2"
    if plan.need(layout).peak <= gpu_memory * _GIB:
        return f"fits with {LAYOUTS[layout]}: {plan.need(layout).peak / _GIB:.1f} of {gpu_memory:g} GiB"
    changes = ways_to_fit(plan, layout, gpu_memory * _GIB)
    if not changes:
        raise UserError(
            f"{LAYOUTS[layout]} needs {plan.need(layout).peak / _GIB:.1f} GiB a device, {gpu_memory:g} are there, "
            "and no change of batch, ZeRO stage or method makes it fit; take more GPUs or a smaller model"
        )
    lines = [f"- {what}  ({peak / _GIB:.1f} GiB with {LAYOUTS[other]})" for what, other, peak in changes]
    return f"does not fit with {LAYOUTS[layout]}; what makes it fit:\n" + "\n".join(lines)


def check_base(model: str, method: str, dtype: str, device: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that can be trained this way. Raises :class:`UserError`, one line, before weights.

    - fp16 with Qwen2, or on a CPU;
    - a padding or end token that the model has no row for;
    - adapters on a model whose files hold no output layer: a new one would be random and never saved.
    """
    from kbtrain.models.load import choose_dtype, load_tokenizer

    if dtype.startswith("fp16") and device == "cpu":
        raise UserError("key 'dtype': fp16 training needs a GPU; use bf16 or fp32")
    tokenizer = load_tokenizer(model)
    config = config_of(model)
    if dtype != "auto":
        choose_dtype(dtype, device, config.model_type)
    check_tokens(tokenizer, config.get_text_config().vocab_size, model)
    if method != "full" and not config.tie_word_embeddings:
        _check_head(model)
    return tokenizer


def check_tokens(tokenizer: PreTrainedTokenizerBase, vocabulary: int, model: str) -> None:
    """Check the pad token: it may be the end token, as padded places are masked and have no label, so the end is learnt
    all the same; but the model must know it."""
    for name in ("pad", "eos"):
        token_id = getattr(tokenizer, f"{name}_token_id")
        if token_id is not None and token_id >= vocabulary:
            raise UserError(
                f"model '{model}': its tokenizer's {name} token has id {token_id}, but the model knows ids below "
                f"{vocabulary}; set {name}_token to one of its own (for pad: the EOS token will do)"
            )


def _check_head(model: str) -> None:
    folder = folder_of(model)
    names = weight_files(folder) if folder else {}
    if names and not any(name.endswith(_HEADS) for name in names):
        raise UserError(
            f"model '{model}': its files hold no output layer (lm_head.weight); adapters would leave it random and "
            "unsaved; take a causal language model, or method: full"
        )


def check_fits(config: PlannedTraining, device: str, longest: int, processes: int) -> None:
    """Raises :class:`UserError` if a batch of the longest rows cannot fit into the device's memory, by the plan; warns
    if it would not fit into what is free of a machine's."""
    layout: Any = launched_layout() if processes > 1 or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true" else "none"
    room, context = device_memory(device), CONTEXT if device.startswith("cuda") else 0.5e9
    free = room if device.startswith("cuda") else min(room, float(available_memory()))
    if _at_most(config, longest) < min(room / 2, free):
        return  # plainly so: the plan's pass over the model's layers would only take time
    shorter: Any = config.model_copy(update={"max_length": max(16, min(longest, config.max_length))})
    need = make_plan(shorter, processes, context, [layout]).memory[0]
    if need.peak > room:
        raise UserError(
            f"key 'device_batch_size': {config.device_batch_size} rows of {longest} tokens need about "
            f"{need.peak / 1e9:.1f} GB on a device of {room / 1e9:.1f} GB; 'kbtrain plan' says what would fit"
        )
    if need.peak > free:
        warnings.warn(
            f"this training needs about {need.peak / 1e9:.1f} GB, and {free / 1e9:.1f} GB are available: the system "
            "may end it; 'kbtrain plan' says what takes less",
            stacklevel=2,
        )


def _at_most(config: PlannedTraining, longest: int) -> float:
    """More bytes than any training of this model takes: fp32 everywhere, nothing split, attention kept in full."""
    text = config_of(config.model).get_text_config()
    wide, inner = text.hidden_size, mlp_width(text)
    layer = 4 * wide * wide + 3 * wide * inner
    weights = text.num_hidden_layers * layer + 2 * text.vocab_size * wide
    tokens = config.device_batch_size * longest
    activations = (
        4 * tokens * (text.num_hidden_layers * (40 * wide + 8 * inner + 6 * longest * text.num_attention_heads))
    )
    return float(24.0 * weights + activations + 4 * 4 * tokens * wide + 2e9)


def launched_layout() -> Any:
    """The ZeRO stage of ``accelerate launch``, as a layout of a plan."""
    path = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    if not path or not Path(path).exists():
        return "none"
    zero = read_json(path).get("zero_optimization", {})
    offload = "_offload" if zero.get("offload_optimizer") and zero.get("stage") == 2 else ""
    return {0: "none"}.get(zero.get("stage", 0), f"zero{zero.get('stage', 0)}{offload}")


def device_memory(device: str) -> float:
    """Bytes of one GPU, or of the machine."""
    import torch

    if device.startswith("cuda"):
        return float(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return float(machine_memory())
