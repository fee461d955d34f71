"""The answer of ``/ready`` about the upstream: one for all who ask within a second."""

from __future__ import annotations

import asyncio
import time

from kbtrain.serve.problem import Refused
from kbtrain.serve.upstream import Upstream

FRESH = 1.0  # seconds for which an answer holds


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
