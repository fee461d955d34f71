"""The OpenAPI document is of these routes, and no request that schemathesis makes of it is a fault of the server."""

import json
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from serve_support import serving
from stub_upstream import StubUpstream

from kbtrain.serve.app import INSTRUCTIONS, MOST_QUESTIONS, application, openapi
from kbtrain.serve.chat import MOST_MESSAGES
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.problem import Policy

DOCUMENT = json.loads(openapi())
METHODS = ("get", "post", "put", "patch", "delete")
OPERATIONS = [(path, method) for path, item in DOCUMENT["paths"].items() for method in item if method in METHODS]
KEY = "0123456789abcdef"


class Textual(StubUpstream):
    """Streams text, as the document says of models."""

    def part(self, i, body):
        return b'data: {"i": %d}\n\n' % i


class Answering(StubUpstream):
    """Gives each route the document's example, in the dialect of the request."""

    def __init__(self, answers):
        super().__init__()
        self.answers, self.models = answers, ["my-model"]

    def answer(self, body):
        return self.answers[self.requests[-1][0] if self.requests[-1][0] in self.answers else "/v1/{path}"]


@pytest.fixture(scope="module")
def server(gate, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(KEY)
    with (
        Textual() as stub,
        serving(gate, upstream=stub.url, search="serve_support:echo", keys=keys) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def schema(server):
    schemathesis = pytest.importorskip("schemathesis")
    return schemathesis.openapi.from_dict(DOCUMENT)


def test_the_document_names_every_route_and_is_served(server):
    reply = server.get("/openapi.json", {"authorization": f"Bearer {KEY}"})
    assert reply.json == DOCUMENT
    unknown = server.get("/none", {"authorization": f"Bearer {KEY}"})
    named = unknown.error.partition("there are: ")[2].partition(";")[0].split(", ")
    own = {(path, method) for path, method in OPERATIONS if path != "/v1/{path}"}
    assert own == {(path, method.lower()) for method, _, path in (one.partition(" ") for one in named)}
    routes = {route.path.replace(":path", "") for route in application(server.service).routes}
    assert {path for path, _ in OPERATIONS} == routes


def test_the_examples_are_requests_and_replies_of_a_served_gate(gate, tmp_path):
    """Replies of the model are passed on as they came; the server's own have the fields and types that are shown."""
    answers = {path: item["post"]["x-example"]["reply"] for path, item in DOCUMENT["paths"].items() if "post" in item}
    own = ("/v1/gate", "/v1/outcomes", "/v1/decisions", "/v1/systemone")
    with (
        Answering(answers) as stub,
        serving(gate, upstream=stub.url, search="serve_support:echo", log=tmp_path / "log.jsonl") as running,
    ):
        for path, method in OPERATIONS:
            example = DOCUMENT["paths"][path][method]["x-example"]
            place = path.replace("{path}", example.get("path", ""))
            request = dict(example.get("request", {}))
            if path == "/v1/outcomes":
                chat = DOCUMENT["paths"]["/v1/chat/completions"]["post"]["x-example"]["request"]
                request["id"] = running.post("/v1/chat/completions", chat).headers["x-kbtrain-request-id"]
            reply = running.ask(method.upper(), place, request or None)
            shown = example["reply"]
            assert reply.status == 200 or path == "/v1/{path}", (path, reply.body)
            if path == "/metrics":
                assert shown.partition("{")[0] in reply.body.decode()
            elif path == "/openapi.json":
                assert reply.json["openapi"] == shown["openapi"]
            elif method == "post" and path not in (*own, "/v1/{path}"):
                assert reply.json == shown
            elif path != "/v1/{path}":
                assert shape(reply.json) == shape(shown), path


def shape(value):
    """Types of a JSON value; figures that a gate has only after an evaluation may be missing."""
    if isinstance(value, dict):
        names = {"features_benefit": "NAME", "encoder_probe": "NAME"}
        return {names.get(key, key): shape(one) for key, one in value.items() if key not in ("helps", "gain")}
    if isinstance(value, list):
        return [shape(one) for one in value[-1:]]
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def test_limits_and_words_of_the_document_are_the_server_s():
    config, parts = ServeConfig(gate="g"), DOCUMENT["components"]
    names = {parameter["name"].removeprefix("x-kbtrain-") for parameter in parts["parameters"].values()}
    assert names == set(Policy.model_fields)
    messages = parts["schemas"]["messages"]
    assert messages["maxItems"] == MOST_MESSAGES
    assert messages["items"]["properties"]["role"]["type"] == "string"
    assert parts["schemas"]["words"]["maxLength"] == config.max_question_chars
    body = {path: body_of(path) for path in ("/v1/gate", "/v1/decisions", "/v1/systemone")}
    assert body["/v1/gate"]["properties"]["questions"]["maxItems"] == config.queue
    questions = body["/v1/decisions"]["properties"]["questions"]
    assert questions["maxItems"] == MOST_QUESTIONS
    assert questions["items"]["properties"]["instructions"]["const"] == INSTRUCTIONS


def body_of(path):
    return DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]


@pytest.mark.parametrize("wanted", ["positive", "negative"])
@pytest.mark.parametrize("path, method", OPERATIONS, ids=[f"{method} {path}" for path, method in OPERATIONS])
def test_no_request_of_the_document_s_kind_or_against_it_is_a_fault(server, schema, path, method, wanted):
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )  # fmt: skip

    operation, mode = schema[path][method.upper()], GenerationMode(wanted)
    if wanted == "negative" and not (operation.body or operation.headers):
        pytest.skip("nothing to spoil")
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

    @settings(max_examples=3, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        reply = case.call_and_validate(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}, checks=checks)
        assert reply.status_code < 500

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        check()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_a_stream_of_any_events_is_as_the_document_says(server, schema, path):
    body = {"messages": [{"role": "user", "content": "Hi"}], "prompt": "Hi", "input": "Hi", "stream": True}
    case = schema[path]["POST"].Case(body=body, headers={"authorization": f"Bearer {KEY}"})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        reply = case.call_and_validate(base_url=server.url)
    assert reply.status_code == 200 and reply.content.startswith(b"data: ")
