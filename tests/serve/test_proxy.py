"""The adaptive proxy: the branch that is taken, its headers, and bytes that are nobody's but the client's."""

import json

import pytest
from serve_support import KNOWN, NEEDS, chat, probe_folder, serving

from kbtrain.prompts.kbm import background
from kbtrain.report.traffic import calibrate_traffic
from kbtrain.serve.problem import Busy
from kbtrain.serve.server import startup_lines

CORPUS = [
    {"id": "m1", "title": "Museum", "text": "The museum opens at nine."},
    {"id": "p1", "title": "Park", "text": "The park is open all day."},
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    return str(path)


@pytest.fixture(autouse=True)
def fresh(stub):
    stub.requests.clear()
    stub.status, stub.fail, stub.die_after, stub.hold, stub.sent = 200, 0, None, "nothing", b""
    stub.extra_headers = ()


@pytest.fixture(scope="module")
def proxy(gate, stub, corpus):
    with serving(gate, upstream=stub.url, search=corpus, k=1) as running:
        yield running


def ask(server, body, path="/v1/chat/completions", **policy):
    return server.post(path, body, {f"x-kbtrain-{key}": value for key, value in policy.items()})


def kb(reply):
    return {key.removeprefix("x-kbtrain-"): v for key, v in reply.headers.items() if key.startswith("x-kbtrain-")}


def test_a_question_below_the_threshold_reaches_the_upstream_as_the_client_s_own_bytes(proxy, stub):
    data = b'{ "model":"stub",\n"new_field": {"deep": [1.50, null]}, "messages":[{"role":"user","content":"%s"}] }'
    data = data % KNOWN.encode()
    reply = proxy.ask("POST", "/v1/chat/completions", data, {"x-request-id": "7"})
    assert reply.status == 200 and reply.json["choices"][0]["message"]["content"] == "stubbed"
    path, headers, body = stub.requests[0]
    assert (path, body) == ("/v1/chat/completions", data)
    assert headers["x-request-id"] == "7" and headers["host"].startswith("127.0.0.1")
    found = kb(reply)
    assert (found["retrieved"], found["reason"], found["passages"]) == ("0", "below-threshold", "0")
    assert float(found["score"]) < float(found["threshold"]) == 0.5
    assert found["gate"] == proxy.service.decider.loaded.name and found["schema"] == "1"
    assert float(found["gate-ms"]) > 0 and "search-ms" not in found


def test_a_question_above_the_threshold_gets_passages_by_the_project_s_prompt(proxy, stub):
    reply = ask(proxy, chat(NEEDS, temperature=0.25, unknown={"a": 1}), debug="true")
    body = stub.body()
    assert body["messages"] == [{"role": "user", "content": background(CORPUS[0]["text"], "en") + NEEDS}]
    assert (body["temperature"], body["unknown"]) == (0.25, {"a": 1})
    found = kb(reply)
    assert (found["retrieved"], found["reason"], found["passages"]) == ("1", "above-threshold", "1")
    assert found["passage-ids"] == "m1" and float(found["search-ms"]) > 0 and float(found["probability"]) > 0.5
    assert not any(key.startswith("x-kbtrain-") for key in stub.requests[0][1])


def test_a_stream_is_passed_on_byte_for_byte_with_the_headers_before_it(proxy, stub):
    reply = ask(proxy, chat(NEEDS, stream=True))
    assert reply.body == stub.sent and len(stub.sent) > 100
    assert kb(reply)["retrieved"] == "1"  # not the upstream's 7
    assert reply.headers["content-type"] == "text/event-stream"
    assert "server" not in reply.headers


@pytest.mark.parametrize(
    ("policy", "text", "retrieved", "reason"),
    [
        ({"retrieve": "always"}, KNOWN + " for the museum", "1", "forced"),
        ({"retrieve": "never"}, NEEDS, "0", "forced"), ({"retrieve": "auto"}, NEEDS, "1", "above-threshold"),
        ({"threshold": "1"}, NEEDS, "0", "never"),
        ({"threshold": "0"}, KNOWN + " for the museum", "1", "above-threshold"), ({"budget": "0"}, NEEDS, "0", "never"),
        ({"budget": "1"}, KNOWN + " for the museum", "1", "always"),
    ],
    ids=str,
)  # fmt: skip
def test_policy_of_a_request(proxy, policy, text, retrieved, reason):
    found = kb(ask(proxy, chat(text), **policy))
    assert (found["retrieved"], found["reason"]) == (retrieved, reason)


@pytest.mark.parametrize(
    ("policy", "says"), [ ({"retrieve": "maybe"}, "expected auto, always or never"),
    ({"threshold": "high"}, "expected a number"), ({"threshold": "-0.5"}, "from 0 to 1"),
    ({"threshold": "nan"}, "expected a number"), ({"budget": "2"}, "from 0 to 1"),
    ({"debug": "maybe"}, "expected true or false"), ({"budget": "-1"}, "from 0 to 1"),
    ({"threshold": "0.5", "budget": "0.5"}, "give one of threshold, budget"), ({"": ""}, "x-kbtrain-: unknown"),
    ({"treshold": "0.5"}, "treshold: unknown; allowed: x-kbtrain-threshold"), ], ids=str,
)  # fmt: skip
def test_an_unknown_policy_is_refused_with_what_is_allowed(proxy, stub, policy, says):
    reply = ask(proxy, chat(NEEDS), **policy)
    assert reply.status == 400 and says in reply.error
    assert stub.requests == []


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "system", "content": "Be brief"}], "system-only"),
        ([{"role": "user", "content": NEEDS}, {"role": "tool", "tool_call_id": "1", "content": "9"}], "tool-message"),
        ([{"role": "user", "content": [{"type": "text", "text": NEEDS}, IMAGE]}], "image-or-file"),
        ([{"role": "user", "content": NEEDS}, {"role": "assistant", "tool_calls": [{}]}], "no-user-message"),
        ([{"role": "user", "content": " "}], "empty-question"),
        ([{"role": "user", "content": None}], "empty-question"),
        ([{"role": "user", "content": "museum " * 5000}], "long-question"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_question_passes_ungated_with_the_reason(proxy, stub, messages, reason):
    data = json.dumps({"model": "stub", "messages": messages}).encode()
    reply = proxy.ask("POST", "/v1/chat/completions", data)
    found = kb(reply)
    assert (reply.status, found["reason"], found["retrieved"]) == (200, reason, "0")
    assert "score" not in found
    assert stub.requests[0][2] == data


def test_the_list_of_models_is_the_upstream_s_and_the_gate(proxy):
    assert [m["id"] for m in proxy.get("/v1/models").json["data"]] == ["stub", proxy.service.decider.loaded.name]
    assert proxy.get("/ready").status == 200


def test_the_upstream_s_own_errors_are_passed_on(proxy, stub):
    stub.status = 429
    reply = ask(proxy, chat(NEEDS))
    assert (reply.status, reply.error, kb(reply)["retrieved"]) == (429, "as told", "1")
    stub.status = 503
    assert ask(proxy, chat(NEEDS)).status == 503
    assert proxy.metric('kbtrain_upstream_failures_total{kind="server-error"}') == 1


def test_an_unreachable_upstream_is_a_502_after_its_tries(proxy, stub):
    stub.fail = 2
    assert ask(proxy, chat(KNOWN)).status == 200  # the third try
    assert len(stub.requests) == 3
    stub.fail = 99
    reply = ask(proxy, chat(NEEDS))
    assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_unreachable")
    assert kb(reply)["reason"] == "above-threshold"
    assert proxy.metric('kbtrain_upstream_failures_total{kind="connection"}') >= 5


def test_the_log_holds_the_status_that_a_refused_client_got(gate, stub, tmp_path):
    log = tmp_path / "log.jsonl"
    with serving(gate, upstream=stub.url, log=log) as server:
        stub.fail = 3
        assert ask(server, chat(KNOWN)).status == 502
        ask(server, chat(KNOWN))
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(r["outcome"], r["status"]) for r in rows] == [("upstream_unreachable", 502), ("answered", 200)]


def test_an_answer_that_breaks_off_is_no_whole_answer_and_one_warning(proxy, stub, caplog):
    import http.client

    stub.die_after = 1
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        ask(proxy, chat(KNOWN, stream=True))
    assert len(stub.requests) == 1  # nothing is tried again after the first byte
    assert proxy.get("/health").status == 200  # what the server says of the answer before is said
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.levelname != "INFO"]
    assert said == [("WARNING", "/v1/chat/completions: cut off (ClientPayloadError)")]


@pytest.mark.parametrize("injection", ["system", "tool"])
@pytest.mark.parametrize("system", [None, "Be brief", [{"type": "text", "text": "Be brief"}]], ids=str)
def test_passages_as_a_system_or_tool_message(gate, stub, corpus, injection, system):
    first = [] if system is None else [{"role": "system", "content": system}]
    with serving(gate, upstream=stub.url, search=corpus, k=1, injection=injection) as server:
        ask(server, {"model": "stub", "messages": [*first, {"role": "user", "content": NEEDS}]})
    messages = stub.body()["messages"]
    text = CORPUS[0]["text"]
    if injection == "tool":
        assert messages[:-2] == [*first, {"role": "user", "content": NEEDS}]
        assert json.loads(messages[-2]["tool_calls"][0]["function"]["arguments"]) == {"query": NEEDS}
        assert messages[-1] == {"role": "tool", "tool_call_id": messages[-2]["tool_calls"][0]["id"], "content": text}
    else:
        assert [m["role"] for m in messages] == ["system", "user"] and messages[1]["content"] == NEEDS
        assert text in json.dumps(messages[0]) and (system is None or "Be brief" in json.dumps(messages[0]))


def test_the_trained_prompts_are_those_of_the_figures_in_both_branches(gate, stub, corpus):
    from kbtrain.prompts.kbm import answer_prompt
    from kbtrain.records import Question

    asked = lambda text: Question("q", text, (), "test", "x")  # noqa: E731
    with serving(gate, upstream=stub.url, search=corpus, k=1, prompt="trained") as server:
        ask(server, chat(NEEDS))
        assert stub.body()["messages"][0]["content"] == answer_prompt(asked(NEEDS), "rag", CORPUS[0]["text"])
        ask(server, chat(KNOWN))
        assert stub.body()["messages"][0]["content"] == answer_prompt(asked(KNOWN), "llm")


POLICIES = {  # whether a question is searched that needs it, one that does not, and a greeting
    "gate": (True, False, False), "always": (True, True, True), "never": (False,) * 3, "pass": (False,) * 3,
}  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_each_policy_does_what_it_says_and_logs_what_the_gate_would_do(gate, stub, tmp_path, policy):
    log, texts = tmp_path / "log.jsonl", (NEEDS, KNOWN, "Hello!")
    settings = {"upstream": stub.url, "search": "serve_support:echo", "prompt": "trained"}
    with serving(gate, policy=policy, log=log, **settings) as server:
        bodies = [json.dumps(chat(text)).encode() for text in texts]
        found = [kb(server.ask("POST", "/v1/chat/completions", body)) for body in bodies]
        wishes = [kb(ask(server, chat(text), retrieve=wish)) for text, wish in ((KNOWN, "always"), (NEEDS, "never"))]
        decided = server.post("/v1/gate", {"questions": list(texts)}).json["decisions"]
    done = POLICIES[policy]
    assert tuple(headers["retrieved"] == "1" for headers in found) == done
    gate_s = [("above-threshold", True), ("below-threshold", False), ("greeting", False)]
    reasons = [reason if would == did else "policy" for (reason, would), did in zip(gate_s, done, strict=True)]
    assert [headers["reason"] for headers in found] == reasons
    assert [wish["retrieved"] for wish in wishes] == ["0" if policy == "pass" else "1", "0"]
    unchanged = [request[2] == body for request, body in zip(stub.requests, bodies, strict=False)]
    plain = policy == "pass"  # and a greeting is no question for the trained prompt
    assert unchanged == [plain, plain, plain or not done[2]]
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert {row["policy"] for row in rows} == {policy}
    assert [row["would_search"] for row in rows[:3]] == [True, False, False]  # and what was done:
    assert tuple(row["searched"] for row in rows[:3]) == done
    assert [row["retrieve"] for row in rows[:3]] == [True, False, None]
    assert [row["rule"] for row in rows[:3]] == [None, None, "greeting"] == [row["rule"] for row in rows[5:]]
    handed = POLICIES["gate" if policy == "pass" else policy]  # clients of /v1/gate do what they are told
    assert tuple(decision["retrieve"] for decision in decided) == handed


@pytest.mark.parametrize("policy", ["always", "never"])
def test_a_request_that_asks_the_gate_wins_over_the_policy(gate, stub, policy):
    with serving(gate, upstream=stub.url, search="serve_support:echo", policy=policy) as server:
        for aim in ({"retrieve": "auto"}, {"threshold": "0.5"}):
            for text, retrieved in ((NEEDS, "1"), (KNOWN, "0")):
                found = kb(ask(server, chat(text), **aim))
                assert (found["retrieved"], found["reason"].endswith("-threshold")) == (retrieved, True)
        assert kb(ask(server, chat(NEEDS), budget="0"))["retrieved"] == "0"
        always = kb(ask(server, chat(KNOWN), budget="1"))
        assert (always["retrieved"], always["reason"], always["threshold"]) == ("1", "always", "0")
        assert kb(ask(server, chat(KNOWN), threshold=always["threshold"]))["retrieved"] == "1"
        server.service.decider.decide = failing(ArithmeticError("no number"))
        assert kb(ask(server, chat(KNOWN), retrieve="auto"))["retrieved"] == str(int(policy == "always"))


def test_always_does_not_depend_on_the_gate(gate, stub):
    """It is the way back: a gate that fails, or has no room, ends no request and takes no search away."""
    settings = {"upstream": stub.url, "search": "serve_support:echo", "on_gate_failure": "error"}
    with serving(gate, policy="always", **settings) as server:
        for error in (ArithmeticError("no number"), Busy("the queue is full")):
            server.service.decider.decide = failing(error)
            found = kb(ask(server, chat(KNOWN)))
            assert (found["reason"], found["retrieved"]) == ("gate-failed", "1")


def failing(error):
    async def decide(*_):
        raise error

    return decide


def test_a_trial_needs_no_threshold(stub, corpus, tmp_path):
    folder, log = probe_folder(tmp_path / "probe", threshold=None), tmp_path / "log.jsonl"
    with serving(folder, upstream=stub.url, search=corpus, policy="pass", log=log) as server:
        found = kb(ask(server, chat(NEEDS)))
        assert (found["reason"], found["retrieved"]) == ("no-threshold", "0") and float(found["score"]) > 0.5
        assert "threshold" not in found
        assert kb(ask(server, chat(NEEDS), threshold="0.5"))["reason"] == "policy"
        (decision,) = server.post("/v1/gate", {"questions": [NEEDS]}).json["decisions"]
        assert decision["score"] > 0.5 and decision["threshold"] is None and decision["retrieve"] is None
        assert "no threshold: policy pass records scores" in startup_lines(server.service)[1]
        assert startup_lines(server.service)[-1] == (
            "policy pass: the server does not search; the log says what the gate would do (would_search)"
        )
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(row["threshold"], row["retrieve"]) for row in rows] == [(None, None), (0.5, True), (None, None)]
    many = [json.dumps(rows[0] | {"score": i / 100}) + "\n" for i in range(100)]
    log.write_text("".join(many))
    assert "search if score > 0.4" in calibrate_traffic(folder, log, 0.5)[-2]
    with serving(folder, upstream=stub.url, search=corpus) as server:  # the log chose the threshold
        assert kb(ask(server, chat(NEEDS)))["reason"] == "above-threshold"


def test_an_upstream_elsewhere_is_asked_through_the_environment_s_proxy(gate, stub, monkeypatch):
    monkeypatch.setenv("http_proxy", stub.url.removesuffix("/v1").replace("http://", "http://me:word@"))
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(gate, upstream="http://model.example/v1") as server:
        assert server.post("/v1/chat/completions", chat(KNOWN)).status == 200
    path, headers, _ = stub.requests[-1]
    assert path == "http://model.example/v1/chat/completions" and headers["host"] == "model.example"
    assert headers["proxy-authorization"] == "Basic bWU6d29yZA=="


def test_keys_of_the_upstream_and_of_the_client_are_kept_apart(gate, stub, monkeypatch, tmp_path):
    theirs = {"authorization": "Bearer the-client-s-own-key"}
    with serving(gate, upstream=stub.url) as server:
        server.post("/v1/chat/completions", chat(KNOWN), theirs)
    assert stub.requests[-1][1]["authorization"] == theirs["authorization"]
    monkeypatch.setenv("OPENAI_API_KEY", "upstream-secret")
    keys = tmp_path / "keys"
    keys.write_text("# people\nkey-of-this-server\n")
    with serving(gate, upstream=stub.url, keys=keys) as server:
        reply = server.post("/v1/chat/completions", chat(KNOWN), {"authorization": "Bearer key-of-this-server"})
    assert reply.status == 200
    assert stub.requests[-1][1]["authorization"] == "Bearer upstream-secret"
