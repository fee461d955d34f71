"""One progress bar a stage, on stderr: a bar on a terminal, elsewhere a line every half minute."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tqdm import tqdm

T = TypeVar("T")
SECONDS_BETWEEN_LINES = 30.0


def progress_bar(
    iterable: Iterable[T] | None = None,
    *,
    desc: str,
    unit: str,
    total: float | None = None,
    initial: int = 0,
    disable: bool = False,
) -> tqdm[T]:
    """A tqdm over ``iterable``, or to be updated by hand; ``unit`` is a plural noun, ``initial`` was done before."""
    kind: Callable[..., tqdm[T]] = tqdm if sys.stderr.isatty() else _Lines
    spaced_unit = f" {unit.strip()}"
    return kind(iterable, desc=desc, unit=spaced_unit, total=total, initial=initial, disable=disable, smoothing=0.1)


class _Lines(tqdm):  # type: ignore[type-arg]  # tqdm is generic for the type checker alone
    """Progress in plain lines on stderr, one every :data:`SECONDS_BETWEEN_LINES`."""

    monitor_interval = 0  # no thread: nothing has to be redrawn
    _lock = threading.RLock()  # tqdm's own is shared between processes: one killed while it holds it would block all

    def __init__(self, *args: Any, **settings: Any) -> None:
        pace = {"mininterval": SECONDS_BETWEEN_LINES, "delay": SECONDS_BETWEEN_LINES, "miniters": 1}
        settings |= {**pace, "file": io.StringIO(), "leave": False}
        super().__init__(*args, **settings)

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is not None:  # the end, at which a bar would be cleared
            return
        total, rate = self.total, self.format_dict["rate"] or 0.0
        of = f" of {total:,}" if total else ""
        speed = f", {_speed(rate, self.unit)}" if rate else ""
        left = f", {self.format_interval((total - self.n) / rate)} left" if total and rate else ""
        more = f" ({self.postfix})" if self.postfix else ""
        say_line(f"{self.desc}: {self.n:,}{of}{self.unit}{speed}{left}{more}")


def say_line(text: str) -> None:
    """A line on stderr, above the bar of a terminal."""
    (tqdm.write if sys.stderr.isatty() else print)(text, file=sys.stderr)


def _speed(rate: float, unit: str) -> str:
    """Units a second, a minute where they are slow."""
    number, time_unit = (rate, "s") if rate >= 0.1 else (rate * 60, "minute")
    return f"{number:,.0f}{unit}/{time_unit}" if number >= 10 else f"{number:.2g}{unit}/{time_unit}"
