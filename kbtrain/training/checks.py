"""Checks of a training before weights are loaded: its tokens and output layer, and the memory that it needs.

Weights are counted on a model without memory. Beside each trained one AdamW keeps two numbers and the backward pass
one, all in fp32; DeepSpeed's own estimator says what ZeRO-2 splits over the processes. A layer keeps about
``8 * hidden + 3 * inner`` numbers a token for the backward pass: what models of the classes of Llama and Qwen keep at
least, as their own passes over tensors without memory show (inner: the width of the MLP).
"""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError
from kbtrain.io.jsonl import read_json
from kbtrain.kernels.memory import available_memory, machine_memory
from kbtrain.models.adapters import under_deepspeed
from kbtrain.models.files_read import config_of, folder_of, mlp_width
from kbtrain.models.weights import weight_files
from kbtrain.training.config import TrainingConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HEADS = ("lm_head.weight", "embed_out.weight", "output.weight")
_NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)  # 4 bits, an 8-bit scale for 64 weights, an fp32 one for 256 of those
_TRAINED_BYTES = 16  # weight, gradient and AdamW's two moments, in fp32


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
    _check_tokens(tokenizer, config.get_text_config().vocab_size, model)
    if method != "full" and not config.tie_word_embeddings:
        _check_head(model)
    return tokenizer


def _check_tokens(tokenizer: PreTrainedTokenizerBase, vocabulary: int, model: str) -> None:
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


def check_fits(config: TrainingConfig, device: str, longest: int, processes: int) -> None:
    """Raises :class:`UserError` if a batch of rows of ``longest`` tokens cannot fit into the device's memory; warns if
    it would not fit into what is free of a machine's."""
    room = device_memory(device)
    free = room if device.startswith("cuda") else min(room, float(available_memory()))
    need = states_bytes(config, processes) + activation_bytes(config, longest)
    if need > room:
        raise UserError(
            f"key 'device_batch_size': {config.device_batch_size} rows of {longest} tokens need about "
            f"{need / 1e9:.1f} GB on a device of {room / 1e9:.1f} GB; take fewer rows and more "
            "gradient_accumulation_steps, gradient_checkpointing, or adapters (method: lora)"
        )
    if need > free:
        warnings.warn(
            f"this training needs about {need / 1e9:.1f} GB, and {free / 1e9:.1f} GB are available: the system may end "
            "it; fewer rows (device_batch_size) take less",
            stacklevel=2,
        )


def states_bytes(config: TrainingConfig, processes: int) -> float:
    """Bytes of weights, gradients and AdamW's numbers on one device."""
    frozen, trained = _weights(config)
    text = config_of(config.model).get_text_config()
    embeddings = text.vocab_size * text.hidden_size * (1 if text.tie_word_embeddings else 2)  # not quantised
    if config.trained_by() == "qlora":
        held = _NF4_BYTES * (frozen - embeddings) + 2.0 * embeddings
    else:
        held = frozen * (4.0 if config.dtype == "fp32" else 2.0)
    if not under_deepspeed():
        return float(held + _TRAINED_BYTES * trained)
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs  # type: ignore[import-not-found,import-untyped,unused-ignore]

    _, of_device = estimate_zero2_model_states_mem_needs(trained, processes, 1, _offloads())
    return float(held + of_device)


def _offloads() -> bool:
    """True if the launcher's DeepSpeed file keeps the optimizer in the machine's memory."""
    path = os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    return bool(path and Path(path).exists() and read_json(path).get("zero_optimization", {}).get("offload_optimizer"))


def _weights(config: TrainingConfig) -> tuple[int, int]:
    """Numbers of frozen and of trained weights, tied ones once."""
    import torch
    from transformers import AutoModelForCausalLM

    adapter = config.adapter()
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config_of(config.model))
        model = adapter(model) if adapter else model
    numbers = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return sum(n for n, is_trained in numbers if not is_trained), sum(n for n, is_trained in numbers if is_trained)


def activation_bytes(config: TrainingConfig, longest: int) -> float:
    """Bytes that the backward pass needs of the forward pass; with checkpointing one layer and all inputs of layers."""
    text = config_of(config.model).get_text_config()
    tokens, width = config.device_batch_size * longest, 4 if config.dtype == "fp32" else 2
    layer = tokens * width * (8 * text.hidden_size + 3 * mlp_width(text))
    if config.gradient_checkpointing:
        return float(layer + text.num_hidden_layers * tokens * width * text.hidden_size)
    return float(text.num_hidden_layers * layer)


def device_memory(device: str) -> float:
    """Bytes of one GPU, or of the machine."""
    import torch

    if device.startswith("cuda"):
        return float(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory)
    return float(machine_memory())


def n_steps(config: TrainingConfig, rows: int, processes: int) -> int:
    """Optimizer steps of a training on so many rows; an epoch's last may have fewer rows."""
    a_step = config.device_batch_size * config.gradient_accumulation_steps * processes
    return math.ceil(math.ceil(rows / a_step) * config.epochs)
