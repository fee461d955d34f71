"""What can be told before any weights are loaded: number format, tokens, output layer, labels, memory."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError
from kbtrain.kernels.machine_memory import machine_memory
from kbtrain.models.adapters import folder_of, weight_files

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kbtrain.training.plan.config import PlannedTraining
    from kbtrain.training.rows import Row

_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")


def check_base(model: str, method: str, dtype: str, device: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model that can be trained this way. Raises :class:`UserError`, one line, before weights.

    - fp16 with Qwen2, or on a CPU;
    - a padding or end token that the model has no row for;
    - adapters on a model whose files hold no output layer: a new one would be random and never saved.
    """
    from kbtrain.models.load import load_tokenizer
    from kbtrain.models.precision import choose_dtype
    from kbtrain.models.shapes import config_of

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
    """Padding may well be the end token: padded places are masked and have no label, so the end is learnt all the
    same. But it must be a token that the model knows."""
    for name in ("pad", "eos"):
        found = getattr(tokenizer, f"{name}_token_id")
        if found is not None and found >= vocabulary:
            raise UserError(
                f"model '{model}': its tokenizer's {name} token has id {found}, but the model knows ids below "
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


def check_rows(rows: Sequence[Row], ids: Sequence[str]) -> None:
    """Every row must teach something. Raises :class:`UserError` naming the first example that does not."""
    from kbtrain.training.rows import IGNORE

    for row, name in zip(rows, ids, strict=True):
        if all(label == IGNORE for label in row.labels):
            raise UserError(
                f"example '{name}': no token of its answer has a label, so there is nothing to learn from it"
            )


def check_fits(config: PlannedTraining, device: str, longest: int, processes: int) -> None:
    """Raises :class:`UserError` if a batch of the longest rows cannot fit into the device's memory, by the plan."""
    from kbtrain.training.plan.memory import CONTEXT
    from kbtrain.training.plan.plan import make_plan

    layout: Any = launched_layout() if processes > 1 or os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true" else "none"
    there, context = device_memory(device), CONTEXT if device.startswith("cuda") else 0.5e9
    if _at_most(config, longest) < there / 2:
        return  # plainly so: the plan's pass over the model's layers would only take time
    shorter: Any = config.model_copy(update={"max_length": max(16, min(longest, config.max_length))})
    need = make_plan(shorter, processes, context, [layout]).memory[0]
    if need.peak > there:
        raise UserError(
            f"key 'device_batch_size': {config.device_batch_size} rows of {longest} tokens need about "
            f"{need.peak / 1e9:.1f} GB on a device of {there / 1e9:.1f} GB; 'kbtrain plan' says what would fit"
        )


def _at_most(config: PlannedTraining, longest: int) -> float:
    """More bytes than any training of this model takes: fp32 everywhere, nothing split, attention kept in full."""
    from kbtrain.models.shapes import config_of

    text = config_of(config.model).get_text_config()
    wide, inner = text.hidden_size, getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    layer = 4 * wide * wide + 3 * wide * inner
    weights = text.num_hidden_layers * layer + 2 * text.vocab_size * wide
    tokens = config.device_batch_size * longest
    kept = 4 * tokens * (text.num_hidden_layers * (40 * wide + 8 * inner + 6 * longest * text.num_attention_heads))
    return float(24.0 * weights + kept + 4 * 4 * tokens * wide + 2e9)


def launched_layout() -> Any:
    """The ZeRO stage that ``accelerate launch`` was told, as a layout of a plan."""
    path = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    if not path or not Path(path).exists():
        return "none"
    zero = json.loads(Path(path).read_text(encoding="utf-8")).get("zero_optimization", {})
    offload = "_offload" if zero.get("offload_optimizer") and zero.get("stage") == 2 else ""
    return {0: "none"}.get(zero.get("stage", 0), f"zero{zero.get('stage', 0)}{offload}")


def device_memory(device: str) -> float:
    """Bytes of one GPU, or of the machine."""
    import torch

    if device.startswith("cuda"):
        return float(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return float(machine_memory())
