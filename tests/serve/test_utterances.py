"""The server searches for no greeting, instruction or sum, asks no gate for it, and says so."""

import json
from pathlib import Path

import pytest
from serve_support import NEEDS, echo, serving
from stub_upstream import StubUpstream

from kbtrain.harness import no_question
from kbtrain.prompts.kbm import INSTRUCTIONS


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


# Requests that chat windows make for themselves are never searched for; what their users ask is


CHAT = "USER: What is the capital of Chad?\nASSISTANT: N'Djamena"
# The first words and the frame of the prompts that the windows ship (Open WebUI 0.6 and 0.12, LibreChat agents 3, ...).
ROWS = Path(__file__).with_name("client_tasks.jsonl").read_text(encoding="utf-8").splitlines()
TASKS = {row["window"]: row["prompt"] for row in map(json.loads, ROWS)}
QUESTIONS = [
    "What is the capital of Chad?", "### Task:\nWhich country is Rabat in?",
    "What is the title of the 5th chapter of Moby-Dick?", "Give me a title for my essay about the French Revolution",
    "Name the 10 longest conversations recorded in the Odyssey", "Summarize the discussion of the treaty of Versailles",
    "Who generated the title 'Empress of India' for Queen Victoria?",
    "### Task:\nRespond to the user query using the provided context.\n<context>\nx\n</context>\n\nWhere is Rabat?",
    "How many words are in the title of the shortest chat show?", "红楼梦第五回的标题是什么？",
]  # fmt: skip


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_a_window_s_own_request_is_known(task):
    assert no_question(task.replace("{chat}", CHAT)) == "client-task"
    assert no_question(task.replace("{chat}", CHAT * 2000)) == "client-task"  # a long chat is between the signals


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_user_s_question_is_none(question):
    assert no_question(question) != "client-task"


def test_a_task_is_neither_decided_nor_searched_and_passes_as_it_came(gate):
    with StubUpstream() as stub, serving(gate, upstream=stub.url, search=f"{echo.__module__}:echo") as server:
        for messages in (
            [{"role": "user", "content": TASKS["Open WebUI title"]}],
            [{"role": "system", "content": TASKS["Chatbox"]}, {"role": "user", "content": CHAT}],
        ):
            body = {"model": "m", "messages": messages}
            headers = server.post("/v1/chat/completions", body).headers
            assert (headers["x-kbtrain-reason"], headers["x-kbtrain-retrieved"]) == ("client-task", "0")
            assert "x-kbtrain-score" not in headers
            assert stub.requests[-1][2] == json.dumps(body).encode()


# A follow-up is gated and searched for by the user's last messages


FIRST = "What is our parental leave policy?"
FOLLOW_UP = "And can I carry them over?"


@pytest.fixture
def upstream():
    with StubUpstream() as running:
        yield running


def ask_chat(server, *texts, headers=None, **more):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return server.post("/v1/chat/completions", {"model": "stub", "messages": messages, **more}, headers).headers


def searching(gate, upstream, **more):
    return serving(gate, upstream=upstream.url, search="serve_support:echo", threshold=0.0, k=1, **more)


def seen(upstream):
    """The last message that the upstream answered; the search gives the text that it was asked for."""
    return upstream.body()["messages"][-1]["content"]


def test_the_last_message_alone_is_the_default(gate, upstream):
    with searching(gate, upstream) as server:
        found = ask_chat(server, FIRST, "16 weeks.", FOLLOW_UP)
        assert FIRST not in seen(upstream) and FOLLOW_UP in seen(upstream)
        assert "x-kbtrain-context" not in found and len(upstream.requests) == 1


def test_a_window_is_searched_for_and_gated_together(gate, upstream, tmp_path):
    with searching(gate, upstream, window=3, log=tmp_path / "log.jsonl", log_text=True) as server:
        found = ask_chat(server, "Hi", "Hello!", FIRST, "16 weeks.", FOLLOW_UP)
        assert f"{FIRST} {FOLLOW_UP}" in seen(upstream)
        assert found["x-kbtrain-context"] == "window" and len(upstream.requests) == 1
        alone = server.post("/v1/gate", {"questions": [f"{FIRST} {FOLLOW_UP}"]}).json["decisions"][0]
        assert float(found["x-kbtrain-score"]) == pytest.approx(alone["score"], abs=1e-4)
        assert ask_chat(server, FIRST, "16 weeks.", "Who wrote the novel Emma?")["x-kbtrain-context"] == "last"
        assert FIRST not in seen(upstream)
        assert server.metric('kbtrain_follow_ups_total{context="window"}') == 1
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(row["context"], row["question"]) for row in rows if row["route"] == "chat/completions"] == [
        ("window", f"{FIRST} {FOLLOW_UP}"),
        ("last", "Who wrote the novel Emma?"),
    ]


def test_the_call_that_is_put_in_says_what_was_searched(gate, upstream):
    with searching(gate, upstream, window=3, injection="tool") as server:
        ask_chat(server, FIRST, "16 weeks.", FOLLOW_UP)
    assert json.dumps({"query": f"{FIRST} {FOLLOW_UP}"}) in json.dumps(upstream.body()).replace('\\"', '"')


def test_the_gate_s_own_route_reads_the_window(gate):
    with serving(gate, window=3) as server:
        messages = [{"role": "user", "content": NEEDS}, {"role": "user", "content": "And when?"}]
        (decision,) = server.post("/v1/gate", {"messages": messages}).json["decisions"]
        assert decision["question"] == f"{NEEDS} And when?"
        messages = [{"role": "user", "content": text} for text in ("Translate this to German: The sea.", "And when?")]
        asked = {"input": messages, "questions": [{"type": "predicate", "instructions": INSTRUCTIONS}]}
        replies = [server.post(f"/v1/{route}", body, {"x-kbtrain-threshold": "0"}).json
                   for route, body in (("gate", {"messages": messages}), ("decisions", asked))]  # fmt: skip
        assert replies[0]["decisions"][0]["retrieve"] and replies[1]["kbtrain"]["retrieve"]  # together no task
