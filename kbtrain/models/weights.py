"""Read weights from safetensors alone, and only if every tensor is there and fits.

transformers draws missing tensors at random and logs a table; a gate would then score with noise, exit 0, and give
other scores each time. Pickles (``pytorch_model.bin``, ``adapter_model.bin``) can run code when read: refused.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel

ADAPTER_WEIGHTS = "adapter_model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_NAMED = 3  # tensors that an error names


def open_weights(kind: Any, where: str, model: str, new_head: bool = False, **options: Any) -> PreTrainedModel:
    """``kind.from_pretrained(where)`` (an Auto class or a model's own), every tensor read from safetensors.

    ``model`` is the name that errors say. ``new_head``: a head is put on a pretrained body, so that only the body's
    tensors must be there, and those of the head it was pretrained with are left out. Raises :class:`UserError`.
    """
    _refuse_pickles(where, model)
    with _quiet_transformers():
        try:
            loaded, found = kind.from_pretrained(where, use_safetensors=True, output_loading_info=True, **options)
        except RuntimeError as error:
            if "mismatched" not in str(error):
                raise
            raise UserError(f"model '{model}': tensors of other shapes than its config.json says") from None
    missing, unexpected = set(found["missing_keys"]), set(found["unexpected_keys"])
    if new_head:
        missing, unexpected = {name for name in missing if _of_body(name, loaded)}, set()
    for names, problem in ((missing, "lacks"), (unexpected, "has no place for")):
        if names:
            raise UserError(f"model '{model}': {problem} {_listed(names)}; is the file whole, and of this model?")
    opened: PreTrainedModel = loaded
    return opened


def _of_body(name: str, model: PreTrainedModel) -> bool:
    """True for a tensor that pretraining gives; poolers are heads in this (a masked language model has none)."""
    prefix = model.base_model_prefix + "."
    own = name.removeprefix(prefix)
    headless = model.base_model is model  # an encoder alone: all of its tensors are its body's
    return (headless or name.startswith(prefix)) and not own.startswith("pooler.")


def open_adapter(base: Any, folder: Path, **options: Any) -> PeftModel:
    """``base`` with the adapter in ``folder``, whose tensors must be exactly those the adapter's config asks for.

    Raises :class:`UserError`.
    """
    from peft import PeftModel, get_peft_model_state_dict

    if not (folder / ADAPTER_WEIGHTS).exists():
        _refuse_pickles(str(folder), str(folder))
        raise UserError(f"{folder / ADAPTER_WEIGHTS}: no such file; an adapter's weights are expected there")
    stored = shapes_in(folder / ADAPTER_WEIGHTS)
    try:
        model = PeftModel.from_pretrained(base, str(folder), **options)
    except RuntimeError as error:  # peft passes on torch's list of shapes that differ
        raise UserError(f"{folder}: {str(error).strip().splitlines()[-1].strip()[:200]}") from None
    expected = {name: tuple(value.shape) for name, value in get_peft_model_state_dict(model).items()}
    for names, problem in ((expected.keys() - stored, "lacks"), (stored.keys() - expected.keys(), "has no place for")):
        if names:
            raise UserError(f"{folder / ADAPTER_WEIGHTS}: the adapter {problem} {_listed(names)}; is the file whole?")
    return model


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a safetensors file. Raises :class:`UserError` for a file that is none."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size <= path.stat().st_size else None
    except (json.JSONDecodeError, UnicodeDecodeError):
        header = None
    if not isinstance(header, dict):
        raise UserError(f"{path}: no safetensors file, or a truncated one")
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def _refuse_pickles(where: str, model: str) -> None:
    """A folder whose only weights are pickles is named as such, instead of as a folder without weights."""
    folder = Path(where)
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"model '{model}': {pickles[0]} is a pickle, which can run code; kbtrain reads safetensors only "
            "(convert it: AutoModel.from_pretrained(...).save_pretrained(...))"
        )


def _listed(names: Collection[str]) -> str:
    first = sorted(names)[:_NAMED]
    rest = len(names) - len(first)
    return f"{len(names)} tensor{'s' * (len(names) > 1)} ({', '.join(first)}{', ...' * (rest > 0)})"


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Suppress transformers' table of missing tensors, which the loader reports in one line, and for good its bars."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # a stage has one of its own
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
