"""A follow-up is gated and searched for by the user's last messages, or by a question that a model writes."""

import json

import pytest
from serve_support import NEEDS, serving
from stub_upstream import StubUpstream

FIRST = "What is our parental leave policy?"
FOLLOW_UP = "And can I carry them over?"
CONDENSED = "Can I carry over days of parental leave?"


class CondensingUpstream(StubUpstream):
    """An upstream that writes a question where it is asked for one: ``reply``, with the reason ``finish``."""

    reply, finish = CONDENSED, "stop"

    def answer(self, body):
        whole = super().answer(body)
        if "Last message: " in body["messages"][-1]["content"]:
            whole["choices"][0]["message"]["content"] = self.reply
            whole["choices"][0]["finish_reason"] = self.finish
        return whole


@pytest.fixture
def stub():
    with CondensingUpstream() as running:
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


def test_a_follow_up_is_condensed_by_one_bounded_request(gate, stub, tmp_path):
    with searching(gate, stub, context="condense", log=tmp_path / "log.jsonl") as server:
        found = ask(server, FIRST, "16 weeks.", FOLLOW_UP, headers={"x-kbtrain-debug": "true"})
        assert len(stub.requests) == 2
        asked = stub.body(0)
        assert (asked["model"], asked["max_tokens"], asked["temperature"]) == ("stub", 100, 0)
        assert "stream" not in asked and f"User: {FIRST}\nAssistant: 16 weeks." in asked["messages"][0]["content"]
        assert CONDENSED in seen(stub) and FOLLOW_UP in seen(stub)
        assert found["x-kbtrain-context"] == "condensed" and float(found["x-kbtrain-condense-ms"]) > 0
        assert found["x-kbtrain-question"] == "Can%20I%20carry%20over%20days%20of%20parental%20leave%3F"
        assert ask(server, FIRST)["x-kbtrain-context"] == "last" and len(stub.requests) == 3
        assert ask(server, FIRST, "16 weeks.", "Thanks!")["x-kbtrain-reason"] == "thanks" and len(stub.requests) == 4
    row = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])
    assert row["context"] == "condensed" and row["condense_ms"] > 0


@pytest.mark.parametrize(
    ("reply", "finish"), [("", "stop"), (CONDENSED, "length"), ("x" * 2000, "stop"), (None, "stop")]
)
def test_a_reply_without_a_question_leaves_the_window(gate, stub, reply, finish):
    stub.reply, stub.finish = reply, finish
    with searching(gate, stub, context="condense") as server:
        assert ask(server, FIRST, "16 weeks.", FOLLOW_UP)["x-kbtrain-context"] == "condense-failed"
        assert f"{FIRST} {FOLLOW_UP}" in seen(stub)


def test_a_failing_upstream_leaves_the_window(gate, stub):
    with searching(gate, stub, context="condense") as server:
        stub.status = 500
        assert ask(server, FIRST, "16 weeks.", FOLLOW_UP)["x-kbtrain-context"] == "condense-failed"
        assert f"{FIRST} {FOLLOW_UP}" in seen(stub)


def test_an_upstream_that_does_not_answer_ends_at_the_deadline(gate, stub, monkeypatch):
    monkeypatch.setattr("kbtrain.serve.proxy.CONDENSE", 0.05)
    stub.hold = "first"
    with searching(gate, stub, context="condense", upstream_timeout_s=0.5) as server:
        found = ask(server, FIRST, "16 weeks.", FOLLOW_UP)  # the answer's own request is then slow, too: 504
        assert found["x-kbtrain-context"] == "condense-failed" and len(stub.requests) == 2


def test_a_model_that_counts_completion_tokens_is_asked_in_its_own_words(gate, stub):
    with searching(gate, stub, context="condense", condense_model="small") as server:
        ask(server, FIRST, "16 weeks.", FOLLOW_UP, max_completion_tokens=500)
        asked = stub.body(0)
        assert (asked["model"], asked["max_completion_tokens"]) == ("small", 100)
        assert "max_tokens" not in asked and "temperature" not in asked


def test_the_gate_s_own_route_reads_the_window(gate):
    with serving(gate, context="window") as server:
        messages = [{"role": "user", "content": NEEDS}, {"role": "user", "content": "And when?"}]
        (decision,) = server.post("/v1/gate", {"messages": messages}).json["decisions"]
        assert decision["question"] == f"{NEEDS} And when?"
