"""Replies of servers: nobody promises their size, their time or their text."""

from __future__ import annotations

import email.utils
import functools
import ipaddress
import json
import re
import time
from typing import Any

LARGEST = 64 * 2**20  # bytes of a reply that are read
LONGEST_ASKED = 600.0  # seconds that a server may ask to wait
_HALVES = re.compile("[\ud800-\udfff]")


def retry_after(text: str | None, most: float) -> float | None:
    """Seconds from a ``Retry-After`` header (a number or a date), at most ``most``; None if it is neither."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return None
    return None if seconds != seconds else min(most, max(0.0, seconds))


def whole_text(text: str) -> tuple[str, int]:
    """``text`` with halves of surrogate pairs replaced by U+FFFD, and their number: no file or store can hold them."""
    return _HALVES.subn("�", text)


def whole_json(value: Any) -> tuple[Any, int]:
    """A value of JSON with every text in it, names of fields too, as :func:`whole_text` makes it, and the number."""
    text, broken = whole_text(json.dumps(value, ensure_ascii=False))
    return json.loads(text), broken


@functools.lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """True for addresses that only this machine reaches."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
