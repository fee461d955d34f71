"""Follow-ups as questions of their own: one short request to the upstream, with a limit on time and tokens.

Where the request fails, the user's last messages together take the question's place, as with ``context: window``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kbtrain.answers.chinese import language_of
from kbtrain.answers.thoughts import split_thought
from kbtrain.answers.writing import is_blank
from kbtrain.prompts.condense import condense_prompt
from kbtrain.serve.chat import GatedMessage
from kbtrain.serve.exchange import Exchange
from kbtrain.serve.service import RequestTrace, Service
from kbtrain.serve.upstream import read_whole

LARGEST_REPLY = 2**18  # bytes
LONGEST_QUESTION = 1000  # characters; a longer reply is not a question
_PASSED_ON = {b"authorization", b"x-api-key", b"api-key", b"openai-organization", b"openai-project"}
logger = logging.getLogger("kbtrain.serve")


async def resolve_follow_up(
    service: Service, exchange: Exchange, body: Mapping[str, Any], gated: GatedMessage, trace: RequestTrace
) -> GatedMessage:
    """The gated part with the question that a follow-up means, by the setting ``context``; ``trace`` gets the way."""
    context = service.config.context
    if context == "last" or gated.value is None:
        return gated
    trace.context = "last" if not gated.dialogue else "window"
    if gated.dialogue and context == "condense":
        gated = await _condensed(service, exchange, body, gated, trace)
    trace.query = gated.searched or gated.query
    service.metrics.follow_ups.labels(trace.context).inc()
    return gated


async def _condensed(
    service: Service, exchange: Exchange, body: Mapping[str, Any], gated: GatedMessage, trace: RequestTrace
) -> GatedMessage:
    began = time.perf_counter()
    question = None
    try:
        async with asyncio.timeout(service.config.condense_deadline_s):
            question = await _ask(service, exchange, body, gated)
    except Exception as error:  # noqa: BLE001 - an upstream may raise any; the window takes the question's place
        slow = isinstance(error, TimeoutError)
        logger.warning("condense: %s", "slower than its deadline" if slow else type(error).__name__)
    trace.condense_seconds = time.perf_counter() - began
    trace.context = "condense-failed" if question is None else "condensed"
    if question is None:
        return gated
    value = question if isinstance(gated.value, str) else gated.value
    return replace(gated, value=value, searched=question)


async def _ask(service: Service, exchange: Exchange, body: Mapping[str, Any], gated: GatedMessage) -> str | None:
    """The upstream's question; None for a reply without one, or a cut one. Raises the upstream's errors."""
    assert service.upstream is not None
    config = service.config
    prompt = condense_prompt(gated.dialogue, language_of(gated.query or ""))
    limit = "max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"
    request: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}], limit: config.condense_tokens}
    if limit == "max_tokens":  # models that want the other name take no temperature
        request["temperature"] = 0
    if model := config.condense_model or body.get("model"):
        request["model"] = model
    headers = [(name, value) for name, value in exchange.headers if name in _PASSED_ON]
    headers.append((b"content-type", b"application/json"))
    async with service.upstream.send("chat/completions", json.dumps(request).encode(), headers) as reply:
        data = await read_whole(reply.pieces, LARGEST_REPLY)
    if reply.status != 200:
        raise ValueError(f"status {reply.status}")
    choice = json.loads(data)["choices"][0]
    if choice.get("finish_reason") == "length":
        return None
    text = " ".join(split_thought(choice["message"]["content"]).answer.split()).strip('"“” ')
    return None if is_blank(text) or len(text) > LONGEST_QUESTION else text
