"""
title: kbtrain gate
author: kbtrain
version: 0.1.0
license: Apache-2.0
required_open_webui_version: 0.6.0
description: A gate decides for each message whether web search and knowledge are needed. Asks a kbtrain server by HTTP.
"""
# Paste this file into Open WebUI: Admin panel, Functions, New function; switch it on, for all models or for some.
# Nothing of kbtrain is imported: `kbtrain serve GATE` answers at the address below. Read in Open WebUI 0.12.4, whose
# `inlet` runs before web search, and before files are looked up.

import asyncio
import http.client
import json
import urllib.parse
from collections.abc import Awaitable, Callable
from typing import Any, Literal

from pydantic import BaseModel, Field

PASSAGES = ("collection", "folder", "legacy")  # files that stand for knowledge, not for what the user attached


class Filter:
    """The filter; Open WebUI makes one, and sets ``valves`` before each call."""

    class Valves(BaseModel):
        """Settings of the administrator."""

        priority: int = Field(0, description="order among filters, the lowest first")
        url: str = Field("http://127.0.0.1:8000", pattern="^https?://[^/]+", description="address of kbtrain serve")
        key: str = Field("", description="its API key, if it has any")
        timeout_s: float = Field(3.0, gt=0, description="longest wait for a decision")
        on_failure: Literal["retrieve", "plain", "leave"] = Field(
            "leave", description="without a decision: search, do not, or leave the request as it came"
        )
        web_search: Literal["decide", "only off", "leave"] = Field(
            "decide", description="the gate switches web search on and off, only off, or not at all"
        )
        knowledge: Literal["collections", "all", "leave"] = Field(
            "collections", description="taken out where no search is needed: collections, attached files too, nothing"
        )
        status: bool = Field(False, description="say the decision above the answer")

    def __init__(self) -> None:
        self.valves = self.Valves.model_validate({})

    async def inlet(
        self, body: dict[str, Any], __event_emitter__: Callable[[dict[str, Any]], Awaitable[None]] | None = None
    ) -> dict[str, Any]:
        """The request with web search switched and knowledge taken out as the gate decides."""
        valves = self.valves
        try:
            decision = await asyncio.wait_for(asyncio.to_thread(self._decide, body.get("messages")), valves.timeout_s)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as error:  # TimeoutError included
            if valves.on_failure == "leave":
                return body
            decision = {"retrieve": valves.on_failure == "retrieve", "failed": type(error).__name__}
        if decision is None:  # a picture, a tool's message, a gate without a threshold: not the gate's to judge
            return body
        if valves.status and __event_emitter__ is not None:
            line = f"kbtrain: {'search' if decision['retrieve'] else 'no search'}{_why(decision)}"
            await __event_emitter__({"type": "status", "data": {"description": line, "done": True}})
        return self._followed(body, bool(decision["retrieve"]))

    def _followed(self, body: dict[str, Any], retrieve: bool) -> dict[str, Any]:
        """The body as one of the two branches wants it."""
        if self.valves.web_search == "decide" or (self.valves.web_search == "only off" and not retrieve):
            body["features"] = {**(body.get("features") or {}), "web_search": retrieve}
        if not retrieve and self.valves.knowledge != "leave":
            for place in (body, body.get("metadata")):
                if isinstance(place, dict) and place.get("files"):
                    place["files"] = [file for file in place["files"] if not self._taken_out(file)]
        return body

    def _taken_out(self, file: dict[str, Any]) -> bool:
        return self.valves.knowledge == "all" or file.get("type") in PASSAGES or bool(file.get("legacy"))

    def _decide(self, messages: Any) -> dict[str, Any] | None:
        """The gate's decision; None for a chat that passes ungated. Raises for no answer."""
        url = urllib.parse.urlsplit(self.valves.url.rstrip("/").removesuffix("/v1"))
        secure = url.scheme == "https"
        connect = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = connect(url.netloc, timeout=self.valves.timeout_s)
        headers = {"content-type": "application/json"}
        if self.valves.key:
            headers["authorization"] = f"Bearer {self.valves.key}"
        texts = [{"role": message["role"], "content": _text(message.get("content"))} for message in messages]
        try:
            connection.request("POST", f"{url.path}/v1/gate", json.dumps({"messages": texts}), headers)
            reply = connection.getresponse()
            answer = json.loads(reply.read())
        finally:
            connection.close()
        if reply.status == 400 and answer["error"]["code"] == "ungated":
            return None
        if reply.status != 200:
            raise OSError(f"status {reply.status}")
        decision: dict[str, Any] = answer["decisions"][0]
        return None if decision["retrieve"] is None else decision


def _text(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [{key: part[key] for key in ("type", "text") if key in part} for part in content]


def _why(decision: dict[str, Any]) -> str:
    if "failed" in decision:
        return f" (no decision: {decision['failed']})"
    threshold = decision["threshold"]  # None under a policy that decides without one
    return f" (score {decision['score']:.3g}, threshold {'none' if threshold is None else f'{threshold:.3g}'})"
