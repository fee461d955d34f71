"""The OpenAPI document is of these routes, and no request that schemathesis makes of it shows a bug of the server."""

import json
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from serve_support import serving
from stub_upstream import StubUpstream

from kbtrain.serve.app import GATED, application, document
from kbtrain.serve.problem import Policy

DOCUMENT = json.loads(json.dumps(document()))
METHODS = ("get", "post", "put", "patch", "delete")
OPERATIONS = [(path, method) for path, item in DOCUMENT["paths"].items() for method in item if method in METHODS]
KEY = "0123456789abcdef"


class Textual(StubUpstream):
    """Streams text, as the document says of models."""

    def part(self, i, body):
        return b'data: {"i": %d}\n\n' % i


@pytest.fixture(scope="module")
def server(gate, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(KEY)
    with Textual() as stub, serving(gate, upstream=stub.url, search="serve_support:echo", keys=keys) as running:
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


def test_the_document_s_policy_is_the_server_s():
    (parameters,) = {
        json.dumps(item["post"]["parameters"]) for path, item in DOCUMENT["paths"].items() if path in GATED
    }
    names = {parameter["name"].removeprefix("x-kbtrain-") for parameter in json.loads(parameters)}
    assert names == set(Policy.model_fields)


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

    @settings(max_examples=2, suppress_health_check=list(HealthCheck))
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
