"""Opens a causal language model: an embedded one by name, a local folder, or a hub id."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.errors import UserError, did_you_mean
from kbtrain.models.embedded import EMBEDDED, is_embedded, path_of
from kbtrain.models.precision import choose_dtype


def resolve(model: str) -> str:
    """The folder of an embedded model (fetched if absent), else the name as given. Raises :class:`UserError`."""
    if is_embedded(model):
        return str(path_of(model))
    if not Path(model).is_dir() and (model.startswith((".", "/", "~")) or model.count("/") > 1):
        raise UserError(f"model '{model}': no such folder")
    return model


def choose_device(name: str) -> str:
    """``auto``: the GPU if there is one."""
    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_model(
    model: str, dtype: str = "auto", device: str = "auto", trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model (in eval mode, on its device) and tokenizer. One-line :class:`UserError` where it can't be opened."""
    where = resolve(model)
    try:
        config = AutoConfig.from_pretrained(where, trust_remote_code=trust_remote_code)
        tokenizer = AutoTokenizer.from_pretrained(where, trust_remote_code=trust_remote_code)
        place = choose_device(device)
        chosen = choose_dtype(dtype, place, config.model_type)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where, config=config, dtype=chosen, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise UserError(f"model '{model}': {_why(model, error)}") from None
    placed: PreTrainedModel = loaded.to(place).eval()
    return placed, tokenizer


def load_tokenizer(model: str, trust_remote_code: bool = False) -> PreTrainedTokenizerBase:
    """The tokenizer alone, for back ends that hold the model themselves. Raises :class:`UserError`."""
    try:
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            resolve(model), trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError) as error:
        raise UserError(f"model '{model}': {_why(model, error)}") from None
    return found


def _why(model: str, error: Exception) -> str:
    """What is wrong with a model's name, or else the first line of what transformers said."""
    if difflib.get_close_matches(model, EMBEDDED, n=1, cutoff=0.8):
        return f"no embedded model, folder or hub id; {did_you_mean(model, EMBEDDED)}"
    return f"cannot be opened ({str(error).strip().splitlines()[0][:200]})"
