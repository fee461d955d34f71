"""The error that a user can cause and fix: one line with subject, place and remedy."""

from __future__ import annotations

import difflib
import html
import importlib.util
import json
import re
import urllib.parse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_SECRETS: set[str] = set()
_STRUCK = "[secret]"
_SHORTEST = 8  # characters of a key
_LONG = 16  # characters from which letters alone, or digits alone, are no word and no number of a result
_PLAIN = re.compile(r"[A-Za-z]*|[0-9.,:/+-]*")


def is_plain(text: str) -> bool:
    """True for a text too short or too ordinary to be a secret: a word, a number, a date.

    Striking it would destroy results that merely hold it, a class of a page as well as an answer, and anybody guesses
    it. Code that takes keys refuses such a text, so that every key in use can be struck wherever it appears.
    """
    return len(text) < _SHORTEST or (len(text) < _LONG and _PLAIN.fullmatch(text) is not None)


def never_show(secret: str) -> None:
    """Strike ``secret`` from every error, meta file and stored answer that this process writes from now on.

    As it is, and as JSON, HTML and addresses spell it. A plain text (:func:`is_plain`) is left alone.
    """
    if not is_plain(secret):
        spelt = (json.dumps(secret)[1:-1], html.escape(secret), urllib.parse.quote(secret, safe=""))
        _SECRETS.update((secret, *spelt))


def strike(text: str) -> str:
    """``text`` without the secrets that :func:`never_show` was given; the longest first, since one may hold another."""
    for secret in sorted(_SECRETS, key=len, reverse=True):
        text = text.replace(secret, _STRUCK)
    return text


def strike_all(value: Any) -> Any:
    """As :func:`strike`, in every text of a value out of JSON, keys included, however its server had escaped it."""
    if not _SECRETS:
        return value
    if isinstance(value, str):
        return strike(value)
    if isinstance(value, list):
        return [strike_all(inner) for inner in value]
    if isinstance(value, dict):
        return {strike_all(key): strike_all(inner) for key, inner in value.items()}
    return value


class UserError(Exception):
    """Bad input, configuration or environment. ``str(error)`` is one line; scripts print it and exit with 2.

    A key, an id or a name out of a file may hold anything: what does not print (line ends, control characters, halves
    of a surrogate pair) is escaped as ``repr`` does, and its middle skipped where it is very long, here and nowhere
    else; secrets are struck.
    """

    def __init__(self, message: str) -> None:
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in strike(message))
        if (extra := len(text) - LONGEST) > 0:  # what is wrong is at the begin, what to do at the end
            text = f"{text[:650]} ... ({extra} characters skipped) ... {text[-450:]}"
        super().__init__(text)


TEXT = "text without zero bytes, bytes that are not UTF-8, and halves of surrogate pairs"
HALVES = re.compile("[\ud800-\udfff]")  # of surrogate pairs: no file, store or terminal can hold them
ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # one of them, as JSON may spell it


def is_text(value: str) -> bool:
    """True for what can be a file's name and be written; names of other bytes reach Python as halves of pairs."""
    return "\0" not in value and HALVES.search(value) is None


LONGEST = 1200  # characters of a message: an id or a path in it may be of any length


def at(path: Path | str, line: int | None = None, field: str | None = None) -> str:
    """Place of an error as ``file:line: field 'name'`` (unknown parts are skipped)."""
    place = str(path) if line is None else f"{path}:{line}"
    return place if field is None else f"{place}: field '{field}'"


def require(package: str, extra: str, needed: bool = True) -> None:
    """Raises :class:`UserError` with the command that installs an optional package."""
    if needed and importlib.util.find_spec(package) is None:
        raise UserError(f"package '{package}' is needed and not installed: pip install \"kbtrain[{extra}]\"")


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """A hint that ends an "unknown X" message: the nearest valid name, or the whole (short) list."""
    names = sorted(valid)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"valid: {', '.join(names)}"
