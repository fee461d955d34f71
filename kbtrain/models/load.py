"""Open a causal language model: an embedded one by name, a local folder, or a hub id."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.errors import UserError
from kbtrain.models.embedded import is_embedded, path_of
from kbtrain.models.weights import base_of, open_adapter, open_weights, opening

NAMES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_dtype(name: str, device: str, model_type: str) -> torch.dtype:
    """``auto``, or one of ``fp32``, ``bf16``, ``fp16``; Qwen2 overflows in fp16 and is refused it."""
    if name == "fp16" and model_type.startswith("qwen2"):
        raise UserError("key 'dtype': Qwen2 overflows in fp16 (it prints '!!!!'); use bf16, or fp16-anyway to insist")
    if name == "auto":
        # by its instructions, not measured: other work on the machine would change the result, and so the format
        if device.startswith("cuda"):
            fast = torch.cuda.is_bf16_supported(including_emulation=False)
        else:
            fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
        return torch.bfloat16 if fast else torch.float32
    dtype = NAMES.get(name.removesuffix("-anyway"))
    if dtype is None:
        raise UserError(f"key 'dtype': unknown '{name}'; valid: auto, {', '.join(NAMES)}")
    return dtype


def name_of(dtype: torch.dtype) -> str:
    """The short name of a dtype: fp32, bf16 or fp16."""
    return next(name for name, value in NAMES.items() if value is dtype)


def fused_attention_is_slow(device: str, dtype: torch.dtype) -> bool:
    """True if PyTorch's fused attention multiplies in fp32 what plain products would multiply in 16 bits: bf16 on CPUs
    without AMX (measured on AVX-512 BF16: 2.5 times slower forward, more so backward)."""
    return device == "cpu" and dtype is torch.bfloat16 and not torch.cpu._is_amx_tile_supported()


def resolve(model: str) -> str:
    """The folder of an embedded model (fetched if absent), else the name as given. Raises :class:`UserError`."""
    if is_embedded(model):
        return str(path_of(model))
    if not Path(model).is_dir() and (model.startswith((".", "/", "~")) or model.count("/") > 1):
        raise UserError(f"model '{model}': no such folder")
    return model


def choose_device(name: str) -> str:
    """``auto``: the GPU if there is one. Raises :class:`UserError` for a device that this machine's torch lacks."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind, index = torch.device(name).type, torch.device(name).index or 0
    except RuntimeError:
        raise UserError(f"key 'device': unknown '{name}'; expected auto, cpu, cuda, cuda:1, ...") from None
    if kind == "meta" or (kind == "cuda" and index >= torch.cuda.device_count()):
        raise UserError(f"key 'device': this machine has no '{name}'; it has {torch.cuda.device_count()} CUDA devices")
    return name


def load_model(
    model: str, dtype: str = "auto", device: str = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (in eval mode, on its device) and tokenizer. One-line :class:`UserError` where it can't be opened."""
    path = resolve(model)
    if (base := base_of(path)) is not None:
        loaded, tokenizer = load_model(base, dtype, device)
        return open_adapter(loaded, Path(path)).merge_and_unload().eval(), tokenizer
    with opening(path, model):
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        check_words(tokenizer)
        place = choose_device(device)
        torch_dtype = choose_dtype(dtype, place, config.model_type)
        options: dict[str, Any] = {"config": config, "dtype": torch_dtype, "trust_remote_code": False}
        whole: Any = open_weights(AutoModelForCausalLM, path, model, **options)
    placed: PreTrainedModel = whole.to(place).eval()
    return placed, tokenizer


_Opened = dict[tuple[str, torch.dtype, str], tuple[PreTrainedModel, PreTrainedTokenizerBase]]
_OPENED: ContextVar[_Opened | None] = ContextVar("kbtrain_opened", default=None)


@contextlib.contextmanager
def opened_once() -> Iterator[None]:
    """Context in which :func:`load_readable` returns one shared copy of each model, format and device: for parts of one
    gate, which run one after the other. A nested context shares the outer one's copies."""
    token = _OPENED.set({} if _OPENED.get() is None else _OPENED.get())
    try:
        yield
    finally:
        _OPENED.reset(token)


def load_readable(
    model: str, dtype: str = "auto", device: str = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """As :func:`load_model`, for callers that do not change the model, since they may share it."""
    opened, path = _OPENED.get(), resolve(model)
    if opened is None:
        return load_model(model, dtype, device)
    place = choose_device(device)
    key = (str(Path(path).resolve()) if Path(path).is_dir() else path, choose_dtype(dtype, place, ""), place)
    if key not in opened:
        opened[key] = load_model(model, dtype, device)
    return opened[key]


def load_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer, for back ends that hold the model elsewhere. Raises :class:`UserError`."""
    path = resolve(model)
    if (base := base_of(path)) is not None:
        return load_tokenizer(base)
    with opening(path, model):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        check_words(tokenizer)
    return tokenizer


def check_words(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of some text. Raises ``ValueError`` for a tokenizer that makes no token of any: one without a vocabulary."""
    ids: list[int] = tokenizer("Is it so? 是吗 \u2603 42", add_special_tokens=False)["input_ids"]
    if not ids:
        raise ValueError("its tokenizer knows no word")
    return ids
