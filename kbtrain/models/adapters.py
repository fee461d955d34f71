"""Which base model an adapter belongs to, told from the base's files before any weights are loaded."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from kbtrain.errors import UserError

_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
_ROWS = 64
UNSEEN = "-"


def base_fingerprint(model: str) -> str:
    """``shape-weights``: 8 hex digits of the model's shape, and 8 of its first embeddings as they are on disk.

    The second is ``-`` where the files are not here as safetensors. An adapter beside another base would be noise
    that loads without a word.
    """
    from kbtrain.models.shapes import config_of

    config = config_of(model).get_text_config()
    shape = (config.model_type, config.vocab_size, config.hidden_size, config.num_hidden_layers)
    folder = folder_of(model)
    weights = _first_embeddings(folder) if folder else None
    return f"{_hash(repr(shape).encode())}-{_hash(weights) if weights else UNSEEN}"


def check_base_of_adapter(model: str, expected: str | None, where: str) -> None:
    """Raises :class:`UserError` if an adapter was trained on another base than ``model``."""
    if expected is None:
        return
    found = base_fingerprint(model)
    pairs = list(zip(expected.split("-", 1), found.split("-", 1), strict=True))
    if any(a != b for a, b in pairs if UNSEEN not in (a, b)):
        raise UserError(
            f"{where}: the adapter was trained on another base than '{model}' is now (fingerprint {expected}, found "
            f"{found}); open it with the one it was trained on"
        )


def folder_of(model: str) -> Path | None:
    """Where a model's files are: its folder, or the hub's cache; None if they are not here."""
    from huggingface_hub import try_to_load_from_cache

    from kbtrain.models.load import resolve

    where = Path(resolve(model))
    if where.is_dir():
        return where
    cached = try_to_load_from_cache(model, "config.json")
    return Path(cached).parent if isinstance(cached, str) else None


def weight_files(folder: Path) -> dict[str, Path]:
    """The file of each weight in a folder of safetensors; empty if it has none."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return {name: folder / file for name, file in names.items()}
    found: dict[str, Path] = {}
    for path in folder.glob("*.safetensors"):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        found |= {name: path for name in header if name != "__metadata__"}
    return found


def _first_embeddings(folder: Path) -> bytes | None:
    """The bytes of the first rows, as they are stored."""
    for name, path in weight_files(folder).items():
        if name.endswith(_EMBEDDINGS) and path.exists():
            with open(path, "rb") as file:
                size = int.from_bytes(file.read(8), "little")
                entry = json.loads(file.read(size))[name]
                begin, end = entry["data_offsets"]
                file.seek(8 + size + begin)
                return file.read(min((end - begin) // entry["shape"][0] * _ROWS, end - begin))
    return None


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
