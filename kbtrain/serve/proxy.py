"""The adaptive proxy: gate, then search and passages into the prompt or not, then the upstream, byte for byte.

The requests have one of the forms in :mod:`kbtrain.serve.request_forms`. The upstream's other routes under ``/v1/`` are
passed on ungated, both ways as streams.

The order of what can end a request early: a bad request (400), one that the model in this process refuses (400, 404),
no room for the gate (503), the client leaving (at any of four moments), a failure that the settings want to be an
error. Everything else is answered, with the reason in the headers.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote_from_bytes

from kbtrain.prompts.kbm import evidence_text
from kbtrain.serve.config import Injection
from kbtrain.serve.decide import decide_without_gate, gate_failure
from kbtrain.serve.exchange import Exchange, Upload
from kbtrain.serve.gate_model import continue_draft
from kbtrain.serve.problem import BadBody, Busy, Policy, Refused, as_json, read_object
from kbtrain.serve.request_forms import (
    FORMS,
    Body,
    GatedMessage,
    brings_documents,
    search_fields,
    search_tools,
    steer_tools,
    with_evidence,
)
from kbtrain.serve.service import RequestTrace, Service
from kbtrain.serve.upstream import PRINTABLE, ErrorEvents, Upstream, UpstreamReply

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
PREFIX = b"/v1/"
# statuses of an upstream that takes no inserted call (some want signatures or reasoning with it), or no forced tool
REFUSES = {400, 422}
_GROUP = re.compile(r"[a-z][a-z_-]{0,31}")


async def proxy(path: str, service: Service, exchange: Exchange) -> None:
    """Answer one request of a path in :data:`FORMS`."""
    upstream, loaded = service.upstream, service.decider.loaded
    if upstream is None:
        message = "this server has no model behind it; start it with --upstream or --model"
        raise Refused(404, "no_upstream", message)
    if upstream.paths is not None and path not in upstream.paths:
        answered = ", ".join(f"/v1/{name}" for name in sorted(upstream.paths))
        message = f"the model in this process answers {answered}; for /v1/{path} start the server with --upstream"
        raise Refused(404, "unknown_route", message)
    policy = Policy.read(exchange.headers)
    data = await exchange.read(as_it_comes=service.config.upstream is not None)
    if isinstance(data, Upload):
        await _pass_ungated(service, exchange, path, data, RequestTrace(path, reason="large-body"))
        return
    body = read_object(data)
    if "stream" in body and not isinstance(body["stream"], bool | None):
        raise BadBody("expected true or false", "stream")
    if "model" in body and not isinstance(body["model"], str):
        raise BadBody("expected text", "model")
    for name in (body.get("model"), f"/v1/{path}"):
        if not policy.source and name in service.config.sources:
            policy = policy.model_copy(update={"source": service.config.sources[name]})
    gated = FORMS[path].gate_input(body, service.config, loaded.gate.reads)
    if service.gate_model.names and not service.gate_model.serves(body.get("model")):
        gated = GatedMessage(None, None, "other-model")
    elif gated.query is not None and brings_documents(body):
        gated = GatedMessage(None, None, "own-passages")
    if policy.threshold is not None:
        loaded.check(policy.threshold, "x-kbtrain-threshold")
    name = uuid.uuid4().hex if service.log else ""
    trace = RequestTrace(
        path, query=gated.query, saves=loaded.saves, request_id=name, struck=gated.struck, debug=policy.debug
    )
    request = ProxiedRequest(service, upstream, exchange, path, data, body, gated, policy, trace)
    await record_request(service, exchange, trace, request.answer())


async def record_request(
    service: Service, exchange: Exchange, trace: RequestTrace, work: Coroutine[Any, Any, None]
) -> None:
    """Do the work of a request; count and log the request in any case."""
    outcome, status = "cut-off", 0
    try:
        await work
        outcome = "error-event" if trace.error_inside else "answered"
    except Refused as refused:
        refused.headers |= trace.headers(service.decider.loaded.name)
        outcome, status = refused.code, refused.status
        raise
    except BaseException:  # a cancellation, too: the client has left, or the process ends
        if exchange.left:
            outcome = f"client-left-at-{exchange.moment}"
        raise
    finally:
        service.record(trace, outcome, exchange.status or status)


@dataclass
class ProxiedRequest:
    """A request on its way: ``data`` are the client's bytes of ``body``; ``trace`` gets the gate's decision."""

    service: Service
    upstream: Upstream
    exchange: Exchange
    path: str
    data: bytes
    body: Body
    gated: GatedMessage
    policy: Policy
    trace: RequestTrace

    async def answer(self) -> None:
        service, exchange, gated = self.service, self.exchange, self.gated
        if self.upstream.paths is not None:  # a model in this process, which refuses what it cannot meet
            self.upstream.check(self.path, self._with_evidence())
        exchange.moment = "gate"
        if service.config.window > 1 and gated.value is not None:
            self.trace.context = "window" if gated.searched else "last"
            self.trace.query = gated.searched or gated.query
            service.metrics.follow_ups.labels(self.trace.context).inc()
        tools, fields = [], {}
        if gated.query is not None:
            names = service.config.search_tool
            tools, fields = search_tools(self.body, names), search_fields(self.body, names)
        changed = await (self._steer(tools, fields) if tools or fields else self._decide_and_search())
        exchange.moment = "first-token"
        data, instead = self.data if changed is self.body else as_json(changed), b""
        if self.trace.hits and service.config.injection == "tool":
            instead = as_json(self._with_evidence())
        elif self.trace.tool in ("removed", "forced"):
            instead = self.data
        await pass_on(service, exchange, self.path, data, self.trace, instead)

    async def _steer(self, tools: list[Body], fields: Body) -> Body:
        """The request with its search tools and fields by the gate's decision; the server itself does not search."""
        service, trace = self.service, self.trace
        asks_gate = self.policy.retrieve == "auto" and self.gated.kind is None
        if service.decider.loaded.after_search and asks_gate:  # nothing to read before the model calls the tool
            trace.reason, trace.tool = "own-search", "kept"
            return self.body
        await self._decide(may_explore=False)  # the model decides if it searches
        if service.config.policy == "pass":
            trace.tool = "kept"
            return self.body
        rule = self.policy.tool or service.config.tool
        changed, trace.tool = steer_tools(self.path, self.body, tools, fields, trace.searches, rule)
        return changed

    async def _decide_and_search(self) -> Body:
        """The request with what was found, where the gate asks for a search."""
        service, trace = self.service, self.trace
        loaded = service.decider.loaded
        reads_passages = loaded.after_search and self.policy.retrieve == "auto" and self.gated.kind is None
        if reads_passages and isinstance(self.gated.value, str):
            await self._search_and_decide(self.gated.value)
        else:
            await self._decide()
            if trace.searches and service.search is None:
                trace.searches = False
                if trace.reason != "gate-failed":  # a failure is reported in any case
                    trace.reason = "no-search"
            if trace.searches:
                await self._search()
        if service.config.policy == "pass":
            return self.body
        if evidence_text(trace.hits, loaded.titles) is None:
            trace.hits = ()
        changed = self._with_evidence(service.config.injection)
        if not trace.hits and loaded.states is not None and self.path == "chat/completions":
            changed = continue_draft(changed, loaded.states)
        return changed

    async def _search_and_decide(self, question: str) -> None:
        """Set hits and decision of a gate that reads passages."""
        await self._search()
        if self.trace.hits:
            self.exchange.moment = "gate"
            self.gated = replace(self.gated, value=self.service.decider.loaded.example(question, self.trace.hits))
            await self._decide()
            self.trace.hits = self.trace.hits if self.trace.searches else ()

    async def _decide(self, may_explore: bool = True) -> None:
        """Set decision, reason, and if a search is made."""
        trace, gated, policy = self.trace, self.gated, self.policy
        if gated.value is None:
            trace.reason = gated.reason
            return
        if gated.kind is not None and policy.retrieve == "auto":  # the kind wins over any score
            trace.reason = gated.kind
        elif policy.retrieve != "auto":
            trace.reason, trace.searches = "forced", policy.retrieve == "always"
        else:
            began, trace.source = time.perf_counter(), policy.source
            try:
                (trace.decision,) = await self.service.decider.decide(
                    [gated.value], policy, [gated.kind], policy.source
                )
                trace.reason, trace.searches = trace.decision.reason, trace.decision.retrieve
                if self.service.config.explore and may_explore:
                    trace.explore(self.service.config.explore)
            except Exception as error:  # noqa: BLE001 - a gate may raise any, the client gets an answer
                trace.searches = self._decide_without_gate(error)
            trace.gate_seconds = time.perf_counter() - began
        trace.follow(self.service.config.policy, policy.asks_gate)

    def _decide_without_gate(self, error: Exception) -> bool:
        """True to retrieve. Where the policy decides, a gate that fails or has no room ends no request."""
        config = self.service.config
        if not isinstance(error, Refused) or (isinstance(error, Busy) and config.policy != "gate"):
            self.trace.reason = "gate-failed"
        if config.policy == "gate" or not self.trace.reason:
            return decide_without_gate(error, config.on_gate_failure)
        gate_failure(error)  # logs it
        return config.on_gate_failure == "retrieve"

    async def _search(self) -> None:
        """Set the hits; a failure or a deadline leaves none, with the reason."""
        trace, began = self.trace, time.perf_counter()
        self.exchange.moment = "search"
        try:
            trace.hits = tuple(await self.service.find(self.gated.searched or self.gated.query or ""))
            if not trace.hits:
                trace.reason = "no-passages"
        except Refused as refused:
            trace.reason = "search-slow" if refused.status == 504 else "search-failed"
            if self.service.config.on_search_failure == "error":
                raise
        finally:
            trace.search_seconds = time.perf_counter() - began

    def _with_evidence(self, injection: Injection = "user") -> Body:
        """The request with the text of what was found, or without; the same object if nothing changes."""
        rule, loaded = self.service.config.prompt, self.service.decider.loaded
        evidence = evidence_text(self.trace.hits, loaded.titles)
        return with_evidence(FORMS[self.path], self.body, self.gated, evidence, rule, loaded.own, injection)


async def pass_on(
    service: Service, exchange: Exchange, path: str, data: bytes | Upload, trace: RequestTrace, instead: bytes = b""
) -> None:
    """Send a request to the upstream, or ``instead`` where it is refused, and its answer to the client as it comes."""
    assert service.upstream is not None
    began = time.perf_counter()
    query = exchange.scope.get("query_string", b"")
    async with service.upstream.send(
        exchange.sent_to or path, data, exchange.headers, query, exchange.scope["method"]
    ) as reply:
        refused = reply.status in REFUSES and instead not in (b"", data)
        if not refused:
            await _answer(service, exchange, reply, trace, began)
    if refused:
        trace.tool = trace.tool and "kept"
        await pass_on(service, exchange, path, instead, trace)


async def _answer(
    service: Service, exchange: Exchange, reply: UpstreamReply, trace: RequestTrace, began: float
) -> None:
    about = trace.headers(service.decider.loaded.name)
    added = [(name.encode(), value.encode("latin-1", "replace")) for name, value in about.items()]
    await exchange.start(reply.status, [*reply.headers, *added])
    errors = ErrorEvents(reply.headers if reply.status < 300 else ())
    async for piece in reply.pieces:
        errors.feed(piece)
        first = exchange.moment != "stream"
        if first:
            exchange.moment = "stream"
            service.metrics.first_token.observe(time.perf_counter() - began)
        await exchange.chunk(piece)
        if first:
            await asyncio.sleep(0)  # send the first piece now, though the next one may be ready
    errors.end()
    if errors.found:
        trace.error_inside = True
        service.metrics.upstream_failures.labels("error-event").inc()
    await exchange.chunk(b"", more=False)


async def forward(service: Service, exchange: Exchange, allowed: str | None = None) -> None:
    """Send a request on, ungated. Raises :class:`Refused` (404, 405) without a server to send it to.

    ``allowed``: the method of this path that is not sent on.
    """
    method = exchange.scope["method"]
    if method not in METHODS or (allowed is not None and service.config.upstream is None):
        methods = [allowed] if allowed is not None else list(METHODS)
        message = f"this route takes {', '.join(methods)}"
        if method == "OPTIONS":
            message += "; OPTIONS is for web pages: name their origins in the server's setting --cors"
        raise Refused(405, "method", message, headers={"allow": ", ".join(methods)})
    path = forwarded_path(exchange)
    Policy.read(exchange.headers)  # refuses an unknown header here, too
    body = await exchange.upload()
    group = path.partition("/")[0]  # the log never holds the rest, which a client may write
    trace = RequestTrace(group if _GROUP.fullmatch(group) else "other", reason="ungated-route")
    await _pass_ungated(service, exchange, path, body, trace)


async def _pass_ungated(
    service: Service, exchange: Exchange, path: str, body: bytes | Upload, trace: RequestTrace
) -> None:
    exchange.moment = "first-token"
    await record_request(service, exchange, trace, pass_on(service, exchange, path, body, trace))


def forwarded_path(exchange: Exchange) -> str:
    """The path behind ``/v1/`` as the client spelt it. Raises :class:`Refused` for one that leads out of ``/v1/``."""
    if not {".", ".."}.isdisjoint(exchange.scope["path"].split("/")):
        raise Refused(400, "path", "the path has a segment '.' or '..'")
    path: bytes = exchange.scope["raw_path"]
    if not path.startswith(PREFIX):  # %2fv1/...
        raise Refused(400, "path", "the path does not begin with /v1/")
    return quote_from_bytes(path.removeprefix(PREFIX), PRINTABLE)
