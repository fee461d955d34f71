"""Which file holds which split, and JSON files that other people made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.jsonl import one_line
from kbtrain.records import Split

SPLITS: tuple[Split, ...] = get_args(Split)
_OTHER_NAMES = {"val": "dev", "valid": "dev", "validation": "dev"}
M = TypeVar("M", bound=BaseModel)


def split_of(name: str, path: Path) -> Split:
    """The split that a name means. Raises :class:`UserError` for any other name."""
    found = _OTHER_NAMES.get(name, name)
    for split in SPLITS:
        if found == split:
            return split
    raise UserError(f"{at(path)}: unknown split '{name}'; name it train, dev (or val) or test, or give the split")


def split_files(path: Path, ending: str, split: Split | None) -> list[tuple[Split, Path]]:
    """The files of a folder named ``<split><ending>`` (one of another split is refused), or the one file given.

    Raises :class:`UserError` if there is none, or if a single file's name says no split and none is given.
    """
    if path.is_file():
        return [(split or split_of(path.name.removesuffix(ending), path), path)]
    found = sorted(path.glob(f"*{ending}")) if path.is_dir() else []
    pairs = [(split_of(file.name.removesuffix(ending), file), file) for file in found]
    if not pairs:
        raise UserError(f"{at(path)}: no file <split>{ending} there (train{ending}, dev{ending}, test{ending})")
    return [pair for pair in pairs if split in (None, pair[0])]


def load_json(path: Path) -> Any:
    """Raises :class:`UserError` for a missing or broken file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{at(path)}: no such file") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{at(path, error.lineno)}: broken JSON ({error.msg} at column {error.colno})") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{at(path)}: not UTF-8 text (byte {error.start})") from None


def load_list(path: Path) -> list[Any]:
    """As :func:`load_json`, for a file that holds one list."""
    data = load_json(path)
    if not isinstance(data, list):
        raise UserError(f"{at(path)}: expected a JSON list, found {type(data).__name__}")
    return data


def parsed(kind: type[M], data: Any, where: str) -> M:
    """Check one native record; ``where`` begins the error."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{where}: {one_line(error)}") from None


def named(data: Any, number: int, path: Path) -> str:
    """File and dialogue for an error: the dialogue's id, or its number in the file (from 1)."""
    name = data.get("dialogue_id") if isinstance(data, dict) else None
    return f"{path}: dialogue '{name}'" if name else f"{path}: dialogue number {number}"
