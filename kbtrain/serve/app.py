"""The routes of the server, and the OpenAPI document that describes them."""

from __future__ import annotations

import functools
import re
import secrets
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from kbtrain.answers.words import normalise
from kbtrain.answers.writing import is_blank
from kbtrain.prompts.kbm import INSTRUCTIONS
from kbtrain.records import TurnExample
from kbtrain.serve.decide import Input
from kbtrain.serve.exchange import Endpoint, Exchange
from kbtrain.serve.problem import PREFIX, Aim, BadBody, GatePolicy, M, Policy, Refused, read_fields, read_object
from kbtrain.serve.proxy import forward, forwarded_path, proxy
from kbtrain.serve.request_forms import FORMS, gate_input
from kbtrain.serve.service import Service
from kbtrain.utterances import UtteranceKind

Handle = Callable[[Service, Exchange], Coroutine[Any, Any, None]]
REF = "#/components/schemas/{model}"
ABOUT = (
    "A gate in front of a model: it decides for each question whether to search before the model answers. Chat, "
    "completions, responses and messages are those of the server behind it; their fields are passed on as they came, "
    "and so is every other path under /v1/. The headers x-kbtrain-* of an answer say what was decided."
)
STATUSES = ("400", "401", "403", "404", "405", "408", "413", "415", "431", "502", "503", "504")
MOST_QUESTIONS = 128
UNUSED = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}


def _is_the_one(instructions: str) -> str:
    if normalise(instructions) != normalise(INSTRUCTIONS):
        raise ValueError("another question")
    return instructions


class GateBody(Aim):
    """Questions or one chat, and perhaps an aim."""

    questions: list[str] | None = Field(None, min_length=1, description="a list of texts")
    messages: Any = Field(None, description="a list of messages")


class GatedRow(BaseModel):
    """A decision. ``retrieve`` is null where nothing decides; ``id`` is there where the server writes a log."""

    question: str = ""
    turn: int = 0
    retrieve: bool | None
    reason: str
    score: float
    probability: float | None
    threshold: float | None
    scores: dict[str, float]
    id: str = ""


class GateReply(BaseModel):
    gate: str
    decisions: list[GatedRow]
    seconds: float


class OutcomeBody(BaseModel):
    """A verdict on an answer that was given."""

    model_config = ConfigDict(extra="forbid")
    id: str = Field(min_length=1, max_length=64, description="1 to 64 characters")
    right: bool | Annotated[float, Field(ge=0, le=1)] = Field(description="true, false or a number from 0 to 1")
    source: str = Field("unknown", min_length=1, max_length=40, description="1 to 40 characters")


class OutcomeReply(BaseModel):
    id: str
    right: float


class GatesQuestion(BaseModel):
    """The one question that a gate answers, without criteria; any other is refused, not answered as if it were this."""

    instructions: Annotated[str, AfterValidator(_is_the_one)] = Field(description=INSTRUCTIONS)
    criteria: Literal[""] | Annotated[list[Any] | dict[str, Any], Field(max_length=0)] | None = None


class Predicate(GatesQuestion):
    type: Literal["predicate"]
    name: str | None = None


class Noul(GatesQuestion):
    type: Literal["noul"]


class DecisionModelBody(BaseModel):
    """A request to the gate as a decision model. ``model``: kbtrain, or the gate's name."""

    model: Any = None


EXPECTED = f"1 to {MOST_QUESTIONS} questions of type '{{}}' with the instructions \"{INSTRUCTIONS}\" and no criteria"


class DecisionsBody(DecisionModelBody):
    """OpenAI's form."""

    input: Any = Field(description="a text, messages, or an object with messages")
    questions: list[Predicate] = Field(
        min_length=1, max_length=MOST_QUESTIONS, description=f"a list of {EXPECTED.format('predicate')}"
    )


class SystemOneBody(DecisionModelBody):
    """TypeSafe's form."""

    state: Any = Field(description="a text, messages, or an object with messages")
    questions: dict[str, Noul] = Field(
        min_length=1, max_length=MOST_QUESTIONS, description=f"a map of {EXPECTED.format('noul')}"
    )


class Problem(BaseModel):
    """Why there is no answer."""

    message: str
    type: str
    code: str


class Refusal(BaseModel):
    """The form of OpenAI's errors, and of Anthropic's for its clients."""

    error: Problem


_KNOWN_ENDS = re.compile(r"/(chat/completions|completions|responses|(?<=/v1/)messages)$")


def application(service: Service) -> ASGIApp:
    """The ASGI application: routes without middleware but CORS where it is wanted, since :class:`Endpoint` answers for
    errors itself and each layer would wrap every token that is sent."""

    def route(path: str, method: str, handle: Handle, forwarded: bool = False) -> Route:
        """``forwarded``: the upstream has this path, too, and gets requests of other methods."""
        allowed = (method, "HEAD") if method == "GET" else (method,)  # HEAD is GET without a body

        async def handled(exchange: Exchange) -> None:
            if exchange.scope["method"] in allowed:
                await handle(service, exchange)
            elif forwarded:
                await forward(service, exchange, method)
            else:
                raise Refused(405, "method", f"this route takes {method}", headers={"allow": ", ".join(allowed)})

        methods[path], handlers[path] = method, handled
        return Route(path, endpoint(path, handled))

    async def others(exchange: Exchange) -> None:
        path, method = exchange.scope["path"], exchange.scope["method"]
        meant = _meant(path)
        if meant.startswith("/v1/") and meant not in handlers and (known := _KNOWN_ENDS.search(meant)):
            # Azure's deployments, and addresses that a gateway puts in front
            meant, exchange.sent_to = f"/v1/{known[1]}", forwarded_path(exchange)
        if handle := handlers.get(meant):
            await handle(exchange)
        elif path == f"/v1/models/{service.decider.loaded.name}" and method in ("GET", "HEAD"):
            await exchange.reply(200, _entry(service))
        elif path.startswith("/v1/") and service.config.upstream is not None:
            await forward(service, exchange)
        else:
            rest = "; other paths under /v1/ are the upstream's" if service.config.upstream else ""
            named = ", ".join(f"{method} {path}" for path, method in methods.items())
            raise Refused(404, "unknown_route", f"no such route; there are: {named}{rest}")

    endpoint = functools.partial(Endpoint, config=service.config, keys=service.keys, metrics=service.metrics)
    methods: dict[str, str] = {}
    handlers: dict[str, Callable[[Exchange], Coroutine[Any, Any, None]]] = {}
    routes = [
        *(route(f"/v1/{path}", "POST", functools.partial(proxy, path), forwarded=True) for path in FORMS),
        *(route(path, own.method.upper(), own.handle, path == "/v1/models") for path, own in OWN.items()),
        Route("/v1/{path:path}", endpoint("/v1/*", others)),
    ]
    router = Router(routes=routes, redirect_slashes=False, default=endpoint("unknown", others))
    if not service.config.cors:
        return router
    return CORSMiddleware(router, service.config.cors, ["*"], ["*"], expose_headers=["*"])


def _meant(path: str) -> str:
    """The path in small letters, without empty segments, parameters, and a second ``v1``: clients join such ones."""
    parts = [name for part in path.lower().split("/") if (name := part.partition(";")[0].strip("\0 "))]
    while parts[:2] == ["v1", "v1"]:
        parts.pop(0)
    return "/" + "/".join(parts)


async def gate_route(service: Service, exchange: Exchange) -> None:
    """Many questions, or one chat, to decisions with all scores; nothing is searched."""
    body = read_fields(GateBody, read_object(await exchange.read()))
    inputs, kinds = _inputs(service, body)
    exchange.moment = "gate"
    policy = GatePolicy.read(exchange.headers, service.config.sources.get("/v1/gate", ""))
    decisions = await service.decisions("gate", inputs, body if body.asks_gate else policy, kinds, policy.source)
    rows = [
        ({"turn": value.turn} if isinstance(value, TurnExample) else {"question": value}) | decision.fields()
        for value, decision in zip(inputs, decisions, strict=False)
    ]
    fields = {"gate": decisions[0].gate, "decisions": rows, "seconds": round(decisions[0].seconds, 6)}
    if len(decisions) < len(inputs):
        slow = service.gate_slow(len(decisions), len(inputs))
        slow.fields = fields
        raise slow
    await exchange.reply(200, fields)


async def outcomes_route(service: Service, exchange: Exchange) -> None:
    """A verdict on an answer that was given, by the request's id, into the file beside the decision log."""
    body = read_fields(OutcomeBody, read_object(await exchange.read()))
    if service.outcomes is None:
        raise Refused(409, "no_log", "this server writes no decision log; start it with --log")
    row = {"time": round(time.time(), 3), "outcome_of": body.id, "right": float(body.right), "source": body.source}
    if not service.outcomes.write(row, None, False):
        raise Refused(503, "log_full", "the decision log cannot take more now", headers={"retry-after": "1"})
    await exchange.reply(200, {"id": body.id, "right": row["right"]})


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
    if len(questions) > config.queue:
        raise BadBody(f"more than {config.queue} questions", "questions")
    for place, question in enumerate(questions):
        if is_blank(question) or len(question) > config.max_question_chars:
            raise BadBody(f"question {place}: expected 1 to {config.max_question_chars} characters", "questions")
    return list(questions), None


async def decisions_route(service: Service, exchange: Exchange) -> None:
    """The gate as a decision model in OpenAI's form. Read in litellm 1.109.1 and langchain-openai 1.7.4."""
    asked, probability, common = await _decide_asked(service, exchange, "decisions", DecisionsBody, "input")
    rows = [{"name": q.name, "type": "predicate", "probability": probability} for q in asked.questions]
    await exchange.reply(200, {"object": "decision", "answers": rows, **common})


async def systemone_route(service: Service, exchange: Exchange) -> None:
    """The gate as a decision model in TypeSafe's form. Read in langchain-typesafe 0.0.1a3."""
    asked, probability, common = await _decide_asked(service, exchange, "systemone", SystemOneBody, "state")
    answers = {name: {"type": "noul", "noul": probability} for name in asked.questions}
    await exchange.reply(200, {"answers": answers, "request_id": secrets.token_hex(12), **common})


async def _decide_asked(
    service: Service, exchange: Exchange, route: str, kind: type[M], field: str
) -> tuple[M, float, dict[str, Any]]:
    """A body of one of both forms, the probability for the text or messages in its ``field``, and the fields of both
    forms' replies.

    Raises :class:`Refused` for another model, a gate without a probability, and a field that it cannot read.
    """
    body, loaded = read_object(await exchange.read()), service.decider.loaded
    if body.get("model") not in (None, "kbtrain", loaded.name, loaded.gate.name):
        message = f"the decision model here is '{loaded.name}' (or '{loaded.gate.name}', or 'kbtrain')"
        raise Refused(404, "model_not_found", message, "model")
    asked, gate = read_fields(kind, body), loaded.gate
    messages = getattr(asked, field)
    if gate.unit is None:
        message = f"the score of gate '{gate.name}' is not a probability; ask /v1/gate"
        raise Refused(400, "no_probability", message)
    if isinstance(messages, str):
        messages = [{"content": messages}]
    elif isinstance(messages, dict):
        messages = messages.get("messages")
    if isinstance(messages, list):
        messages = [{"role": "user", **m} if isinstance(m, dict) else m for m in messages]
    try:
        gated = gate_input(messages, service.config, gate.reads)
    except Refused as refused:
        raise BadBody(f"expected text or messages ({refused})", field) from None
    if gated.value is None:
        raise BadBody(f"nothing here that the gate reads ({gated.reason})", field)
    exchange.moment = "gate"
    policy = GatePolicy.read(exchange.headers, service.config.sources.get(f"/v1/{route}", ""))
    (decision,) = await service.decisions(route, [gated.value], policy, [gated.kind], policy.source)
    assert decision.probability is not None
    public = ("score", "threshold", "retrieve", "id")
    raw = {"gate": decision.gate} | {name: value for name, value in decision.fields().items() if name in public}
    return asked, decision.probability, {"model": loaded.name, "usage": UNUSED, "kbtrain": raw}


async def models_route(service: Service, exchange: Exchange) -> None:
    """The upstream's models, then the gate as one; for a client of Anthropic's the upstream's own list."""
    if exchange.anthropic and service.config.upstream is not None:
        await forward(service, exchange)
        return
    key = [(name, value) for name, value in exchange.headers if name == b"authorization"]
    models = [] if service.upstream is None else await service.upstream.models(key)
    await exchange.reply(200, {"object": "list", "data": [*models, _entry(service)]})


def _entry(service: Service) -> dict[str, Any]:
    return {"id": service.decider.loaded.name, "object": "model", "created": 0, "owned_by": "kbtrain"}


async def health_route(service: Service, exchange: Exchange) -> None:
    await exchange.reply(200, {"status": "ok"})


async def ready_route(service: Service, exchange: Exchange) -> None:
    """The gate is loaded, and the upstream can be reached. A search that fails is an error where requests without it
    are; else the answer says so."""
    if not service.decider.worker.alive:
        raise Refused(503, "gate_stopped", "the gate's thread has ended; start the server again")
    if service.upstream_check is not None and (refused := await service.upstream_check.problem()):
        raise Refused(503, refused.code, str(refused))
    search = "none"
    if service.search_check is not None:
        search = "ok" if await service.search_check.problem() is None else "failed"
    if search == "failed" and service.config.on_search_failure == "error":
        raise Refused(503, "search_failed", "the search does not answer")
    await exchange.reply(200, {"status": "ready", "gate": service.decider.loaded.name, "search": search})


async def metrics_route(service: Service, exchange: Exchange) -> None:
    for what, count in service.decider.loaded.gate.spent.items():
        service.metrics.spent.labels(what).set(count)
    kind = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
    await exchange.reply(200, service.metrics.text(), kind)


# The document


@dataclass(frozen=True)
class OwnRoute:
    handle: Handle
    method: Literal["get", "post"]
    about: str
    body: type[BaseModel] | None = None
    reply: type[BaseModel] | None = None
    statuses: tuple[str, ...] = STATUSES


async def openapi_route(service: Service, exchange: Exchange) -> None:
    await exchange.reply(200, document())


OWN: dict[str, OwnRoute] = {
    "/v1/gate": OwnRoute(
        gate_route, "post", "Decisions of the gate alone, of many questions or one chat", GateBody, GateReply),
    "/v1/outcomes": OwnRoute(
        outcomes_route, "post", "A verdict on a given answer, stored in the decision log (409 without a log)",
        OutcomeBody, OutcomeReply, ("409", *STATUSES)),
    "/v1/decisions": OwnRoute(decisions_route, "post", "The gate as a decision model, in OpenAI's form", DecisionsBody),
    "/v1/systemone": OwnRoute(
        systemone_route, "post", "The gate as a decision model, in TypeSafe's form", SystemOneBody),
    "/v1/models": OwnRoute(models_route, "get", "The models behind the gate, then the gate"),
    "/health": OwnRoute(health_route, "get", "The process is up", statuses=("431",)),
    "/ready": OwnRoute(
        ready_route, "get", "The gate is loaded, and the model behind it answers", statuses=("431", "503")),
    "/metrics": OwnRoute(metrics_route, "get", "Figures for Prometheus"),
    "/openapi.json": OwnRoute(openapi_route, "get", "This document"),
}  # fmt: skip
GATED = {
    "/v1/chat/completions": "A chat, with passages in its prompt if the gate asks for them",
    "/v1/completions": "A prompt, with passages in it if the gate asks for them",
    "/v1/responses": "OpenAI's Responses, with passages in the input if the gate asks for them",
    "/v1/messages": "Anthropic's Messages, with passages in the last message if the gate asks for them",
}
PASSED_ON = ("get", "post", "put", "patch", "delete")


@functools.cache
def document() -> dict[str, Any]:
    kinds: list[type[BaseModel]] = [Refusal]
    kinds += [route.body for route in OWN.values() if route.body is not None]
    kinds += [route.reply for route in OWN.values() if route.reply is not None]
    _, schemas = models_json_schema([(kind, "validation") for kind in kinds], ref_template=REF)
    as_it_came = {"default": {"description": "The answer of the server behind the gate as it came, or an error"}}
    policy = [
        {"name": PREFIX + name, "in": "header", "description": field.description, "schema": {"type": "string"}}
        for name, field in Policy.model_fields.items()
    ]
    body = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
    paths: dict[str, Any] = {path: {route.method: _operation(route)} for path, route in OWN.items()}
    for path, about in GATED.items():
        paths[path] = {"post": {"summary": about, "parameters": policy, "requestBody": body, "responses": as_it_came}}
    forwarded = {"summary": "Every other path of the upstream, ungated", "responses": as_it_came}
    segment = {"name": "path", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/{path}"] = {"parameters": [segment], **dict.fromkeys(PASSED_ON, forwarded)}
    key = {"type": "http", "scheme": "bearer", "description": "with --keys; X-Api-Key works, too"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "kbtrain serve", "version": "1", "description": ABOUT},
        "security": [{"key": []}, {}],
        "paths": paths,
        "components": {"schemas": schemas["$defs"], "securitySchemes": {"key": key}},
    }


def _operation(route: OwnRoute) -> dict[str, Any]:
    refused = {"description": "Why there is no answer", "content": _content(Refusal)}
    kind = "text/plain" if route.about.endswith("Prometheus") else "application/json"
    answer = {kind: {}} if route.reply is None else _content(route.reply)
    operation = {
        "summary": route.about,
        "responses": {"200": {"description": "The answer", "content": answer}} | dict.fromkeys(route.statuses, refused),
    }
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(route.body)}
    return operation


def _content(kind: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REF.format(model=kind.__name__)}}}
