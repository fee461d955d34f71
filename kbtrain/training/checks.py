"""Checks and estimates before any weights are loaded: number format, tokens, output layer, labels, steps, memory."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError
from kbtrain.io.jsonl import read_json
from kbtrain.kernels.memory import available_memory, machine_memory
from kbtrain.models.files_read import config_of, folder_of, mlp_width
from kbtrain.models.weights import weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kbtrain.training.answer_rows import TrainingRow
    from kbtrain.training.plan.plan import PlannedTraining

_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")


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


def check_rows(rows: Sequence[TrainingRow], ids: Sequence[str]) -> None:
    """Every row must teach something. Raises :class:`UserError` naming the first example that does not."""
    from kbtrain.training.answer_rows import IGNORE

    for row, name in zip(rows, ids, strict=True):
        if all(label == IGNORE for label in row.labels):
            raise UserError(
                f"example '{name}': no token of its answer has a label, so there is nothing to learn from it"
            )


def check_fits(config: PlannedTraining, device: str, longest: int, processes: int) -> None:
    """Raises :class:`UserError` if a batch of the longest rows cannot fit into the device's memory, by the plan; warns
    if it would not fit into what is free of a machine's."""
    from kbtrain.training.plan.memory import CONTEXT
    from kbtrain.training.plan.plan import make_plan

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


@dataclass(frozen=True)
class Estimate:
    """``operations``: 6 a parameter and token (4 for LoRA, whose weights need no gradient), attention not counted.

    ``state_gb``: weights, gradients and AdamW's two moments per device in GB (10^9 bytes), activations not counted.
    """

    steps: int
    tokens: int
    shortest: int
    median: int
    longest: int
    operations: float
    state_gb: float


def estimate(
    lengths: Sequence[int], epochs: float, group: int, parameters: int, trained: int, shards: int = 1
) -> Estimate:
    """``group``: rows a step over all devices; ``shards``: devices that ZeRO-2 spreads gradients and moments over."""
    ordered = sorted(lengths)
    tokens = round(sum(ordered) * epochs)
    per_token = 6 if trained == parameters else 4
    weights = 2 if shards > 1 else 4  # DeepSpeed's bf16 copy; its fp32 one is among what is spread
    spread = (2 + 12 if shards > 1 else 12) * trained / shards
    return Estimate(
        steps=count_steps(len(ordered), group, epochs),
        tokens=tokens,
        shortest=ordered[0],
        median=ordered[len(ordered) // 2],
        longest=ordered[-1],
        operations=per_token * parameters * tokens,
        state_gb=(weights * parameters + spread) / 1e9,
    )


def count_steps(rows: int, group: int, epochs: float) -> int:
    """Steps of ``group`` rows each, the last of an epoch perhaps of fewer."""
    return math.ceil(math.ceil(rows / group) * epochs)


def open_without_weights(model: str) -> tuple[Any, Any]:
    """A model whose weights take no memory (meta device), and its tokenizer. Raises :class:`UserError`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from kbtrain.models.load import resolve
    from kbtrain.models.trial import check_by_trial

    where = resolve(model)
    check_by_trial(where, model)
    try:
        config = AutoConfig.from_pretrained(where)
        tokenizer = AutoTokenizer.from_pretrained(where)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config), tokenizer
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise UserError(f"model '{model}': cannot be opened ({first[:200]})") from None
