"""Files that stages make: whether they are current and why not, resumed after a kill, noted when whole.

``F.meta.json`` notes a whole file ``F`` (:mod:`kbtrain.io.provenance`). ``F.key`` notes what the records of a growing
file depend on, ``F.partial.key`` those of a file that is not whole yet.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import (
    append,
    beside,
    check_regular_or_absent,
    cut_torn_line,
    errors_of,
    path_exists,
    put_in_place,
)
from kbtrain.io.provenance import file_sha256, meta_of, unchanged, write_atomically, write_meta

MODEL_FILES = "model_files"  # a model's files with their hashes, in keys and meta data
ABSENT: Any = object()  # the value of a setting that is missing


@dataclass
class Artifact:
    """A file that ``stage`` makes from ``inputs`` by ``config``.

    ``key``: all that its content depends on, as JSON values, hashes of inputs included; without one the file depends on
    all of ``config`` and ``inputs``. ``edited``: other stages write into the file, as thresholds into a gate's card.
    """

    path: Path
    stage: str
    config: BaseModel | Mapping[str, Any]
    inputs: Sequence[Path] = ()
    key: dict[str, Any] | None = None
    edited: bool = False
    started: float = field(default_factory=time.monotonic)

    def is_current(self) -> bool:
        """True if the file is whole, as it was made, and would be made from the same now."""
        return not self.why_not()

    def why_not(self, ignored: frozenset[str] = frozenset()) -> str:
        """Reason why the file is not current, as a participle; empty if it is. ``ignored``: keys of the config."""
        if not self.path.exists():
            return "missing"
        meta = meta_of(self.path)
        stored, now = (meta.get("config"), self._settings()) if self.key is None else (meta.get("key"), plain(self.key))
        if meta.get("stage") != self.stage or not isinstance(stored, dict):
            return f"not made by {self.stage}"
        defaults = defaults_of(self.config) if self.key is None and isinstance(self.config, BaseModel) else {}
        old, new = ({key: side[key] for key in side if key not in ignored} for side in ({**defaults, **stored}, now))
        if others := differing(old, new):
            return f"made with {change_message(*others[0])}"
        if self.key is None and {file_sha256(path) for path in self.inputs} != set(meta["inputs"].values()):
            return "made from other data"
        return "" if self.edited or unchanged(self.path) else "changed afterwards"

    def records(self, remedy: str = "") -> Records:
        """The file's records, to be appended; see :class:`Records`."""
        return Records(self.path, self.key or {}, remedy)

    def finish(self, extra: Mapping[str, Any] | None = None) -> None:
        """Note the whole file in its meta data."""
        facts = {**({} if self.key is None else {"key": self.key}), **(extra or {})}
        write_meta(
            self.path, stage=self.stage, config=self.config, inputs=self.inputs, extra=facts, started=self.started
        )

    def _settings(self) -> dict[str, Any]:
        return self.config.model_dump(mode="json") if isinstance(self.config, BaseModel) else plain(self.config)


class Records:
    """Records that are appended to a file, also after a kill; a context manager. ``n`` counts the file's records.

    Records of another ``key`` are dropped, or refused with :class:`UserError` where there is a ``remedy``. The file
    is ``F.partial`` until the block ends without an error, then ``F``. A ``growing`` one is ``F`` from the beginning,
    and its records are durable when :meth:`add` returns.
    """

    def __init__(self, path: Path, key: Mapping[str, Any], remedy: str = "", growing: bool = False) -> None:
        self.path = path
        self._growing = growing
        self._appended = path if growing else beside(path, ".partial")
        self._note = beside(self._appended, ".key")
        check_regular_or_absent(self._appended)
        self._appended.parent.mkdir(parents=True, exist_ok=True)
        if not (is_resumable(self._appended, self._note, key, remedy)):
            self._appended.write_text("", encoding="utf-8")
            write_atomically(self._note, json.dumps(dict(key), sort_keys=True))
        self.n = sum(1 for _ in jsonl.lines(self._appended))
        self._file = open(self._appended, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()

    def add(self, *records: Any) -> None:
        """Append records."""
        text = "".join(jsonl.dump(record) + "\n" for record in records)
        if self._growing:
            append(self._file, text)
        else:
            with errors_of(self.path):
                self._file.write(text)
        self.n += len(records)

    def flush(self) -> None:
        """Hand what was added to the system: it survives a kill."""
        with errors_of(self.path):
            self._file.flush()

    def close(self) -> None:
        """Close the file as it is."""
        with errors_of(self.path):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None and not self._growing:
            with errors_of(self.path):
                self._file.flush()
                os.fsync(self._file.fileno())
                put_in_place(self._appended, self.path)
                self._note.unlink()
        self.close()


def defaults_of(config: BaseModel) -> dict[str, Any]:
    """Defaults of a configuration's keys, as JSON values."""
    fields = type(config).model_fields.items()
    return {key: to_jsonable_python(field.default) for key, field in fields if not field.is_required()}


def is_resumable(path: Path, note: Path, key: Mapping[str, Any], remedy: str = "") -> bool:
    """True if ``path`` has whole lines by the ``key`` in ``note``, which learns what is new in ``key``.

    A torn last line is cut off. Raises :class:`UserError` ending in ``remedy``, if there is one, for lines by another
    key, or by one that is missing: they took hours or money.
    """
    if not (path_exists(path) and cut_torn_line(path)):
        return False
    new = plain(key)
    old = jsonl.read_json(note) if path_exists(note) else None
    if old is not None and not (others := differing(old, new)):
        if old != {**old, **new}:
            write_atomically(note, json.dumps({**old, **new}, sort_keys=True))
        return True
    if remedy:
        missing = f"the settings of its records ({note.name}) are missing"
        raise UserError(
            f"{at(path)}: {missing}; {remedy}"
            if old is None
            else f"{at(path)}: begun with {change_message(*others[0])}; set it back, or {remedy}"
        )
    return False


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Settings that differ, with both values: nested ones by dotted key, a model's files one by one.

    A setting that is missing (:data:`ABSENT`) equals null. A model's files that one side lacks (not noted then, or not
    here now) do not differ.
    """
    old_settings, new_settings = (
        flat({name: side[name] for name in side if name != MODEL_FILES}) for side in (before, now)
    )
    names = [
        name for name in sorted({*old_settings, *new_settings}) if old_settings.get(name) != new_settings.get(name)
    ]
    settings = [(name, old_settings.get(name, ABSENT), new_settings.get(name, ABSENT)) for name in names]
    old, new = before.get(MODEL_FILES), now.get(MODEL_FILES)
    if old and new and old != new:
        was, files = (side if isinstance(side, Mapping) else {"": side} for side in (old, new))
        for name in sorted({*was, *files}):
            if was.get(name) != files.get(name):
                settings.append((f"{MODEL_FILES} {name}".strip(), str(was.get(name))[:12], str(files.get(name))[:12]))
    return settings


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key, so that an error can name the one that differs: ``sampling.max_new_tokens``."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return values


def change_message(name: str, before: Any, now: Any) -> str:
    """A setting that differs, for an error's line; :data:`ABSENT` shows as "not set"."""
    old, new = ("not set" if value is ABSENT else json.dumps(value, ensure_ascii=False)[:60] for value in (before, now))
    return f"{name} = {old}, now it is {new}"


def plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """The values as a JSON file returns them."""
    values: dict[str, Any] = json.loads(json.dumps(dict(value), default=str))
    return values
