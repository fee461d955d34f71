"""The upstream's key struck from what the upstream sends back: a server that repeats its caller's headers would else
tell it to every client.

As many stars stand in its place, so that the reply's length and all its other bytes stay. Whatever of a chunk may be
the key's beginning waits for the next chunk; a key has no line end, so that events of a stream never wait.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import AsyncIterator
from urllib.parse import quote

from kbtrain.credentials import PLACEHOLDERS
from kbtrain.errors import is_plain


class Echoes:
    """Strikes ``key`` as it is, and as JSON, HTML and addresses spell it; None, or a placeholder: nothing is struck."""

    def __init__(self, key: str | None) -> None:
        self._spelt: tuple[bytes, ...] = ()
        if key and not is_plain(key) and key.lower() not in PLACEHOLDERS:
            ways = {key, json.dumps(key)[1:-1], key.replace("/", "\\/"), html.escape(key), quote(key, safe="")}
            self._spelt = tuple(way.encode() for way in sorted(ways, key=len, reverse=True))
        self._pattern = re.compile(b"|".join(map(re.escape, self._spelt)))

    def __bool__(self) -> bool:
        return bool(self._spelt)

    def struck(self, data: bytes) -> bytes:
        """``data`` with stars for the key."""
        return self._pattern.sub(lambda found: b"*" * len(found[0]), data) if self else data

    async def chunks(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same bytes with stars for the key, wherever one chunk ends and the next begins."""
        held = b""
        async for chunk in source:
            data = self.struck(held + chunk)
            end = len(data) - self._begun(data)
            held = data[end:]
            if end:
                yield data[:end]
        if held:
            yield held

    def _begun(self, data: bytes) -> int:
        """Number of bytes at the end of ``data`` that may be the beginning of the key."""
        if data.endswith(b"\n"):
            return 0
        most = min(len(data), len(self._spelt[0]) - 1)
        return next((n for n in range(most, 0, -1) if any(way.startswith(data[-n:]) for way in self._spelt)), 0)
