"""Read weights from safetensors alone, and only if every tensor is there and fits.

transformers draws missing tensors at random and logs a table; a gate would then score with noise, exit 0, and give
other scores each time. Pickles (``pytorch_model.bin``, ``adapter_model.bin``) can run code when read: refused.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kbtrain.errors import UserError
from kbtrain.io.files import check_regular, path_exists
from kbtrain.io.jsonl import read_json
from kbtrain.io.text_files import first_line, read_text
from kbtrain.show import first_ids

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import Tensor
    from transformers import PreTrainedModel

ADAPTER_WEIGHTS = "adapter_model.safetensors"
_ADAPTER_CONFIG = "adapter_config.json"
_INDEX = "model.safetensors.index.json"
_CONFIGS = (
    *("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
    _ADAPTER_CONFIG,
)
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def open_weights(kind: Any, where: str, model: str, new_head: bool = False, **options: Any) -> PreTrainedModel:
    """``kind.from_pretrained(where)`` (an Auto class or a model's own), every tensor read from safetensors; ``model``:
    its name in errors. ``new_head``: a head is put on a pretrained body, whose tensors alone must be there."""
    _refuse_pickles(where, model)
    with _quiet_transformers():
        try:
            loaded, report = kind.from_pretrained(where, use_safetensors=True, output_loading_info=True, **options)
        except RuntimeError as error:
            if "mismatched" not in str(error):
                raise
            raise UserError(f"model '{model}': tensors of other shapes than in its config.json") from None
        except ImportError as error:
            raise UserError(
                f"model '{model}': config.json needs a package that is not installed ({first_line(error):.200})"
            ) from None
    missing, unexpected = set(report["missing_keys"]), set(report["unexpected_keys"])
    if new_head:
        missing, unexpected = {name for name in missing if _of_body(name, loaded)}, set()
    _check_names(missing, unexpected, f"model '{model}':")
    return cast("PreTrainedModel", loaded)


def _check_names(missing: Set[str], unexpected: Set[str], whose: str) -> None:
    """Raise :class:`UserError` for tensors that are not there, or that nothing asks for; ``whose``: begins it."""
    for names, problem in ((missing, "lacks"), (unexpected, "has no place for")):
        if names:
            which = f"{problem} {first_ids(sorted(names), 'tensor')}"
            raise UserError(f"{whose} {which}; check that the file is complete and of this model")


def check_finite(tensors: Iterable[tuple[str, Any]], where: str) -> None:
    """Raise :class:`UserError`, with its name, for a tensor with NaN or infinite values; ``where``: of what."""
    for name, tensor in tensors:
        if not tensor.isfinite().all():
            raise UserError(f"{where}: tensor '{name}' holds NaN or infinite values")


def no_numbers(model: Any, message: str) -> UserError:
    """Error for a model that returned NaN: ``message`` and its name. Raises another if its weights are the reason."""
    check_finite(model.named_parameters(), f"model '{model.name_or_path}'")
    return UserError(f"{message} (model '{model.name_or_path}')")


def check_scores(model: Any, examples: Sequence[Any], scores: Iterable[float]) -> None:
    """Raise :class:`UserError`, as of :func:`no_numbers`, for examples whose scores are NaN."""
    bad = [example.id for example, score in zip(examples, scores, strict=True) if score != score]
    if bad:
        message = f"example '{bad[0]}' (and {len(bad) - 1} more): the model gives no number; try dtype fp32"
        raise no_numbers(model, message)


def _of_body(name: str, model: PreTrainedModel) -> bool:
    """True for a tensor that pretraining gives; poolers are heads in this (a masked language model has none)."""
    prefix = model.base_model_prefix + "."
    suffix = name.removeprefix(prefix)
    headless = model.base_model is model  # an encoder alone: all of its tensors are its body's
    return (headless or name.startswith(prefix)) and not suffix.startswith("pooler.")


def base_of(path: str) -> str | None:
    """The model that an adapter's own configuration names; None for a folder with a whole model, and for a hub id."""
    adapter = Path(path) / "adapter_config.json"
    if (Path(path) / "config.json").exists() or not adapter.exists():
        return None
    base = read_json(adapter).get("base_model_name_or_path")
    if not isinstance(base, str) or Path(base).resolve() == Path(path).resolve():
        raise UserError(f"{adapter}: field 'base_model_name_or_path': names no model; write the adapter's base there")
    return base


def open_adapter(base: Any, folder: Path, **options: Any) -> PeftModel:
    """``base`` with the adapter in ``folder``, whose tensors must be exactly those the adapter's config asks for."""
    weights, config = folder / ADAPTER_WEIGHTS, folder / _ADAPTER_CONFIG
    if not weights.exists():
        _refuse_pickles(str(folder), str(folder))
        raise UserError(f"{weights}: no such file; an adapter's parameters are expected there")
    shapes = shapes_in(weights)
    if (problem := _problem(config)) is not None:
        raise UserError(f"{config}: {problem}; copy the whole folder again")
    model, adapter = _with_adapter(base, folder, **options)
    expected = {name: tuple(value.shape) for name, value in adapter.items()}
    _check_names(expected.keys() - shapes, shapes.keys() - expected.keys(), f"{weights}: the adapter")
    check_finite(adapter.items(), str(weights))
    return model


def _with_adapter(base: Any, folder: Path, **options: Any) -> tuple[PeftModel, dict[str, Tensor]]:
    """``base`` with the adapter as peft opens it, also with missing tensors, and the adapter's tensors by name."""
    from peft import PeftModel, get_peft_model_state_dict

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of tensors that are missing, each by its name: the caller reports them
            model = PeftModel.from_pretrained(base, str(folder), **options)
        return model, get_peft_model_state_dict(model)
    except MemoryError:
        raise
    except ImportError as error:
        raise UserError(
            f"{folder / _ADAPTER_CONFIG}: asks for a package that is not installed ({first_line(error):.200})"
        ) from None
    except Exception as error:  # noqa: BLE001 - a config's values reach torch unchecked; torch lists shapes that differ
        last = (str(error).strip() or type(error).__name__).splitlines()[-1].strip()
        raise UserError(f"{folder}: {last[:200]}") from None


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor in a safetensors file. Raises :class:`UserError` for one that is not whole."""
    from safetensors import SafetensorError, safe_open

    check_regular(path)
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
    except (SafetensorError, OSError):
        raise UserError(f"{path}: not a safetensors file, or a truncated one; copy the whole folder again") from None


@contextlib.contextmanager
def opening(where: Path | str, model: str, what: str = "") -> Iterator[None]:
    """Check the files of a model's folder, then turn any error of reading them into one line that names ``model``; what
    the machine lacks (memory, a package) stays what it is. ``what`` of the model is opened: "its config"."""
    folder = Path(where)
    _check_files(folder)
    try:
        yield
    except (UserError, ImportError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    # transformers, tokenizers, safetensors and peft raise any class for a damaged file; a panic in Rust is no Exception
    except BaseException as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's
            raise
        name = _broken_json(folder)
        subject = f"model '{model}'" if name is None else str(folder / name)
        raise UserError(f"{subject}: {what} cannot be opened ({first_line(error):.200})".replace(":  ", ": ")) from None


def _check_files(folder: Path) -> None:
    """Raise :class:`UserError` for small files of a model's folder that libraries would pass over in silence."""
    for path in folder.glob("*.jinja"):
        # transformers passes over a template that is a folder, and would ask a model of chats in plain text
        check_regular(path)
    for path in filter(path_exists, (folder / name for name in _CONFIGS)):
        if problem := _problem(path):
            raise UserError(f"{path}: {problem}; copy the whole folder again")
    for path in sorted(set(weight_files(folder).values())):
        shapes_in(path)
    if path_exists(folder / _ADAPTER_CONFIG) and not path_exists(folder / "config.json"):
        raise UserError(f"{folder / _ADAPTER_CONFIG}: an adapter without its base model; name the base, or merge both")


def _problem(path: Path) -> str | None:
    """Reason why a file is not a JSON object; NaN and infinity are allowed, as some published configs have them."""
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        return f"broken JSON ({str(error)[:80]})"
    return None if isinstance(value, dict) else f"expected a JSON object, found {type(value).__name__}"


def _broken_json(folder: Path) -> str | None:
    """Name of a file that is not a JSON object, sought only when opening has failed: tokenizers' files are large."""
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        with contextlib.suppress(UserError):
            if _problem(path) is None:
                continue
        return path.name
    return None


def weight_files(folder: Path) -> dict[str, Path]:
    """The file of each weight in a folder of safetensors; empty if it has none. Raises :class:`UserError` for a broken
    index, or one that names files outside the folder."""
    index = folder / _INDEX
    if not path_exists(index):
        return {name: path for path in sorted(folder.glob("*.safetensors")) for name in shapes_in(path)}
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(file, str) for file in names.values()):
        raise UserError(f"{index}: field 'weight_map': expected the file of each tensor; copy the whole folder again")
    for file in names.values():
        if Path(file).name != file:
            raise UserError(f"{index}: field 'weight_map': '{file}' is outside this folder; remove it")
    return {name: folder / file for name, file in names.items()}


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
