"""Cross-origin requests: the web pages that may ask, and the answers to a browser's preflights (Fetch standard)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kbtrain.serve.problem import Refused

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s]+")
Header = tuple[bytes, bytes]
MAX_AGE = b"600"  # seconds for which a browser keeps a preflight's answer


class Cors:
    """``origins``: those that may ask; ``*`` stands for every one. Without any, nothing is added to an answer."""

    def __init__(self, origins: Sequence[str] = ()) -> None:
        self._any = "*" in origins
        self._origins = {origin.encode() for origin in origins}

    def allows(self, origin: bytes | None) -> bool:
        """True for a page that may ask."""
        return origin is not None and (self._any or origin in self._origins)

    def headers(self, origin: bytes | None) -> list[Header]:
        """Headers by which a browser lets the page read an answer."""
        if not self._origins:
            return []
        vary = (b"vary", b"origin")
        if not self.allows(origin):
            return [vary]
        return [(b"access-control-allow-origin", origin or b""), (b"access-control-expose-headers", b"*"), vary]

    def preflight(self, headers: Sequence[Header]) -> list[Header]:
        """Headers of the answer to a preflight. Raises :class:`Refused` (403) for a page that may not ask."""
        given = dict(headers)
        if not self.allows(given.get(b"origin")):
            raise Refused(403, "origin", "this page's origin may not ask; name it in the server's setting --cors")
        return [
            (b"access-control-allow-methods", given[b"access-control-request-method"]),
            (b"access-control-allow-headers", given.get(b"access-control-request-headers", b"")),
            (b"access-control-max-age", MAX_AGE),
        ]


def is_preflight(method: str, headers: Sequence[Header]) -> bool:
    """True for the request that a browser sends before a page's own."""
    names = {name for name, _ in headers}
    return method == "OPTIONS" and {b"origin", b"access-control-request-method"} <= names


def is_origin(text: str) -> bool:
    """True for ``*`` and for a scheme, host and port without a path."""
    return text == "*" or _ORIGIN.fullmatch(text) is not None
