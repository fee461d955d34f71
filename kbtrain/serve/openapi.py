"""The server's OpenAPI document: its own routes from the models of their bodies, and those of the upstream by name."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.json_schema import models_json_schema

from kbtrain.answers.words import normalise
from kbtrain.prompts.kbm import INSTRUCTIONS
from kbtrain.serve.problem import PREFIX, Aim, Policy

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
    """A decision. ``retrieve`` is null without a threshold; ``id`` is there where the server writes a log."""

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
    """The one question that a gate answers, without criteria: another one is refused rather than answered as if it were
    this one.
    """

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


@dataclass(frozen=True)
class OwnRoute:
    """A route of the server's own."""

    method: Literal["get", "post"]
    about: str
    body: type[BaseModel] | None = None
    reply: type[BaseModel] | None = None
    statuses: tuple[str, ...] = STATUSES


OWN: dict[str, OwnRoute] = {
    "/v1/gate": OwnRoute("post", "Decisions of the gate alone, of many questions or one chat", GateBody, GateReply),
    "/v1/outcomes": OwnRoute(
        "post", "A verdict on a given answer, stored in the decision log (409 without a log)", OutcomeBody,
        OutcomeReply, ("409", *STATUSES),
    ),
    "/v1/decisions": OwnRoute(
        "post", "The gate as a decision model, in OpenAI's form", DecisionsBody
    ),
    "/v1/systemone": OwnRoute(
        "post", "The gate as a decision model, in TypeSafe's form", SystemOneBody
    ),
    "/v1/models": OwnRoute("get", "The models behind the gate, then the gate"),
    "/health": OwnRoute("get", "The process is up", statuses=("431",)),
    "/ready": OwnRoute("get", "The gate is loaded, and the model behind it answers", statuses=("431", "503")),
    "/metrics": OwnRoute("get", "Figures for Prometheus"),
    "/openapi.json": OwnRoute("get", "This document"),
}  # fmt: skip
GATED = {
    "/v1/chat/completions": "A chat, with passages in its prompt if the gate asks for them",
    "/v1/completions": "A prompt, with passages in it if the gate asks for them",
    "/v1/responses": "OpenAI's Responses, with passages in the input if the gate asks for them",
    "/v1/messages": "Anthropic's Messages, with passages in the last message if the gate asks for them",
}
PASSED_ON = ("get", "post", "put", "patch", "delete")


@functools.cache
def openapi() -> bytes:
    """The document as JSON."""
    return json.dumps(document(), ensure_ascii=False).encode()


def document() -> dict[str, Any]:
    """The OpenAPI document."""
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
    """One operation of a route of the server's own."""
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
