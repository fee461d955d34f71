"""The server searches for no greeting, instruction or sum, asks no gate for it, and says so."""

import pytest
from serve_support import NEEDS, serving
from stub_upstream import StubUpstream


@pytest.fixture(scope="module")
def stub():
    with StubUpstream() as running:
        yield running


@pytest.fixture(scope="module")
def proxy(gate, stub):
    with serving(gate, upstream=stub.url, search="serve_support:echo", threshold=0.0, k=1) as running:
        yield running


def ask(server, text, **headers):
    named = {f"x-kbtrain-{key}": value for key, value in headers.items()}
    return server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}, named).headers


@pytest.mark.parametrize(
    ("text", "reason"), [("Hi there!", "greeting"), ("What is 2+2?", "arithmetic"), ("Write a haiku", "instruction")]
)
def test_such_a_message_is_not_searched_for_and_the_gate_is_not_asked(proxy, text, reason):
    before = proxy.service.decider.worker.batches
    found = ask(proxy, text)
    assert (found["x-kbtrain-retrieved"], found["x-kbtrain-reason"]) == ("0", reason)
    assert proxy.service.decider.worker.batches == before and "x-kbtrain-score" not in found
    assert ask(proxy, NEEDS)["x-kbtrain-reason"] == "above-threshold"


def test_a_client_may_force_the_search(proxy):
    found = ask(proxy, "Hi there!", retrieve="always")
    assert (found["x-kbtrain-retrieved"], found["x-kbtrain-reason"]) == ("1", "forced")


def test_the_gate_s_own_route_decides_by_the_same_rules(proxy):
    reply = proxy.post("/v1/gate", {"questions": ["Hi", NEEDS]}).json["decisions"]
    assert [(d["retrieve"], d["reason"]) for d in reply] == [(False, "greeting"), (True, "above-threshold")]


def test_the_rules_can_be_switched_off(gate, stub):
    with serving(gate, upstream=stub.url, search="serve_support:echo", threshold=0.0, utterance_rules=False) as server:
        assert ask(server, "Hi there!")["x-kbtrain-reason"] == "above-threshold"
