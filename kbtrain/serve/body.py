"""A request's JSON body: read as a dict, whatever fields it has; what no server should pass on is refused."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any, NoReturn

from kbtrain.answers.writing import is_blank
from kbtrain.serve.problem import Refused

_SURROGATE = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]")


def read_object(data: bytes) -> dict[str, Any]:
    """The object. Raises :class:`Refused` (400) for broken JSON, a duplicate key, numbers that are not JSON's, and
    halves of a surrogate pair.
    """
    try:
        value = json.loads(
            data.decode(), parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_without_duplicates
        )
    except UnicodeDecodeError:
        raise _bad("the body is not UTF-8") from None
    except RecursionError:
        raise _bad("the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise _bad(f"broken JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except ValueError:
        raise _bad("a number in the body is too long, or no number of JSON") from None
    if not isinstance(value, dict):
        raise _bad(f"expected a JSON object, found {type(value).__name__}")
    if _SURROGATE.search(data):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise _bad("the body holds half of a surrogate pair, which is not text") from None
    return value


def text_of(value: dict[str, Any], name: str) -> str:
    """A field that must be text with something in it. Raises :class:`Refused`."""
    found = value.get(name)
    if not isinstance(found, str) or is_blank(found):
        raise _bad(f"field '{name}': expected text", name)
    return found


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Of a duplicate key servers read the first or the last value: the gate might read another one
    than the upstream."""
    made = dict(pairs)
    if len(made) != len(pairs):
        name = next(key for key, n in Counter(key for key, _ in pairs).items() if n > 1)
        raise _bad(f"duplicate key '{name:.40}' in the body", f"{name:.40}")
    return made


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("too large")
    return number


def _bad(message: str, param: str | None = None) -> Refused:
    return Refused(400, "body", message, param)
