"""A follow-up is gated and searched for by the user's last messages."""

import json

import pytest
from serve_support import NEEDS, serving
from stub_upstream import StubUpstream

FIRST = "What is our parental leave policy?"
FOLLOW_UP = "And can I carry them over?"


@pytest.fixture
def stub():
    with StubUpstream() as running:
        yield running


def ask(server, *texts, headers=None, **more):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return server.post("/v1/chat/completions", {"model": "stub", "messages": messages, **more}, headers).headers


def searching(gate, stub, **more):
    return serving(gate, upstream=stub.url, search="serve_support:echo", threshold=0.0, k=1, **more)


def seen(stub):
    """The last message that the upstream answered; the search gives the text that it was asked for."""
    return stub.body()["messages"][-1]["content"]


def test_the_last_message_alone_is_the_default(gate, stub):
    with searching(gate, stub) as server:
        found = ask(server, FIRST, "16 weeks.", FOLLOW_UP)
        assert FIRST not in seen(stub) and FOLLOW_UP in seen(stub)
        assert "x-kbtrain-context" not in found and len(stub.requests) == 1


def test_a_window_is_searched_for_and_gated_together(gate, stub, tmp_path):
    with searching(gate, stub, context="window", log=tmp_path / "log.jsonl", log_text=True) as server:
        found = ask(server, "Hi", "Hello!", FIRST, "16 weeks.", FOLLOW_UP)
        assert f"{FIRST} {FOLLOW_UP}" in seen(stub)
        assert found["x-kbtrain-context"] == "window" and len(stub.requests) == 1
        alone = server.post("/v1/gate", {"questions": [f"{FIRST} {FOLLOW_UP}"]}).json["decisions"][0]
        assert float(found["x-kbtrain-score"]) == pytest.approx(alone["score"], abs=1e-4)
        assert ask(server, FIRST, "16 weeks.", "Who wrote the novel Emma?")["x-kbtrain-context"] == "last"
        assert FIRST not in seen(stub)
        assert server.metric('kbtrain_follow_ups_total{context="window"}') == 1
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(row["context"], row["question"]) for row in rows if row["route"] == "chat/completions"] == [
        ("window", f"{FIRST} {FOLLOW_UP}"),
        ("last", "Who wrote the novel Emma?"),
    ]


def test_the_gate_s_own_route_reads_the_window(gate):
    with serving(gate, context="window") as server:
        messages = [{"role": "user", "content": NEEDS}, {"role": "user", "content": "And when?"}]
        (decision,) = server.post("/v1/gate", {"messages": messages}).json["decisions"]
        assert decision["question"] == f"{NEEDS} And when?"
