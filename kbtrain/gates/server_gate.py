"""Gates whose scores are read from a server's replies: the server in their cards, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

from kbtrain.config import Config
from kbtrain.errors import UserError
from kbtrain.gate.gate import Gate
from kbtrain.llm.dialect import Server
from kbtrain.runtime.event_loop import run


class AskedServer(Config):
    """The server that is asked. In a gate's card, and as keys of the recipe that makes it."""

    url: str = Field(description="address of the server, up to and with /v1")
    name: str = Field(description="the model's name on the server")
    key_env: str = Field("OPENAI_API_KEY", description="environment variable that holds the key")
    tries: int = Field(8, ge=1, description="number of tries for a failing request")
    timeout: float = Field(600.0, gt=0, description="seconds to wait for an answer")


class ServerGate(Gate):
    """A gate that asks :attr:`server`. ``spent`` counts requests, ``refused`` ones, and tokens that replies state."""

    server: Server

    def answer_within(self, seconds: float) -> None:
        """Try a request twice at once instead of as often and as patiently as the card says, each within the time."""
        self.server = self.server.within(seconds)

    def replies(self, bodies: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any] | None]:
        """A reply to each body, None for a refusal. Raises :class:`UserError` for a server that refuses from the first
        one on."""
        from kbtrain.llm.openai_llm import post_all
        from kbtrain.llm.replies import token_count
        from kbtrain.llm.server_requests import PromptRefusal

        replies = run(post_all(self.server, bodies))
        refusals = [reply for reply in replies if isinstance(reply, PromptRefusal)]
        if refusals and len(refusals) == len(replies) and not self.spent["requests"]:
            raise UserError(f"server {self.server.base}: {refusals[0].message}")
        answered = [(r, body) for r, body in zip(replies, bodies, strict=True) if not isinstance(r, PromptRefusal)]
        read = sum(token_count(r, "prompt_tokens") or len(body.get("prompt", ())) for r, body in answered)
        written = sum(token_count(r, "completion_tokens") or 0 for r, _ in answered)
        self.spent.update(requests=len(replies), refused=len(refusals), prompt_tokens=read, tokens=written)
        return [None if isinstance(reply, PromptRefusal) else reply for reply in replies]
