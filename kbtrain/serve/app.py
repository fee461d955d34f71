"""The routes of the server."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from importlib import resources
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import Route, Router

from kbtrain.answers.writing import is_blank
from kbtrain.records import TurnExample
from kbtrain.serve.chat import gate_input
from kbtrain.serve.exchange import Endpoint, Exchange, Handle
from kbtrain.serve.policy import Aim
from kbtrain.serve.problem import BadBody, Refused, read_fields, read_object
from kbtrain.serve.proxy import forward, passes_all, proxy
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
        """``forwarded``: the upstream has this path, too, and gets requests of other methods."""
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

    async def others(exchange: Exchange) -> None:
        if not await _is_gate_s_entry(service, exchange):
            await (forward(service, exchange) if passes_all(service) else unknown(exchange))

    async def unknown(exchange: Exchange) -> None:
        rest = "; other paths under /v1/ are the upstream's" if passes_all(service) else ""
        named = ", ".join(f"{method} {path}" for path, method in methods.items())
        raise Refused(404, "unknown_route", f"no such route; there are: {named}{rest}")

    methods: dict[str, str] = {}
    routes = [
        *(route(f"/v1/{path}", "POST", functools.partial(proxy, path), forwarded=True) for path in FORMS),
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


class GateBody(Aim):
    """Fields of ``/v1/gate``."""

    questions: list[str] | None = Field(None, min_length=1, description="a list of texts")
    messages: Any = Field(None, description="a list of messages")


class OutcomeBody(BaseModel):
    """Fields of ``/v1/outcomes``."""

    model_config = ConfigDict(extra="forbid")
    id: str = Field(min_length=1, max_length=64, description="1 to 64 characters")
    right: bool | Annotated[float, Field(ge=0, le=1)] = Field(description="true, false or a number from 0 to 1")
    source: str = Field("unknown", min_length=1, max_length=40, description="1 to 40 characters")


async def gate_route(service: Service, exchange: Exchange) -> None:
    """Many questions, or one chat, to decisions with all scores; nothing is searched."""
    body = read_fields(GateBody, read_object(await exchange.body()))
    inputs, kinds = _inputs(service, body)

    async def work() -> None:
        exchange.moment = "gate"
        decisions = await service.decisions("gate", inputs, body, kinds)
        rows = [_about(value) | decision.fields() for value, decision in zip(inputs, decisions, strict=False)]
        fields = {"gate": decisions[0].gate, "decisions": rows, "seconds": round(decisions[0].seconds, 6)}
        if len(decisions) < len(inputs):
            slow = service.gate_slow(len(decisions), len(inputs))
            slow.fields = fields
            raise slow
        await exchange.json(fields)

    await exchange.until_gone(work())


async def outcomes_route(service: Service, exchange: Exchange) -> None:
    """A verdict on an answer that was given, by the request's id, into the decision log."""
    body = read_fields(OutcomeBody, read_object(await exchange.body()))
    if service.log is None:
        raise Refused(409, "no_log", "this server writes no decision log; start it with --log")
    row = {"time": round(time.time(), 3), "outcome_of": body.id, "right": float(body.right), "source": body.source}
    if not service.log.write(row, None, False):
        raise Refused(503, "log_full", "the decision log cannot take more now", headers={"retry-after": "1"})
    await exchange.json({"id": body.id, "right": row["right"]})


def _inputs(service: Service, body: GateBody) -> tuple[list[Input], list[UtteranceKind | None] | None]:
    """Inputs of the gate, and the kinds of the messages behind them (None: those of the inputs)."""
    config, questions = service.config, body.questions
    if ("questions" in body.model_fields_set) == ("messages" in body.model_fields_set):
        raise BadBody("give either 'questions' or 'messages'")
    reads = service.decider.loaded.gate.reads
    if questions is None:
        gated = gate_input(body.messages, config, reads)
        if gated.value is None:
            raise Refused(400, "ungated", f"these messages pass ungated: {gated.reason}", "messages")
        return [gated.value], [gated.kind]
    if "question" not in reads:
        raise BadBody("this gate reads dialogues: give 'messages'", "questions")
    if len(questions) > (most := min(config.max_messages, config.queue)):
        raise BadBody(f"more than {most} questions", "questions")
    for place, question in enumerate(questions):
        if is_blank(question) or len(question) > config.max_question_chars:
            raise BadBody(f"question {place}: expected 1 to {config.max_question_chars} characters", "questions")
    return list(questions), None


def _about(value: Input) -> dict[str, Any]:
    return {"turn": value.turn} if isinstance(value, TurnExample) else {"question": value}


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
    is_entry = exchange.scope["path"] == f"/v1/models/{service.decider.loaded.name}"
    if is_entry and exchange.scope["method"] in ("GET", "HEAD"):
        await exchange.json(_entry(service))
        return True
    return False


async def health_route(service: Service, exchange: Exchange) -> None:
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
    for what, count in service.decider.loaded.gate.spent.items():
        service.metrics.spent.labels(what).set(count)
    kind = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
    await exchange.reply(200, service.metrics.text(), kind)


async def openapi_route(service: Service, exchange: Exchange) -> None:
    await exchange.reply(200, openapi())


@functools.cache
def openapi() -> bytes:
    """The document as JSON; it is written as YAML."""
    text = resources.files("kbtrain.serve").joinpath("openapi.yaml").read_text(encoding="utf-8")
    return json.dumps(yaml.safe_load(text), ensure_ascii=False).encode()
