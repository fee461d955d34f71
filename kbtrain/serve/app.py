"""The routes of the server."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from importlib import resources
from typing import Any

import yaml
from starlette.routing import Route, Router

from kbtrain.answers.writing import is_blank
from kbtrain.records import TurnExample
from kbtrain.serve.body import read_object
from kbtrain.serve.chat import gate_input
from kbtrain.serve.decide import Aim, ServedDecision
from kbtrain.serve.exchange import Endpoint, Exchange, Handle
from kbtrain.serve.forward import forward, passes_all
from kbtrain.serve.policy import AIMS
from kbtrain.serve.problem import Refused
from kbtrain.serve.proxy import proxy
from kbtrain.serve.request_forms import FORMS
from kbtrain.serve.service import Service
from kbtrain.serve.wire import decisions_route, systemone_route
from kbtrain.serve.worker import Input
from kbtrain.utterances.kinds import UtteranceKind


def application(service: Service) -> Router:
    """The ASGI application: routes without middleware, since :class:`Endpoint` answers for errors itself and each layer
    would wrap every token that is sent.
    """

    def route(path: str, method: str, handle: Callable[[Service, Exchange], Any], forwarded: bool = False) -> Route:
        """``forwarded``: other methods are sent on to the upstream, whose path it is, too."""
        allowed = (method, "HEAD") if method == "GET" else (method,)  # HEAD is GET without a body

        async def handled(exchange: Exchange) -> None:
            if exchange.scope["method"] in allowed:
                await handle(service, exchange)
            elif forwarded:
                await forward(service, exchange, method)
            else:
                raise Refused(405, "method", f"this route takes {method}", headers={"allow": ", ".join(allowed)})

        methods[path] = method
        return Route(path, _endpoint(path, handled, service))

    def gated(path: str) -> Route:
        async def handle(service: Service, exchange: Exchange) -> None:
            await proxy(service, exchange, path)

        return route(f"/v1/{path}", "POST", handle, forwarded=True)

    async def others(exchange: Exchange) -> None:
        if not await _is_gate_s_entry(service, exchange):
            await (forward(service, exchange) if passes_all(service) else unknown(exchange))

    async def unknown(exchange: Exchange) -> None:
        rest = "; other paths under /v1/ are the upstream's" if passes_all(service) else ""
        named = ", ".join(f"{method} {path}" for path, method in methods.items())
        raise Refused(404, "unknown_route", f"no such route; there are: {named}{rest}")

    methods: dict[str, str] = {}
    routes = [
        *map(gated, FORMS),
        route("/v1/gate", "POST", gate_route),
        route("/v1/outcomes", "POST", outcomes_route),
        route("/v1/decisions", "POST", decisions_route),
        route("/v1/systemone", "POST", systemone_route),
        route("/v1/models", "GET", models_route, forwarded=True),
        route("/health", "GET", health_route),
        route("/ready", "GET", ready_route),
        route("/metrics", "GET", metrics_route),
        route("/openapi.json", "GET", openapi_route),
        Route("/v1/{path:path}", _endpoint("/v1/*", others, service)),
    ]
    return Router(routes=routes, redirect_slashes=False, default=_endpoint("unknown", unknown, service))


def _endpoint(path: str, handle: Handle, service: Service) -> Endpoint:
    return Endpoint(path, handle, service.config, service.keys, service.metrics)


async def gate_route(service: Service, exchange: Exchange) -> None:
    """Many questions, or one chat, to decisions with all scores; nothing is searched."""
    body = read_object(await exchange.body())
    unknown = set(body) - {"questions", "messages", *AIMS}
    if unknown:
        allowed = f"questions or messages, and one of {', '.join(AIMS)}"
        raise Refused(400, "body", f"unknown field '{min(unknown):.40}'; allowed: {allowed}", f"{min(unknown):.40}")
    worth = body.get("worth")
    if not isinstance(worth, str | None):
        raise Refused(400, "body", "field 'worth': expected an amount such as '0.05 USD'", "worth")
    numbers = {name: value for name in AIMS if name != "worth" and (value := _number(body, name)) is not None}
    aims: dict[str, Any] = numbers if worth is None else {**numbers, "worth": worth}
    if len(aims) > 1:
        raise Refused(400, "body", f"give one of {', '.join(AIMS)}", max(aims))
    if not 0 <= aims.get("budget", 0) <= 1:
        raise Refused(400, "body", "field 'budget': expected a share of searches, from 0 to 1", "budget")
    if not -1 <= aims.get("price", 0) <= 1:
        raise Refused(400, "body", "field 'price': expected a share of right answers, from -1 to 1", "price")
    inputs, kinds = _inputs(service, body)

    async def work() -> None:
        exchange.moment = "gate"
        made = await service.decisions("gate", inputs, Aim(**aims), kinds)
        shown = [_decision_json(value, decision) for value, decision in zip(inputs, made, strict=False)]
        fields = {"gate": made[0].gate, "decisions": shown, "seconds": round(made[0].seconds, 6)}
        if len(made) < len(inputs):
            slow = service.gate_slow(len(made), len(inputs))
            slow.fields = fields
            raise slow
        await exchange.json(fields)

    await exchange.until_gone(work())


async def outcomes_route(service: Service, exchange: Exchange) -> None:
    """A verdict on an answer that was given, by the request's id, into the decision log."""
    body = read_object(await exchange.body())
    unknown = set(body) - {"id", "right", "source"}
    if unknown:
        message = f"unknown field '{min(unknown):.40}'; allowed: id, right, source"
        raise Refused(400, "body", message, f"{min(unknown):.40}")
    for name, most in (("id", 64), ("source", 40)):
        text = body.get(name, "unknown" if name == "source" else None)
        if not isinstance(text, str) or not 0 < len(text) <= most:
            raise Refused(400, "body", f"field '{name}': expected 1 to {most} characters", name)
    right = float(body["right"]) if isinstance(body.get("right"), bool) else _number(body, "right")
    if right is None or not 0 <= right <= 1:
        raise Refused(400, "body", "field 'right': expected true, false or a number from 0 to 1", "right")
    if service.log is None:
        raise Refused(409, "no_log", "this server writes no decision log; start it with --log")
    row = {"time": round(time.time(), 3), "outcome_of": body["id"], "right": right}
    if not service.log.write({**row, "source": body.get("source", "unknown")}, None, False):
        raise Refused(503, "log_full", "the decision log cannot take more now", headers={"retry-after": "1"})
    await exchange.json({"id": body["id"], "right": right})


def _inputs(service: Service, body: dict[str, Any]) -> tuple[list[Input], list[UtteranceKind | None] | None]:
    """Inputs of the gate, and the kinds of the messages behind them (None: those of the inputs)."""
    limit, questions = service.config.max_messages, body.get("questions")
    if ("questions" in body) == ("messages" in body):
        raise Refused(400, "body", "give either 'questions' or 'messages'")
    reads = service.decider.loaded.gate.reads
    if "messages" in body:
        found = gate_input(body["messages"], service.config, reads)
        if found.value is None:
            raise Refused(400, "ungated", f"these messages pass ungated: {found.reason}", "messages")
        return [found.value], [found.kind]
    if "question" not in reads:
        raise Refused(400, "body", "this gate reads dialogues: give 'messages'", "questions")
    if not isinstance(questions, list) or not questions or not all(isinstance(q, str) for q in questions):
        raise Refused(400, "body", "field 'questions': expected a list of texts", "questions")
    if len(questions) > min(limit, service.config.queue):
        raise Refused(400, "body", f"more than {min(limit, service.config.queue)} questions", "questions")
    for place, question in enumerate(questions):
        if is_blank(question) or len(question) > service.config.max_question_chars:
            most = service.config.max_question_chars
            raise Refused(400, "body", f"question {place}: expected 1 to {most} characters", "questions")
    return list(questions), None


def _number(body: dict[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(400, "body", f"field '{name}': expected a number", name)
    try:
        return float(value)
    except OverflowError:
        raise Refused(400, "body", f"field '{name}': expected a number", name) from None


def _decision_json(value: Input, decision: ServedDecision) -> dict[str, Any]:
    about = {"turn": value.turn} if isinstance(value, TurnExample) else {"question": value}
    return {
        **about,
        "retrieve": None if decision.threshold is None else decision.retrieve,
        "reason": decision.reason,
        "score": decision.score,
        "probability": decision.probability,
        "helps": decision.helps,
        "gain": decision.gain,
        "threshold": decision.threshold,
        "scores": dict(decision.scores),
        **({"id": decision.request_id} if decision.request_id else {}),
    }


async def models_route(service: Service, exchange: Exchange) -> None:
    """The upstream's models, then the gate as one; for a client of Anthropic's the upstream's own list."""
    if exchange.anthropic and passes_all(service):
        await forward(service, exchange)
        return
    key = [(name, value) for name, value in exchange.headers if name == b"authorization"]
    models = [] if service.upstream is None else await service.upstream.models(key)
    await exchange.json({"object": "list", "data": [*models, _entry(service)]})


def _entry(service: Service) -> dict[str, Any]:
    return {"id": service.decider.loaded.name, "object": "model", "created": 0, "owned_by": "kbtrain"}


async def _is_gate_s_entry(service: Service, exchange: Exchange) -> bool:
    """True if the request was for the gate's entry in the list of models, which is answered."""
    asked = exchange.scope["path"] == f"/v1/models/{service.decider.loaded.name}"
    if asked and exchange.scope["method"] in ("GET", "HEAD"):
        await exchange.json(_entry(service))
        return True
    return False


async def health_route(service: Service, exchange: Exchange) -> None:
    """The process is up."""
    await exchange.json({"status": "ok"})


async def ready_route(service: Service, exchange: Exchange) -> None:
    """The gate is loaded, and the upstream can be reached. A search that fails is an error where requests without it
    are; else the answer says so.
    """
    if not service.decider.worker.alive:
        raise Refused(503, "gate_stopped", "the gate's thread has ended; start the server again")
    if service.upstream_check is not None and (refused := await service.upstream_check.problem()):
        raise Refused(503, refused.code, str(refused))
    search = "none"
    if service.search_check is not None:
        search = "ok" if await service.search_check.works() else "failed"
    if search == "failed" and service.config.on_search_failure == "error":
        raise Refused(503, "search_failed", "the search does not answer")
    await exchange.json({"status": "ready", "gate": service.decider.loaded.name, "search": search})


async def metrics_route(service: Service, exchange: Exchange) -> None:
    """Metrics in Prometheus' text form."""
    for what, count in service.decider.loaded.gate.spent.items():
        service.metrics.spent.labels(what).set(count)
    kind = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
    await exchange.reply(200, service.metrics.text(), kind)


async def openapi_route(service: Service, exchange: Exchange) -> None:
    """The document of what the routes take and answer."""
    await exchange.reply(200, openapi())


@functools.cache
def openapi() -> bytes:
    """The document as JSON; it is written as YAML."""
    text = resources.files("kbtrain.serve").joinpath("openapi.yaml").read_text(encoding="utf-8")
    return json.dumps(yaml.safe_load(text), ensure_ascii=False).encode()
