"""Clients of servers: addresses, waits between tries, limits for untrusted replies."""

from __future__ import annotations

import email.utils
import functools
import ipaddress
import json
import random
import re
import time
import urllib.parse
from dataclasses import dataclass
from typing import Any

LARGEST = 64 * 2**20  # bytes of a reply that are read
LONGEST_ASKED = 600.0  # seconds that a server may ask to wait
_HALVES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Retry:
    """Number of tries and the pauses between them: ``first`` seconds, doubled each time up to ``longest``, times a
    random number between 1/2 and 1 (so that clients which failed together do not come back together).

    A server's ``Retry-After`` counts as the least wait, up to ``patience`` seconds.
    """

    tries: int = 8
    first: float = 1.0
    longest: float = 60.0
    patience: float = LONGEST_ASKED

    def seconds(self, failed: int, requested: float | None) -> float:
        """Seconds to wait after ``failed`` tries; ``asked`` is the server's own request."""
        wait = min(self.longest, self.first * 2.0 ** min(failed - 1, 30)) * random.uniform(0.5, 1.0)
        return max(wait, min(requested or 0.0, self.patience))


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


def split_query(url: str) -> tuple[str, dict[str, str]]:
    """An address without its query, and the query: Azure's ``?api-version=...`` follows the path of every request."""
    address, _, query = url.partition("?")
    return address.rstrip("/"), dict(urllib.parse.parse_qsl(query.partition("#")[0], keep_blank_values=True))


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
