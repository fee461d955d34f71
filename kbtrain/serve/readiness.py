"""The answers of ``/ready`` about the upstream and the search: one for all who ask at a time."""

from __future__ import annotations

import asyncio
import time

from kbtrain.serve.problem import Refused
from kbtrain.serve.search import Search
from kbtrain.serve.upstream import Upstream

FRESH = 1.0  # seconds for which an answer about the upstream holds
AGAIN = 5.0  # seconds after which a search that failed is tried again
PROBE = "What is the capital of France?"


class UpstreamCheck:
    """Asks the upstream for its models, once at a time: anybody may ask without a key, and as often as they like."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._asked = 0.0
        self._answer: asyncio.Task[Refused | None] | None = None

    async def problem(self) -> Refused | None:
        """The reason why the upstream cannot be used; None if it can be."""
        if self._answer is None or (self._answer.done() and time.monotonic() - self._asked >= FRESH):
            self._asked = time.monotonic()
            self._answer = asyncio.ensure_future(self._ask())
        return await asyncio.shield(self._answer)

    async def _ask(self) -> Refused | None:
        try:
            await self._upstream.models()
        except Refused as refused:
            return None if refused.status == 401 else refused  # 401: the clients have the keys, and it answers
        return None


class SearchCheck:
    """Knows if the last search gave an answer. Where none did yet, or the last one failed, it asks for one passage."""

    def __init__(self, search: Search, deadline_s: float) -> None:
        self._search, self._deadline = search, deadline_s
        self._works: bool | None = None
        self._asked = 0.0
        self._answer: asyncio.Task[None] | None = None

    def note(self, works: bool) -> None:
        """A search of a request gave an answer, or not."""
        self._works, self._asked = works, time.monotonic()

    async def works(self) -> bool:
        """True if the search answers."""
        due = self._works is None or (not self._works and time.monotonic() - self._asked >= AGAIN)
        if due and (self._answer is None or self._answer.done()):
            self._answer = asyncio.ensure_future(self._ask())
        if self._answer is not None:
            await asyncio.shield(self._answer)
        return bool(self._works)

    async def _ask(self) -> None:
        try:
            async with asyncio.timeout(self._deadline):
                await self._search.find(PROBE, 1)
            self.note(True)
        except Exception:  # noqa: BLE001 - of a service or of a function of the user's
            self.note(False)
