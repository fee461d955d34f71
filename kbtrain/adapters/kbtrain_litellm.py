"""LiteLLM proxy: a hook that searches only where a gate asks for it. One file, which speaks HTTP to ``kbtrain serve``.

In the proxy's configuration::

    litellm_settings:
      callbacks: ["kbtrain_litellm.gate"]   # this file beside it; kbtrain.adapters.kbtrain_litellm.gate where installed

``KBTRAIN_URL`` is the server's address, ``KBTRAIN_KEY`` its key. Where a search is needed, the request gets the vector
stores of ``KBTRAIN_VECTOR_STORES`` (ids, separated by commas), if it names none, and goes to ``KBTRAIN_SEARCH_MODEL``,
if that is set; where none is needed, its vector stores and file searches are taken out. ``KBTRAIN_ON_FAILURE``: leave
(the request as it came), retrieve, plain. Written for LiteLLM 1.83 to 1.109.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import urllib.parse
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

NOTE = "kbtrain"  # of the decision, in the request's metadata
CHATS = ("completion", "acompletion")
ALLOWED = ("leave", "retrieve", "plain")


class KbtrainGate(CustomLogger):
    """Settings come from the environment. Raises ``ValueError`` for an invalid one."""

    def __init__(self) -> None:
        super().__init__()
        self.url = os.environ.get("KBTRAIN_URL", "http://127.0.0.1:8000").rstrip("/").removesuffix("/v1")
        self.key = os.environ.get("KBTRAIN_KEY", "")
        self.timeout_s = float(os.environ.get("KBTRAIN_TIMEOUT_S", "3"))
        self.stores = os.environ.get("KBTRAIN_VECTOR_STORES", "").replace(",", " ").split()
        self.search_model = os.environ.get("KBTRAIN_SEARCH_MODEL")
        self.on_failure = os.environ.get("KBTRAIN_ON_FAILURE", "leave")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError("KBTRAIN_URL: an address begins with http:// or https://")
        if self.on_failure not in ALLOWED:
            raise ValueError(f"KBTRAIN_ON_FAILURE: '{self.on_failure}'; allowed: {', '.join(ALLOWED)}")

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: str
    ) -> dict[str, Any] | None:
        """The request as the gate's branch wants it; None leaves it as it is."""
        if call_type not in CHATS or not data.get("messages"):
            return None
        try:
            decision = await asyncio.wait_for(asyncio.to_thread(self._decide, data["messages"]), self.timeout_s)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):  # TimeoutError included
            if self.on_failure == "leave":
                return None
            decision = {"retrieve": self.on_failure == "retrieve", "reason": "gate-failed"}
        if decision is None:  # a picture, a tool's message: not the gate's to judge
            return None
        data["metadata"] = {**(data.get("metadata") or {}), NOTE: decision}
        return self._followed(data, bool(decision["retrieve"]))

    def _followed(self, data: dict[str, Any], retrieve: bool) -> dict[str, Any]:
        searches = [tool for tool in data.get("tools") or () if _is_file_search(tool)]
        if retrieve:
            if self.stores and not searches and not data.get("vector_store_ids"):
                data["vector_store_ids"] = list(self.stores)
            if self.search_model:
                data["model"] = self.search_model
            return data
        data.pop("vector_store_ids", None)
        if searches:
            data["tools"] = [tool for tool in data["tools"] if not _is_file_search(tool)]
            if not data["tools"] or _is_file_search(data.get("tool_choice")):
                data.pop("tool_choice", None)
            if not data["tools"]:  # some upstreams refuse an empty list, and a choice among none
                del data["tools"]
        return data

    async def async_post_call_response_headers_hook(
        self, data: dict[str, Any], user_api_key_dict: Any, response: Any, *_: Any, **__: Any
    ) -> dict[str, str] | None:
        """The decision in the answer's headers, named as ``kbtrain serve`` names them."""
        decision = (data.get("metadata") or {}).get(NOTE)
        if not isinstance(decision, dict):
            return None
        known = [key for key in ("score", "threshold") if decision.get(key) is not None]
        headers = {f"x-kbtrain-{key}": f"{decision[key]:.6g}" for key in known}
        headers["x-kbtrain-retrieved"] = str(int(bool(decision["retrieve"])))
        if "reason" in decision:
            headers["x-kbtrain-reason"] = decision["reason"]
        return headers

    def _decide(self, messages: list[dict[str, Any]]) -> dict[str, Any] | None:
        """The gate's decision; None for a chat that passes ungated. Raises for no answer."""
        url = urllib.parse.urlsplit(self.url)
        connect = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        connection = connect(url.netloc, timeout=self.timeout_s)
        headers = {"content-type": "application/json"}
        if self.key:
            headers["authorization"] = f"Bearer {self.key}"
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
        decision = answer["decisions"][0]
        if decision["retrieve"] is None:  # no threshold
            return None
        return {key: decision[key] for key in ("retrieve", "score", "threshold")}


def _text(content: Any) -> Any:
    """The text parts of a message; of pictures and files only that there are some."""
    if not isinstance(content, list):
        return content
    return [{key: part[key] for key in ("type", "text") if key in part} for part in content]


def _is_file_search(tool: Any) -> bool:
    return isinstance(tool, dict) and tool.get("type") == "file_search"


gate = KbtrainGate()
