"""A request's JSON body: read as a dict, whatever fields it has; what no server should pass on is refused."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from kbtrain.answers.writing import is_blank
from kbtrain.serve.problem import Refused

_SURROGATE = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]")


def read_object(data: bytes) -> dict[str, Any]:
    """The object. Raises :class:`Refused` (400) for broken JSON, numbers that are none, and halves of a pair."""
    try:
        value = json.loads(data.decode(), parse_constant=_no_number, parse_float=_finite)
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
            raise _bad("the body holds half of a surrogate pair, which is no text") from None
    return value


def text_of(value: dict[str, Any], name: str) -> str:
    """A field that must be text with something in it. Raises :class:`Refused`."""
    found = value.get(name)
    if not isinstance(found, str) or is_blank(found):
        raise _bad(f"field '{name}': expected text", name)
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("too large")
    return number


def _bad(message: str, param: str | None = None) -> Refused:
    return Refused(400, "body", message, param)
