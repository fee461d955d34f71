"""The adaptive proxy: gate, then search and passages into the prompt or not, then the upstream, byte for byte.

The requests have one of the forms in :mod:`kbtrain.serve.request_forms`.

The order of what can end a request early: a bad request (400), one that the model in this process refuses (400, 404),
no room for the gate (503), the client leaving (at any of four moments), a failure that the settings want to be an
error. Everything else is answered, with the reason in the headers.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from kbtrain.prompts.kbm import evidence_text
from kbtrain.serve.body import read_object
from kbtrain.serve.chat import GatedMessage
from kbtrain.serve.condense import resolve_follow_up
from kbtrain.serve.cors import Header
from kbtrain.serve.draft_reuse import continue_draft
from kbtrain.serve.error_events import ErrorEvents
from kbtrain.serve.exchange import ClientLeft, Exchange, Upload
from kbtrain.serve.inject import with_evidence
from kbtrain.serve.policy import Policy
from kbtrain.serve.problem import Refused
from kbtrain.serve.request_forms import FORMS
from kbtrain.serve.search_tools import search_tools, steer_tools
from kbtrain.serve.service import Course, Service

logger = logging.getLogger("kbtrain.serve")


async def proxy(service: Service, exchange: Exchange, path: str) -> None:
    """One request of a path in :data:`FORMS`."""
    if service.upstream is None:
        message = "this server has no model behind it; start it with --upstream or --model"
        raise Refused(404, "no_upstream", message)
    if service.upstream.paths is not None and path not in service.upstream.paths:
        answered = ", ".join(f"/v1/{one}" for one in sorted(service.upstream.paths))
        message = f"the model in this process answers {answered}; for /v1/{path} start the server with --upstream"
        raise Refused(404, "unknown_route", message)
    policy = Policy.read(exchange.headers)
    data = await exchange.body()
    body = read_object(data)
    found = _input(service, path, body)
    if policy.aim.threshold is not None:
        service.decider.loaded.check(policy.aim.threshold, "x-kbtrain-threshold")
    saves, log = service.decider.loaded.saves, service.log
    course = Course(path, query=found.query, saves=saves, request_id=uuid.uuid4().hex if log else "")
    work = _answer(service, exchange, path, data, body, found, policy, course)
    await record_course(service, exchange, policy, course, work)


async def record_course(
    service: Service, exchange: Exchange, policy: Policy, course: Course, work: Coroutine[Any, Any, None]
) -> None:
    """Do the work of a request until the client leaves; count and log it however it ends."""
    try:
        await exchange.until_gone(work)
    except ClientLeft:
        service.record(course, exchange, "client-left")
        raise
    except Refused as refused:
        refused.headers |= course.headers(service.decider.loaded.name, policy.debug)
        service.record(course, exchange, refused.code, refused.status)
        raise
    except (
        BaseException
    ):  # cancelled at the end of the process, too: the endpoint answers, the log's line is written here
        service.record(course, exchange, "cut-off")
        raise
    service.record(course, exchange, "error-event" if course.error_inside else "answered")


def _input(service: Service, path: str, body: dict[str, Any]) -> GatedMessage:
    """The gated part of a request. Raises :class:`Refused` for a body that is no request."""
    if "stream" in body and not isinstance(body["stream"], bool | None):
        raise Refused(400, "body", "field 'stream': expected true or false", "stream")
    if "model" in body and not isinstance(body["model"], str):
        raise Refused(400, "body", "field 'model': expected text", "model")
    found = FORMS[path].gate_input(body, service.config, service.decider.loaded.gate.reads)
    return found if service.gate_model.serves(body.get("model")) else GatedMessage(None, None, "other-model")


async def _answer(
    service: Service, exchange: Exchange, path: str, data: bytes, body: dict[str, Any], found: GatedMessage,
    policy: Policy, course: Course,
) -> None:  # fmt: skip
    assert service.upstream is not None
    service.upstream.check(path, _request_body(service, path, body, found, None))
    exchange.moment = "gate"
    found = await resolve_follow_up(service, exchange, body, found, course) if policy.retrieve != "never" else found
    tools = [] if found.query is None else search_tools(body, service.config.search_tool)
    if tools:
        changed = await _steer(service, path, body, tools, found, policy, course)
        sent = data if changed is body else json.dumps(changed, ensure_ascii=False).encode(errors="replace")
    else:
        await _decide_and_search(service, exchange, found, policy, course)
        sent = _with_passages(service, path, data, body, found, course)
    exchange.moment = "first-token"
    await pass_on(service, exchange, path, sent, policy, course)


async def _steer(
    service: Service, path: str, body: dict[str, Any], tools: list[dict[str, Any]], found: GatedMessage, policy: Policy,
    course: Course,
) -> dict[str, Any]:  # fmt: skip
    """The request with its search tools as the gate decides; the server itself searches for nothing."""
    loaded, rule = service.decider.loaded, policy.tool or service.config.tool
    if loaded.after_search:  # it has nothing to read before the model calls the tool
        course.reason, course.tool = "own-search", "kept"
        return body
    await _decide(service, found, policy, course)
    needed, course.wanted = course.wanted, False
    course.propensity = None  # the model decides if it searches
    if service.config.shadow:
        course.reason, course.tool = "shadow" if needed else course.reason, "kept"
        return body
    changed, course.tool = steer_tools(path, body, tools, needed, rule)
    return changed


async def _decide_and_search(
    service: Service, exchange: Exchange, found: GatedMessage, policy: Policy, course: Course
) -> None:
    """Sets the course's decision and hits: the gate before the search, or behind it where it reads what was found."""
    loaded, query = service.decider.loaded, found.searched or found.query or ""
    if loaded.after_search and policy.retrieve == "auto" and found.kind is None and isinstance(found.value, str):
        exchange.moment = "search"
        await _search(service, query, course)
        if course.hits:
            exchange.moment = "gate"
            with_hits = replace(found, value=loaded.example(found.value, course.hits))
            await _decide(service, with_hits, policy, course)
            course.hits = course.hits if course.wanted else ()
        return
    await _decide(service, found, policy, course)
    if course.wanted and (service.config.shadow or service.search is None):
        course.wanted = False
        if course.reason != "gate-failed":  # a failure is said whatever becomes of the request
            course.reason = "shadow" if service.config.shadow else "no-search"
    if course.wanted:
        exchange.moment = "search"
        await _search(service, query, course)
        if course.hits and service.second is not None and policy.retrieve == "auto":
            exchange.moment = "gate"
            await _judge_passages(service, query, course)


async def _judge_passages(service: Service, query: str, course: Course) -> None:
    """Drop the course's hits where the second judgement says so; a failure is treated as one of the gate."""
    assert service.second is not None
    course.saves, takes = "passages", False
    try:
        course.second, takes = await service.second.judge(query, course.hits)
        if not takes:
            course.reason = "passages-dropped"
    except Refused:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a gate raises, the client gets an answer
        _gate_failed(service, error, course)
        takes, course.wanted = course.wanted, True
    course.hits = course.hits if takes else ()


async def _decide(service: Service, found: GatedMessage, policy: Policy, course: Course) -> None:
    """Sets the course's decision, reason, and if a search is wanted."""
    if found.value is None:
        course.reason = found.reason
        return
    if found.kind is not None and policy.retrieve == "auto":  # the gate is not asked: its pass would be in vain
        course.reason = found.kind
        return
    if policy.retrieve != "auto":
        course.reason, course.wanted = "forced", policy.retrieve == "always"
    else:
        began = time.perf_counter()
        try:
            (course.decision,) = await service.decider.decide([found.value], policy.aim, [found.kind])
            course.reason, course.wanted = course.decision.reason, course.decision.retrieve
            course.explore(service.config.explore)
        except Refused:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a gate raises, the client gets an answer
            _gate_failed(service, error, course)
        course.gate_seconds = time.perf_counter() - began


def _gate_failed(service: Service, error: Exception, course: Course) -> None:
    slow = isinstance(error, TimeoutError)
    course.reason = "gate-failed"
    logger.warning("gate: %s", "slower than its deadline" if slow else type(error).__name__)
    if service.config.on_gate_failure == "error":
        raise Refused(504 if slow else 502, "gate_failed", "the gate failed")
    course.wanted = service.config.on_gate_failure == "retrieve"


async def _search(service: Service, query: str, course: Course) -> None:
    """Sets the course's hits; a failure or a deadline leaves none, with the reason."""
    began = time.perf_counter()
    try:
        course.hits = tuple(await service.find(query))
        if not course.hits:
            course.reason = "no-passages"
    except Refused as refused:
        course.reason = "search-slow" if refused.status == 504 else "search-failed"
        if service.config.on_search_failure == "error":
            raise
    finally:
        course.search_seconds = time.perf_counter() - began


def _with_passages(
    service: Service, path: str, data: bytes, body: dict[str, Any], found: GatedMessage, course: Course
) -> bytes:
    """The request for the upstream: the client's own bytes, unless there is something to change."""
    evidence = evidence_text(course.hits, service.decider.loaded.titles)
    if evidence is None:
        course.hits = ()
    changed = _request_body(service, path, body, found, evidence)
    states = service.decider.loaded.states
    if evidence is None and states is not None and path == "chat/completions":
        changed = continue_draft(changed, states)
    return data if changed is body else json.dumps(changed, ensure_ascii=False).encode(errors="replace")


def _request_body(
    service: Service, path: str, body: dict[str, Any], found: GatedMessage, evidence: str | None
) -> dict[str, Any]:
    """The request with the passages' text, or as it is asked without; the same object if nothing changes."""
    assert service.upstream is not None
    config, own = service.config, service.decider.loaded.own
    if found.query is None:
        return body
    tools = service.upstream.takes_tools
    return with_evidence(FORMS[path], body, found.query, evidence, config.prompt, config.injection, own, tools)


async def pass_on(
    service: Service, exchange: Exchange, path: str, data: bytes | Upload, policy: Policy, course: Course
) -> None:
    """Send a request to the upstream by the client's method, and the answer to the client as it comes."""
    assert service.upstream is not None
    began = time.perf_counter()
    query = exchange.scope.get("query_string", b"")
    async with service.upstream.send(path, data, exchange.headers, query, exchange.scope["method"]) as reply:
        added = course.headers(service.decider.loaded.name, policy.debug)
        ours: list[Header] = [(name.encode(), value.encode("latin-1", "replace")) for name, value in added.items()]
        await exchange.start(reply.status, [*reply.headers, *ours])
        errors = ErrorEvents(reply.headers if reply.status < 300 else [])
        async for piece in reply.pieces:
            errors.feed(piece)
            first = exchange.moment != "stream"
            if first:
                exchange.moment = "stream"
                service.metrics.first_token.observe(time.perf_counter() - began)
            await exchange.chunk(piece)
            if first:
                await asyncio.sleep(0)  # what is written leaves now, whatever is ready behind it
        errors.end()
        if errors.found:
            course.error_inside = True
            service.metrics.upstream_failures.labels("error-event").inc()
        await exchange.chunk(b"", more=False)
