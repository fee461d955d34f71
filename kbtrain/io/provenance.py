"""Files that stages make: what they came from, whether they are current and why not, resumed after a kill.

``F.meta.json`` notes a whole file ``F``: the stage, the data and the software it came from. ``F.key`` notes what the
records of a growing file depend on, ``F.partial.key`` those of a file that is not whole yet.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from kbtrain.errors import UserError, at, strike
from kbtrain.io import jsonl
from kbtrain.io.files import (
    append,
    beside,
    check_regular,
    cut_torn_line,
    errors_of,
    path_exists,
    put_in_place,
    replacing,
    script_of,
)

SCHEMA = 1
PACKAGES = (
    "kbtrain", "torch", "transformers", "tokenizers", "peft", "accelerate", "datasets", "scikit-learn", "bm25s",
    "numpy", "pydantic", "pyarrow", "deepspeed", "bitsandbytes", "vllm",
)  # fmt: skip
MODEL_FILES = "model_files"  # a model's files with their hashes, in keys and metadata
ABSENT: Any = object()  # the value of a setting that is missing
_ROOT = Path(__file__).resolve().parents[2]


def write_meta(
    path: Path,
    *,
    stage: str,
    config: BaseModel | Mapping[str, Any] | None,
    inputs: Sequence[Path],
    extra: Mapping[str, Any] | None = None,
    started: float | None = None,
) -> None:
    """Write ``<path>.meta.json`` atomically for a finished file or folder; ``extra`` adds or replaces keys.

    ``started`` is ``time.monotonic()`` at the stage's begin. Raises :class:`UserError` if an input is missing.
    """
    path, names = Path(path), [Path(source).name for source in inputs]
    keys = [name if names.count(name) == 1 else str(source) for name, source in zip(names, inputs, strict=True)]
    meta: dict[str, Any] = {
        "schema": SCHEMA,
        "stage": stage,
        "config": config.model_dump(mode="json") if isinstance(config, BaseModel) else config and dict(config),
        "inputs": hashes(dict(zip(keys, inputs, strict=True))),
        "sha256": file_sha256(path),
        "n_records": sum(1 for _ in jsonl.lines(path)) if path.suffix == ".jsonl" else None,
        **surroundings(started),
        **(extra or {}),
    }
    text = json.dumps(meta, ensure_ascii=False, indent=1, default=lambda value: to_jsonable_python(value, fallback=str))
    write_atomically(meta_path(path), text + "\n")


def note_unwhole(path: Path, meta: Mapping[str, Any]) -> None:
    """Before a file is written again: keep what its metadata say, but the hash; no metadata where they say nothing."""
    if meta:
        kept = {"schema": SCHEMA, **{name: value for name, value in meta.items() if name != "sha256"}}
        write_atomically(meta_path(path), json.dumps(kept, ensure_ascii=False) + "\n")
    else:
        meta_path(path).unlink(missing_ok=True)


def surroundings(started: float | None) -> dict[str, Any]:
    """Software and machine of this process, its time since ``started`` and its memory so far."""
    return {
        "packages": package_versions(),
        **git_state(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device(),
        "wall_seconds": None if started is None else round(time.monotonic() - started, 3),
        "peak_rss_mb": peak_rss_mb(),
    }


def write_result(
    path: Path, document: Mapping[str, Any], *, stage: str, config: BaseModel, inputs: Sequence[Path], started: float
) -> None:
    """Write a stage's result as JSON with its schema version first, and its metadata beside it."""
    text = json.dumps({"schema": SCHEMA, **document}, ensure_ascii=False, indent=1, allow_nan=False)
    write_atomically(path, text + "\n")
    write_meta(path, stage=stage, config=config, inputs=inputs, started=started)


def read_meta(path: Path) -> dict[str, Any]:
    """The metadata beside a file (give the file, not its ``.meta.json``). Raises :class:`UserError`."""
    source = meta_path(path)
    missing = f"run the stage that writes {Path(path).name} again"
    again = f"delete it, and {missing}"  # that stage reads it as well, to see whether it was done
    meta = jsonl.read_value(source, missing, again)
    if not isinstance(meta, dict) or meta.get("schema") != SCHEMA:
        raise UserError(f"{at(source)}: expected an object with schema {SCHEMA}; {again}")
    inputs = meta.setdefault("inputs", {})
    if not isinstance(inputs, dict) or not all(isinstance(value, str) for value in inputs.values()):
        raise UserError(f"{at(source, field='inputs')}: expected the hashes of files by their names; {again}")
    return meta


def meta_of(path: Path) -> dict[str, Any]:
    """As :func:`read_meta`; empty where the file has none."""
    return read_meta(path) if path_exists(meta_path(path)) else {}


def sampling_run_of(path: Path, else_name: str = "main") -> str:
    """Name of the sampling run that a file of labels or outcomes was made from; ``else_name`` if it notes none."""
    options = meta_of(path).get("config")
    return str(options.get("sampling_run", else_name)) if isinstance(options, dict) else else_name


def sampling_of_labels(run: Path) -> dict[str, Any]:
    """Options of the sampling that a run folder's labels are of; empty if another was the last, or none is noted."""
    meta = meta_of(run / "samples.db")
    options: dict[str, Any] = meta.get("config" if meta.get("stage") == "sample" else "sampling") or {}  # of shards
    of = options.get("sampling_run", "main")
    return options if of == sampling_run_of(run / "labels.jsonl", of) else {}


def short_name(model: object) -> str:
    """Last part of a model's noted name: a folder's, or that on the hub."""
    return str(model).rstrip("/").rsplit("/", 1)[-1]


def unchanged(path: Path) -> bool:
    """True if a file is what its metadata say, or they note no hash. Raises :class:`UserError` for broken metadata."""
    meta = meta_of(path)
    return "sha256" not in meta or meta["sha256"] == file_sha256(path)


def check_unchanged(*paths: Path) -> None:
    """As :func:`check_current`, of several files; turns with features come from the turns.jsonl beside them."""
    for path in paths:
        check_current(path, *([path.parent / "turns.jsonl"] if path.name != "turns.jsonl" else []))


def check_examples(*paths: Path) -> None:
    """As :func:`check_unchanged`; built examples depend on the run's questions and labels, joined ones on the runs'."""
    check_unchanged(*paths)
    for path in paths:
        meta, run = meta_of(path), path.parent.parent
        if meta.get("stage") == "build":
            check_current(path, run / "questions.jsonl", run / "labels.jsonl")
        elif meta.get("stage") == "join":
            sources = [source for name in meta["inputs"] if (source := Path(name)).exists()]
            check_current(path, *sources, command="data_gen/join.py")
            check_examples(*sources)


def check_current(path: Path, *sources: Path, command: str | None = None) -> None:
    """Raise :class:`UserError` for a file that was changed since it was made, or made from other ``sources``, as far as
    these are there and noted. ``command`` makes the file again; None: the script that a run folder's file names."""
    path, meta = Path(path), meta_of(path)
    stage = meta.get("stage", "the stage that writes it")
    if "sha256" in meta and path.exists() and meta["sha256"] != file_sha256(path):
        keep = f"run that again, or delete {meta_path(path).name} to keep the change"
        raise UserError(f"{at(path)}: was changed since {stage} made it; {f'run {command} again' if command else keep}")
    inputs = meta.get("inputs", {})
    for source in sources:
        sha256 = inputs.get(source.name, inputs.get(str(source)))  # of two files of one name by their paths
        if sha256 is not None and path_exists(source) and file_sha256(source) != sha256:
            again = command or script_of(path) or stage
            raise UserError(f"{at(path)}: made from another {source.name}; run {again} again")


def meta_path(path: Path) -> Path:
    """``F.meta.json`` for ``F``."""
    path = Path(path)
    return beside(path, ".meta.json")


_LARGE = 1 << 20  # bytes; a smaller file could be written again within one tick of the clock


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes, a large one's read once in a process while its size and time are the same; of a
    folder: of its files' names and hashes, in the order of their names."""
    path = Path(path)
    if path.is_dir():
        files = {inner.relative_to(path).as_posix(): inner for inner in sorted(path.rglob("*")) if inner.is_file()}
        lines = (f"{name} {sha256}\n" for name, sha256 in hashes(files).items())
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    check_regular(path)
    with errors_of(path):
        status = os.stat(path)
        read = _sha256 if status.st_size < _LARGE else _sha256_once  # one model serves several gates of a stage
        return read(path.resolve(), status.st_ino, status.st_size, status.st_mtime_ns)


def _sha256(path: Path, *status: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_sha256_once = functools.cache(_sha256)


def hashes(files: Mapping[str, Path]) -> dict[str, str]:
    return {name: file_sha256(path) for name, path in files.items()}


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that a reader sees the old one or the whole new one, never a part; secrets struck."""
    with replacing(path) as partial:
        partial.write_text(strike(text), encoding="utf-8")


@functools.cache  # a process keeps what it imported
def package_versions() -> dict[str, str]:
    """Versions of the packages that can change a result, as far as they are installed."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@functools.cache
def _git(*args: str) -> str | None:
    command = ["git", "-C", str(_ROOT), *args]  # the user's own git, wherever it lies
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def git_state() -> dict[str, Any]:
    """Commit of the clone this package runs from, and whether tracked files differ from it; null outside a clone."""
    top = _git("rev-parse", "--show-toplevel")
    # an environment may be inside somebody else's clone
    if top is None or Path(top).resolve() != _ROOT:
        return {"git_commit": None, "git_dirty": None}
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {"git_commit": _git("rev-parse", "HEAD"), "git_dirty": None if status is None else bool(status)}


def device() -> str:
    """Name of the GPU if torch is loaded and sees one, else "cpu"; torch is never imported for it."""
    torch = sys.modules.get("torch")
    return str(torch.cuda.get_device_name(0)) if torch and torch.cuda.is_available() else "cpu"


def peak_rss_mb() -> float:
    """Peak resident memory of this process so far, in MiB."""
    # what getrusage says holds the parent's peak too, if that was higher when it started this process
    with contextlib.suppress(OSError, IndexError):
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return round(int(status.split("VmHWM:")[1].split()[0]) / 1024, 1)
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024  # bytes there, KiB elsewhere
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 1)


@dataclass
class Artifact:
    """A file that ``stage`` makes from ``inputs`` by ``config``, or by ``key`` where its content depends on that alone
    (JSON values, hashes of inputs included). ``edited``: other stages write into it, as thresholds into a gate's card.
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
        defaults = {}
        if self.key is None and isinstance(self.config, BaseModel):  # an option that is gone decides nothing now
            defaults, ignored = defaults_of(self.config), ignored | (stored.keys() - now.keys())
        old, new = ({key: side[key] for key in side if key not in ignored} for side in ({**defaults, **stored}, now))
        if others := differing(old, new):
            return f"made with {change_message(*others[0])}"
        if self.key is None and {file_sha256(path) for path in self.inputs} != set(meta["inputs"].values()):
            return "made from other data"
        return "" if self.edited or unchanged(self.path) else "changed afterwards"

    def records(self, remedy: str = "") -> Records:
        """The file's records, to be appended."""
        return Records(self.path, self.key or {}, remedy)

    def finish(self, extra: Mapping[str, Any] | None = None) -> None:
        """Note the whole file in its metadata."""
        facts = {**({} if self.key is None else {"key": self.key}), **(extra or {})}
        write_meta(self.path, stage=self.stage, config=self.config, inputs=self.inputs, extra=facts,
                   started=self.started)  # fmt: skip

    def _settings(self) -> dict[str, Any]:
        return self.config.model_dump(mode="json") if isinstance(self.config, BaseModel) else plain(self.config)


class Records:
    """Records that are appended to a file, also after a kill; a context manager. ``n`` counts the file's records.

    Records of another ``key`` are dropped, or refused with :class:`UserError` where there is a ``remedy``. The file
    (``appended``) is ``F.partial`` until the block ends without an error, then ``F``. A ``growing`` one is ``F`` from
    the beginning, and its records are durable when :meth:`add` returns.
    """

    def __init__(self, path: Path, key: Mapping[str, Any], remedy: str = "", growing: bool = False) -> None:
        self.path = path
        self._growing = growing
        self.appended = path if growing else beside(path, ".partial")
        self._note = beside(self.appended, ".key")
        if path_exists(self.appended):
            check_regular(self.appended)
        self.appended.parent.mkdir(parents=True, exist_ok=True)
        if not (is_resumable(self.appended, self._note, key, remedy)):
            self.appended.write_text("", encoding="utf-8")
            write_atomically(self._note, json.dumps(dict(key), sort_keys=True))
        self.n = sum(1 for _ in jsonl.lines(self.appended))
        self._file = open(self.appended, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()

    def add(self, *records: Any) -> None:
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
        with errors_of(self.path):
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if error is None and not self._growing:
            with errors_of(self.path):
                self._file.flush()
                os.fsync(self._file.fileno())
                put_in_place(self.appended, self.path)
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
        missing = f"the settings of its records ({note.name}) are missing; "
        changed = missing if old is None else f"begun with {change_message(*others[0])}; set it back, or "
        raise UserError(f"{at(path)}: {changed}{remedy}")
    return False


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Settings that differ, with both values, nested ones by dotted key; a model's files where both sides have some. A
    setting that is missing (:data:`ABSENT`) equals null."""
    left_out = set() if before.get(MODEL_FILES) and now.get(MODEL_FILES) else {MODEL_FILES}
    old, new = (flat({name: side[name] for name in side if name not in left_out}) for side in (before, now))
    names = sorted({*old, *new}, key=lambda name: (name.startswith(MODEL_FILES), name))
    return [(name, old.get(name, ABSENT), new.get(name, ABSENT)) for name in names if old.get(name) != new.get(name)]


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
