"""Files written whole or not at all, by one process at a time; what the system refuses is one line, here alone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import secrets
import shlex
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout

from kbtrain.errors import ESCAPED_HALF, HALVES, UserError, at

path_exists = os.path.lexists  # also for a dangling symlink
_PARTIAL = ".partial"
_OWN_PARTIAL = re.compile(rf"\.\d+-[0-9a-f]{{8}}{re.escape(_PARTIAL)}$")  # as :func:`replacing` names it
_PROBLEMS = {
    errno.ENOSPC: "disk is full; free some space and run the same command again",
    errno.EDQUOT: "disk quota is used up; free some space and run the same command again",
    errno.EFBIG: "file too large for this disk or its limits; free some space and run the same command again",
    errno.EROFS: "file system is read-only; choose another folder",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "permission denied; choose another folder, or change its permissions"),
    errno.EISDIR: "is a folder, expected a file",
    errno.ENOTDIR: "a part of its path is a file, expected a folder",
    errno.EEXIST: "a file is there, expected a folder",
    errno.ELOOP: "links that lead in a circle; name the file itself",
    errno.ENAMETOOLONG: "name too long; choose a shorter one",
    errno.ENOENT: "no such file",
    **dict.fromkeys((errno.ENXIO, errno.ENODEV), "no regular file"),
    errno.EIO: "disk error; check the disk and run the same command again",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n) and run the same command again",
}
_MADE_BY = {  # files of a run folder, and the script that writes each
    "questions.jsonl": "data_gen/collect.py",
    "evidence.jsonl": "data_gen/retrieve.py",
    "samples.db": "data_gen/sample.py",
    "verdicts.jsonl": "data_gen/judge.py",
    "labels.jsonl": "data_gen/label.py",
    "outcomes.jsonl": "eval/end_to_end.py",
    "results.json": "eval/end_to_end.py",
    "turns.jsonl": "data_gen/collect_turns.py",
    "turns_features.jsonl": "data_gen/turn_features.py",
    "vectors/vectors.json": "data_gen/embed.py",
    **dict.fromkeys(("examples/train.jsonl", "examples/dev.jsonl", "examples/test.jsonl"), "data_gen/build.py"),
}
_NUMBER = re.compile(r"\(os error (\d+)\)")  # as safetensors and tokenizers, which are Rust, end what the system said
_CUT_SHORT = re.compile(r"\d+ requested and \d+ written|PytorchStreamWriter failed|unexpected pos \d+ vs \d+")


def problem(error: OSError) -> str:
    """The system's refusal in words, and its remedy."""
    return _PROBLEMS.get(error.errno or 0) or f"cannot be used ({error.strerror or error})"


def missing_file_message(path: Path | str) -> str:
    """ "no such file", and for a file of a run folder the command that makes it."""
    file, script = Path(path), script_of(Path(path))
    if script is None or file.parent == Path():  # a user's own file may have such a name
        return _PROBLEMS[errno.ENOENT]
    run = file.parent if file.name in _MADE_BY else file.parent.parent
    return f"{_PROBLEMS[errno.ENOENT]}; run first: python {script} --run {shlex.quote(str(run))}"


def script_of(file: Path) -> str | None:
    """The script that writes a file of a run folder; None for any other file."""
    return _MADE_BY.get(file.name) or _MADE_BY.get(f"{file.parent.name}/{file.name}")


@contextlib.contextmanager
def errors_of(path: Path | str | None = None) -> Iterator[None]:
    """Turn what the system says about ``path`` into :class:`UserError`, from any library that passes it on.

    None: a whole program; an error that names no file and is not in the list above is a bug of the program.
    """
    try:
        yield
    except Exception as error:  # each library has its own class for what the system says; all others pass
        refused = _refusal(error)
        other = refused.filename if refused else None  # of a file that is read on the way
        if refused is None or (path is None and refused.errno not in _PROBLEMS and not isinstance(other, str)):
            raise
        named = isinstance(other, str) and (path is None or not other.endswith(_PARTIAL))
        place = other if named else path
        message = missing_file_message(place) if place and refused.errno == errno.ENOENT else problem(refused)
        raise UserError(f"{at(place)}: {message}" if place else message) from None


def _refusal(error: Exception) -> OSError | None:
    """The system's refusal that an error is, or tells of in words; None: no file is the cause."""
    if isinstance(error, OSError) and error.errno is not None:
        return None if isinstance(error, ConnectionError | TimeoutError) else error
    match = _NUMBER.search(str(error))
    number = int(match[1]) if match else 0
    if isinstance(error, OSError | RuntimeError) and _CUT_SHORT.search(str(error)):  # numpy's and torch's own words
        number = number or errno.ENOSPC
    return OSError(number, os.strerror(number)) if number else None


def check_regular(path: Path | str) -> None:
    """Raise :class:`UserError` for what cannot be read here, or not twice: folders, pipes, devices, spreadsheets."""
    with errors_of(path):
        mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise UserError(f"{at(path)}: is {kind}, expected a file")
    if str(path).lower().endswith((".xlsx", ".xls", ".ods")):
        raise UserError(f"{at(path)}: a spreadsheet; save it as CSV, which spreadsheet programs offer")


def has_content(path: Path | str) -> bool:
    """True if something is written there; a full disk or a kill leaves an empty file. Raises :class:`UserError`."""
    with errors_of(path):
        return path_exists(path) and os.stat(path).st_size > 0


class BadField(ValueError):
    """A field that JSON allows in an object and no file of this project may hold."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(problem)
        self.field = field


def loads(text: str, foreign: bool = False) -> Any:
    """The value of a JSON text with each key once, finite numbers and texts that can be written; NaN in a ``foreign``
    one is null. Raises ``ValueError``: :class:`BadField`, ``json.JSONDecodeError``, or itself for endless digits or
    brackets."""
    try:
        return (FOREIGN if foreign else _WRITTEN if ESCAPED_HALF.search(text) else _PLAIN).decode(text)
    except RecursionError as error:
        raise ValueError(str(error)) from None


def written_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """As :func:`plain_object`, without halves of surrogate pairs, which an escape can name and no file can hold."""
    for key, value in pairs:
        for text in (key, *(value if isinstance(value, list) else (value,))):
            if isinstance(text, str) and HALVES.search(text):
                raise BadField(key, "half of a surrogate pair (broken \\u escape)")
    return plain_object(pairs)


def plain_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without duplicate keys whose numbers are finite; the last of two would win in silence."""
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        raise BadField(next(key for key in values if keys.count(key) > 1), "duplicate")
    for key, value in pairs:
        for number in value if isinstance(value, list) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise BadField(key, f"expected a finite number, found {number}")
    return values


FOREIGN = json.JSONDecoder(object_pairs_hook=written_object, parse_constant=lambda _: None)
_WRITTEN, _PLAIN = (json.JSONDecoder(object_pairs_hook=hook) for hook in (written_object, plain_object))


def append(file: TextIO, text: str) -> None:
    """Add ``text`` to a file that is open for appending; durable when this returns. Raises :class:`UserError`."""
    with errors_of(file.name):
        try:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            # what the file object still holds would be refused once more at close()
            os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())
            raise


def cut_torn_line(path: Path | str) -> int:
    """Cut off what is behind the last line end, as a killed process leaves it; the bytes that are left."""
    check_regular(path)
    with errors_of(path), open(path, "rb+") as file:
        size, end = file.seek(0, os.SEEK_END), -1
        while size and end < 0:
            start = max(0, size - 65_536)
            file.seek(start)
            end = file.read(size - start).rfind(b"\n")
            size = start + end + 1
        file.truncate(size)
    return size


def put_in_place(source: Path, target: Path) -> None:
    """Give what was made the name ``target``, in the place of an older file or folder. Raises :class:`UserError`."""
    check_replaceable(target)
    with errors_of(target):
        os.replace(source, target)


def check_replaceable(target: Path) -> None:
    """Raise :class:`UserError` where a pipe, socket or device is, or a link to one."""
    # root may put a file into the place of a device: then /dev/null is a file for every program of the machine
    try:
        mode = os.stat(target).st_mode  # links are followed: /dev/stdout is one
    except OSError:  # nothing there, or a link to nowhere; what the system refuses is said by the writing itself
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UserError(f"{at(target)}: is a pipe, socket or device, expected a file or a new name")


def beside(path: Path, ending: str) -> Path:
    """``FILE.ending`` for ``FILE``, in the same folder; of a folder that is given as ``.`` by the name that it has."""
    named = _absolute(path)
    return named.parent / (named.name + ending)


def outcomes_path(log: Path) -> Path:
    """The file of verdicts beside a decision log, ``decisions-outcomes.jsonl``; of a device the log itself."""
    return log if log.exists() and not log.is_file() else log.with_stem(f"{log.stem}-outcomes")


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path)) if path.name in ("", "..") else path


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A name of this process's own beside ``target``, to be written; it takes the target's place when all went well.

    After an error the target is as it was. What a killed process left is removed by the next writer in the folder.
    """
    # before the work that fills the file
    check_replaceable(target)
    partial = beside(target, f".{os.getpid()}-{secrets.token_hex(4)}{_PARTIAL}")
    with contextlib.ExitStack() as held:
        try:
            with errors_of(target):
                target.parent.mkdir(parents=True, exist_ok=True)
                remove_partials(target.parent)
                file = os.open(partial, os.O_RDWR | os.O_CREAT, 0o666)
                held.callback(os.close, file)
                with contextlib.suppress(OSError):  # others can tell by its lock that this process lives
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield partial
                with open(partial, "rb") as written:
                    os.fsync(written.fileno())
                put_in_place(partial, target)
        except BaseException:  # Ctrl-C, too, leaves no half file
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)
            raise


def remove_partials(folder: Path, inside: bool = False) -> None:
    """Remove what processes without a live lock left half written in a folder; with ``inside`` also in its folders."""
    for place, folders, names in os.walk(folder):
        for name in filter(_OWN_PARTIAL.search, names):
            with contextlib.suppress(OSError):
                file = os.open(Path(place, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(Path(place, name))
                finally:
                    os.close(file)
        if not inside:
            folders.clear()


@contextlib.contextmanager
def writing(*targets: Path, what: str = "it", instead: str = "wait for it", key: str = "") -> Iterator[None]:
    """Hold the right to write files or folders; the system gives it back when the process dies.

    Raises :class:`UserError` at once when another process holds it: "another process is writing ``what``, since ...";
    ``instead``: what the user can do. ``key`` tells apart what several processes may write into one target. On a
    network disk it counts between machines as far as that disk keeps ``flock``.
    """
    with contextlib.ExitStack() as held:
        # in one order, so that two processes never hold one each
        for target in sorted(dict.fromkeys(targets)):
            held.enter_context(_lock(target, what, instead, key))
        yield


@contextlib.contextmanager
def _lock(target: Path, what: str, instead: str, key: str) -> Iterator[None]:
    target = _absolute(target)
    lock = target.with_name(f".{target.name}{key}.lock")
    held = FileLock(lock, timeout=0, mode=0o666)  # another user may take it when its process is gone
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        held.acquire()
        with contextlib.suppress(OSError):  # it holds without its text; a full disk is the writer's to tell
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            lock.write_text(f"{now} (process {os.getpid()} on {socket.gethostname()})", encoding="utf-8")
    except Timeout:
        raise UserError(f"{at(target)}: another process is writing {what}{_since(lock)}; {instead}") from None
    except OSError as error:
        raise UserError(f"{at(target)}: cannot be locked: {problem(error)}") from None
    try:
        remove_partials(target.parent)
        if target.is_dir():
            remove_partials(target, inside=True)
        yield
    finally:
        with contextlib.suppress(OSError):
            lock.unlink()  # while it is held: who waits for this file takes a new one
        held.release()


def _since(lock: Path) -> str:
    with contextlib.suppress(OSError):
        if text := lock.read_text(encoding="utf-8", errors="replace"):
            return f", since {text}"
    return ""
