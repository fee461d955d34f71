"""Files of a model: its configuration, and the hashes that a stage stores and compares when it is run again: a stage
that finds its work done never opens the model."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from kbtrain.io.provenance import hashes
from kbtrain.models.embedded import folder_of as embedded_folder
from kbtrain.models.embedded import is_embedded
from kbtrain.models.weights import base_of, opening

_SUFFIXES = frozenset({".safetensors", ".json", ".jinja", ".txt", ".model", ".tiktoken"})
_ABOUT = frozenset({"gate.json", "run.json", "trainer_state.json", "trained_on.txt", "complete"})


def folder_of(model: str) -> Path | None:
    """Folder of a model's files: an embedded one's, its own, or the hub's cache; None if they are not here."""
    if is_embedded(model):
        folder = embedded_folder(model)
        return folder if folder.is_dir() else None
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError:
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def files_of(model: str) -> dict[str, Path]:
    """Weights, configuration and tokenizer of a model by their names, those of an adapter's base as ``base/NAME``;
    empty for a model that is not here, or whose base is not."""
    if (folder := folder_of(model)) is None:
        return {}
    own = {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.suffix in _SUFFIXES and path.name not in _ABOUT and ".meta." not in path.name and path.is_file()
    }
    if (base := base_of(str(folder))) is None:
        return own
    of_base = {f"base/{name}": path for name, path in files_of(base).items()}
    return own | of_base if of_base else {}


def hashes_of(model: str) -> dict[str, str]:
    """SHA-256 of each of these files."""
    return hashes(files_of(model))


def digest(model: str) -> str:
    """One SHA-256 of all these hashes; empty for a model that is not here."""
    files = hashes_of(model)
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest() if files else ""


def config_of(model: str) -> Any:
    """A model's configuration, of its folder or the hub. Raises :class:`UserError`."""
    from transformers import AutoConfig

    from kbtrain.models.load import resolve

    path = resolve(model)
    if (base := base_of(path)) is not None:
        return config_of(base)
    with opening(path, model, "its config"):
        return AutoConfig.from_pretrained(path)


def mlp_width(text: Any) -> int:
    """Numbers between the two products of a layer's MLP, of the widest one (Gemma 3n names one for each layer)."""
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    return int(max(inner) if isinstance(inner, list | tuple) else inner)
