"""The policy of one request, from its ``x-kbtrain-*`` headers; an unknown header or value is refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, cast

from kbtrain.serve.problem import Refused

Retrieve = Literal["auto", "always", "never"]
PREFIX = b"x-kbtrain-"
KNOWN = ("retrieve", "threshold", "budget", "debug")


@dataclass(frozen=True)
class Policy:
    """``retrieve`` auto: as the gate decides. ``threshold`` and ``budget`` (a share of searches) exclude each other."""

    retrieve: Retrieve = "auto"
    threshold: float | None = None
    budget: float | None = None
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
        if "threshold" in given and "budget" in given:
            raise _refused("budget", "give a threshold or a budget, not both")
        return cls(
            retrieve=cast(Retrieve, _choice("retrieve", given.get("retrieve", "auto"), ("auto", "always", "never"))),
            threshold=_number("threshold", given["threshold"]) if "threshold" in given else None,
            budget=_share(given["budget"]) if "budget" in given else None,
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
