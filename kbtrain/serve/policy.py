"""The policy of one request, from its ``x-kbtrain-*`` headers; an unknown header or value is refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from kbtrain.serve.decide import NO_AIM, Aim
from kbtrain.serve.problem import Refused
from kbtrain.serve.search_tools import ToolRule

Retrieve = Literal["auto", "always", "never"]
PREFIX = b"x-kbtrain-"
KNOWN = ("retrieve", "threshold", "budget", "price", "worth", "tool", "debug")


@dataclass(frozen=True)
class Policy:
    """``retrieve`` auto: as the gate decides, by ``aim``. ``tool``: of a search tool; None: the configuration's."""

    retrieve: Retrieve = "auto"
    aim: Aim = NO_AIM
    tool: ToolRule | None = None
    debug: bool = False

    @classmethod
    def read(cls, headers: Iterable[tuple[bytes, bytes]]) -> Policy:
        """Raises :class:`Refused` with what is allowed."""
        given: dict[str, str] = {}
        for name, value in headers:
            if not name.startswith(PREFIX):
                continue
            key = name.removeprefix(PREFIX).decode("latin-1")
            if key not in KNOWN:
                raise _refused(key, f"unknown header; allowed: {', '.join('x-kbtrain-' + one for one in KNOWN)}")
            if key in given:
                raise _refused(key, "given twice")
            given[key] = value.decode("latin-1").strip()
        aims = {key: read(given[key]) for key, read in AIMS.items() if key in given}
        if len(aims) > 1:
            raise _refused(max(aims), f"give one of {', '.join(AIMS)}")
        return cls(
            retrieve=cast(Retrieve, _choice("retrieve", given.get("retrieve", "auto"), ("auto", "always", "never"))),
            aim=Aim(**aims),
            tool=cast(ToolRule, _choice("tool", given["tool"], get_args(ToolRule))) if "tool" in given else None,
            debug=_choice("debug", given.get("debug", "false"), ("true", "false", "1", "0")) in {"true", "1"},
        )


def _refused(key: str, message: str) -> Refused:
    return Refused(400, "policy", f"x-kbtrain-{key:.40}: {message}", f"x-kbtrain-{key:.40}")


def _choice(key: str, value: str, allowed: tuple[str, ...]) -> str:
    if value.lower() not in allowed:
        raise _refused(key, f"allowed: {', '.join(allowed)}")
    return value.lower()


def _number(key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise _refused(key, "expected a number")
    return number


def _share(value: str) -> float:
    share = _number("budget", value)
    if not 0 <= share <= 1:
        raise _refused("budget", "expected a share of searches, from 0 to 1")
    return share


def _gain(value: str) -> float:
    gain = _number("price", value)
    if not -1 <= gain <= 1:
        raise _refused("price", "expected a share of right answers, from -1 to 1")
    return gain


AIMS: dict[str, Callable[[str], Any]] = {
    "threshold": lambda value: _number("threshold", value), "budget": _share, "price": _gain, "worth": str
}  # fmt: skip
