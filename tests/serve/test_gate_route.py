"""The gate alone by HTTP: the same decisions as in Python, clear answers to what it cannot read."""

import json
import math
import re
import threading

import pytest
from serve_support import KNOWN, NEEDS, probe_folder, serving
from stub_upstream import StubUpstream
from support import gate_folders

from kbtrain import load_gate
from kbtrain.errors import UserError
from kbtrain.prompts.kbm import INSTRUCTIONS
from kbtrain.serve.problem import GatePolicy


def test_decisions_are_those_of_the_gate_in_python(server, gate):
    questions = [NEEDS, KNOWN, "Tell me about the park"]
    expected = load_gate(gate).decide(questions)
    reply = server.post("/v1/gate", {"questions": questions})
    assert reply.status == 200
    found = reply.json["decisions"]
    assert [d["question"] for d in found] == questions
    assert [d["score"] for d in found] == pytest.approx([e.score for e in expected], abs=1e-6)
    assert [d["retrieve"] for d in found] == [e.retrieve for e in expected] == [True, False, True]
    assert [d["threshold"] for d in found] == [0.5] * 3
    assert found[0]["probability"] == found[0]["score"] == found[0]["scores"]["encoder_probe"]


def test_the_header_says_where_a_question_comes_from(tmp_path):
    gate_folders.by_source(tmp_path)
    question = [{"role": "user", "content": "Where is it?"}]
    sources = {"bot": "shop", "/v1/decisions": "shop"}
    with serving(tmp_path, threshold=0.6, utterance_rules=False, sources=sources) as shop:
        assert GatePolicy.read([(b"x-kbtrain-source", "产品".encode())]).source == "产品"
        for source, score in (("shop", 0.9), ("Shop", 0.5), ("", 0.5)):
            headers = {"x-kbtrain-source": source} if source else {}
            (decision,) = shop.post("/v1/gate", {"questions": ["Where is it?"]}, headers).json["decisions"]
            assert (decision["score"], decision["retrieve"]) == (score, score > 0.6)
            (decision,) = shop.post("/v1/gate", {"messages": question}, headers).json["decisions"]
            assert decision["score"] == score
        asked = {
            "input": question,
            "questions": [{"type": "predicate", "name": "search", "instructions": INSTRUCTIONS}],
        }
        assert shop.post("/v1/decisions", asked).json["kbtrain"]["score"] == 0.9
        assert shop.post("/v1/decisions", asked, {"x-kbtrain-source": "x"}).json["kbtrain"]["score"] == 0.5
    with (
        StubUpstream() as stub,
        serving(tmp_path, threshold=0.6, upstream=stub.url, search="none", sources=sources) as on,
    ):
        for model, score in (("bot", "0.9"), ("m", "0.5")):
            assert (
                on.post("/v1/chat/completions", {"model": model, "messages": question}).headers["x-kbtrain-score"]
                == score
            )


def test_a_chat_is_gated_by_its_last_question(server):
    messages = [{"role": "user", "content": NEEDS}, {"role": "assistant", "content": "It is lovely."}]
    reply = server.post("/v1/gate", {"messages": [*messages, {"role": "user", "content": KNOWN}]})
    assert reply.json["decisions"][0]["question"] == KNOWN


def test_a_gate_of_turns_reads_the_dialogue(gate):
    messages = [{"role": "user", "content": KNOWN}, {"role": "assistant", "content": "Done."}]
    with serving(gate, gated="turn") as server:
        reply = server.post("/v1/gate", {"messages": [*messages, {"role": "user", "content": NEEDS}]})
    assert reply.json["decisions"][0]["turn"] == 3
    assert reply.json["decisions"][0]["retrieve"]


def test_threshold_and_budget_of_a_request(server):
    at = lambda **given: server.post("/v1/gate", {"questions": [NEEDS], **given})  # noqa: E731
    assert at(threshold=1).json["decisions"][0]["retrieve"] is False
    assert at(budget=0).json["decisions"][0]["threshold"] == 1
    assert at(budget=0.001).json["decisions"][0]["threshold"] == 0.99
    assert at(budget=0.25).json["decisions"][0]["threshold"] == pytest.approx(0.75)
    assert at(budget=1).json["decisions"][0]["threshold"] == 0  # which may be sent back
    assert at(threshold=-0.1).status == 400 and "from 0 to 1" in at(threshold=-0.1).error
    assert at(budget=1.5).status == 400
    assert at(budget=0.5, threshold=0.5).status == 400
    assert at(threshold=True).status == 400
    ask = lambda *header, **body: server.post("/v1/gate", {"questions": [NEEDS], **body}, dict([header]))  # noqa: E731
    assert ask("x-kbtrain-threshold", "1").json["decisions"][0]["retrieve"] is False
    assert ask("x-kbtrain-threshold", "1", threshold=0).json["decisions"][0]["threshold"] == 0  # the body's wins
    refused = ask("x-kbtrain-retrieve", "always")  # nothing is searched here: it would do nothing
    assert refused.status == 400 and "allowed: x-kbtrain-threshold, x-kbtrain-budget, x-kbtrain-sou" in refused.error


def test_a_budget_without_calibration_is_refused(tmp_path):
    with serving(probe_folder(tmp_path / "probe")) as server:
        reply = server.post("/v1/gate", {"questions": [NEEDS], "budget": 0.3})
    assert (reply.status, reply.json["error"]["code"]) == (400, "no_calibration")


@pytest.mark.parametrize(
    ("body", "says"), [ (b"", "broken JSON"), (b"{", "broken JSON"), (b"[]", "expected a JSON object"),
    (b'"text"', "expected a JSON object"), (b"\xff\xfe", "not UTF-8"), (b'{"questions": ["\\ud800"]}', "surrogate"),
    (b'{"questions": [NaN]}', "not a number"), (b'{"questions": ["a"], "threshold": 1e999}', "not a number"),
    (b'{"questions": ["a"], "threshold": ' + b"9" * 5000 + b"}", "too long"),
    (b'{"questions": ["a"], "threshold": ' + b"9" * 400 + b"}", "expected a number"), (b"[" * 100_000, "nested"),
    (b"{}", "give either"), (b'{"questions": []}', "list of texts"), (b'{"questions": "text"}', "list of texts"),
    (b'{"questions": [1]}', "list of texts"), (b'{"questions": [" "]}', "question 0"),
    (json.dumps({"questions": ["x" * 30_000]}).encode(), "20000 characters"),
    (json.dumps({"questions": ["x"] * 10_000}).encode(), "more than 256 questions"),
    (b'{"questions": ["a"], "treshold": 1}', "field 'treshold': unknown; allowed: threshold"),
    (b'{"questions": ["a"], "threshold": "x"}', "expected a number"), (b'{"messages": "x"}', "list of messages"),
    (b'{"messages": [1]}', "message 0: expected an object"), (b'{"messages": [{}]}', "field 'role'"),
    (b'{"messages": [{"role": "robot", "content": "x"}]}', "other-role"),
    (b'{"messages": [{"role": "user", "content": 3}]}', "field 'content'"),
    (b'{"messages": [{"role": "user", "content": [3]}]}', "each part is an object"),
    (b'{"messages": [{"role": "user", "content": [{"type": "text"}]}]}', "a text part has no text"),
    (b'{"messages": [{"role": "system", "content": "x"}]}', "system-only"), ], ids=lambda value: repr(value)[:40],
)  # fmt: skip
def test_bad_input_is_a_400_that_says_what(server, body, says):
    reply = server.post("/v1/gate", body)
    assert reply.status == 400
    assert says in reply.error
    assert reply.json["error"]["type"] == "invalid_request_error"


def test_other_methods_and_paths_are_404_and_405(server):
    assert server.get("/v1/gate").status == 405
    assert server.post("/v1/unknown", {}).status == 404


def test_health_readiness_models_and_metrics(server, gate):
    name = server.post("/v1/gate", {"questions": [NEEDS]}).json["gate"]
    assert name.startswith("encoder_probe@") and len(name) == len("encoder_probe@") + 12
    assert server.get("/health").json == {"status": "ok"}
    assert server.get("/ready").json["gate"] == name
    assert name in [model["id"] for model in server.get("/v1/models").json["data"]]
    assert server.metric('kbtrain_requests_total{route="/v1/gate",status="200"}') >= 1


def test_no_answer_says_which_server_it_is(server):
    for path in ("/health", "/nowhere", "/metrics"):
        assert "server" not in server.get(path).headers


def test_questions_of_many_clients_are_scored_in_batches_without_mixing(gate):
    expected = {text: load_gate(gate).score([text])[0] for text in (NEEDS, KNOWN)}
    with serving(gate) as server:
        wrong, before = [], server.service.decider.worker.batches

        def client(text):
            for _ in range(5):
                found = server.post("/v1/gate", {"questions": [text]}).json["decisions"][0]
                if found["question"] != text or abs(found["score"] - expected[text]) > 1e-5:
                    wrong.append(found)

        threads = [threading.Thread(target=client, args=(text,)) for text in (NEEDS, KNOWN) * 8]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert server.service.decider.worker.batches - before < 80


def test_a_gate_without_a_threshold_is_refused_at_the_start(tmp_path):
    folder = probe_folder(tmp_path / "probe", threshold=None)
    with pytest.raises(UserError, match="no threshold"), serving(folder):
        pass
    with pytest.raises(UserError, match="from 0 to 1"), serving(folder, threshold=7.0):
        pass
    with serving(folder, threshold=0.0) as server:
        assert server.post("/v1/gate", {"questions": [KNOWN]}).json["decisions"][0]["retrieve"]
    for policy, retrieve in (("always", True), ("never", False), ("pass", None)):
        with serving(folder, policy=policy) as server:
            assert server.post("/v1/gate", {"questions": [KNOWN]}).json["decisions"][0]["retrieve"] is retrieve


@pytest.mark.parametrize("method", ["ridge", "logistic"])
def test_scores_of_every_unit_are_told_apart_by_the_metric(tmp_path, method):
    gate_folders.probe(tmp_path)
    card = tmp_path / "gate.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"method": method}))
    with serving(tmp_path, key="mastery", threshold=0.5) as server:
        made = server.post("/v1/gate", {"questions": [KNOWN]}).json["decisions"]
        text = server.get("/metrics").body.decode()
    shown = re.findall(r'^kbtrain_score_bucket\{le="(.+)"\} (.+)$', text, flags=re.M)
    score, edges = made[0]["score"], [float(edge) for edge, _ in shown]
    assert [float(count) for _, count in shown] == [float(score <= edge) for edge in edges]
    inside = [0.05 * i for i in range(1, 20)]
    if method == "logistic":
        assert edges == pytest.approx([*inside, math.inf])
    else:
        assert not 0 <= score <= 1  # such scores have edges on both sides, as those within have
        assert min(edges) < score < max(edge for edge in edges if edge < math.inf)
        assert [edge for edge in edges if 0 < edge < 1] == pytest.approx(inside)


# The wire forms of decision models: the gate's one question is answered, any other is refused


PREDICATE = {"type": "predicate", "name": "search", "instructions": INSTRUCTIONS}
NOUL = {"type": "noul", "instructions": INSTRUCTIONS}


def score(server, text):
    return server.post("/v1/gate", {"questions": [text]}).json["decisions"][0]["score"]


@pytest.mark.parametrize(
    "given",
    [
        NEEDS,
        [{"role": "user", "content": NEEDS}],
        [{"content": NEEDS}],
        [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": NEEDS}]}],
    ],
    ids=["text", "messages", "no role", "parts"],
)
def test_openai_s_form(server, given):
    asked = [PREDICATE, {**PREDICATE, "name": None, "instructions": "does answering this need  retrieval"}]
    reply = server.post("/v1/decisions", {"model": "kbtrain", "input": given, "questions": asked})
    assert reply.status == 200
    p = pytest.approx(score(server, NEEDS), abs=1e-6)
    assert reply.json["answers"] == [
        {"name": "search", "type": "predicate", "probability": p},
        {"name": None, "type": "predicate", "probability": p},
    ]
    assert reply.json["model"] == server.service.decider.loaded.name
    assert reply.json["kbtrain"]["retrieve"] is True


def test_typesafe_s_form(server):
    for state in (KNOWN, [{"role": "user", "content": KNOWN}], {"messages": [{"role": "user", "content": KNOWN}]}):
        reply = server.post("/v1/systemone", {"model": "encoder_probe", "state": state, "questions": {"q": NOUL}})
        assert reply.json["answers"] == {"q": {"type": "noul", "noul": pytest.approx(score(server, KNOWN), abs=1e-6)}}
        assert reply.json["request_id"] and reply.json["kbtrain"]["retrieve"] is False


@pytest.mark.parametrize(
    ("change", "says"), [ *(
    ({"questions": wrong}, "expected a list of 1 to 128 questions of type 'predicate' with the instructions")
    for wrong in ( [{**PREDICATE, "instructions": "Is this polite?"}], [{**PREDICATE, "criteria": {"true": "always"}}],
    [{**PREDICATE, "criteria": False}], [{**PREDICATE, "type": "choice"}], [{**PREDICATE, "name": 3}],
    [PREDICATE] * 129, [], {"q": PREDICATE}, ["search?"], ) ), ({"input": None}, "expected text or messages"),
    ({"input": " "}, "nothing here that the gate reads"), ({"input": {"a": 1}}, "expected text or messages"),
    ({"input": [{"content": [{"type": "input_image", "image_url": "x"}]}]}, "image-or-file"), ], ids=str,
)  # fmt: skip
def test_anything_else_is_a_400(server, change, says):
    reply = server.post("/v1/decisions", {"model": "kbtrain", "input": NEEDS, "questions": [PREDICATE], **change})
    assert reply.status == 400 and says in reply.error


def test_an_unknown_decision_model_is_a_404(server):
    for wrong in ("gpt-9", 3, []):
        assert server.post("/v1/decisions", {"model": wrong, "input": NEEDS, "questions": [PREDICATE]}).status == 404
        assert server.post("/v1/systemone", {"model": wrong, "state": NEEDS, "questions": {"q": NOUL}}).status == 404


def test_a_score_that_is_no_probability_is_not_passed_off_as_one(gate):
    with serving(gate) as server:
        server.service.decider.loaded.gate.unit = None
        reply = server.post("/v1/decisions", {"input": NEEDS, "questions": [PREDICATE]})
        assert (reply.status, reply.json["error"]["code"]) == (400, "no_probability")
        assert server.post("/v1/gate", {"questions": [NEEDS]}).json["decisions"][0]["probability"] is None


def test_langchain_s_decision_models_work_unchanged(server):
    pytest.importorskip("langchain_core")
    openai = pytest.importorskip("langchain_openai.decisions")
    typesafe = pytest.importorskip("langchain_typesafe")
    expected = pytest.approx(score(server, NEEDS), abs=1e-6)
    model = openai.OpenAIDecisions(model="kbtrain", base_url=f"{server.url}/v1", api_key="unused")
    asked = {"search": openai.Predicate(instructions=INSTRUCTIONS)}
    assert model.invoke({"input": NEEDS, "questions": asked}).predicates["search"].probability == expected
    classifier = typesafe.TypeSafeClassifier(model="kbtrain", base_url=server.url, api_key="unused")
    found = classifier.invoke({"state": NEEDS, "questions": {"search": typesafe.Noul(instructions=INSTRUCTIONS)}})
    assert found.nouls["search"].noul == expected


def test_litellm_s_decisions_work_unchanged(server):
    litellm = pytest.importorskip("litellm")
    expected = pytest.approx(score(server, NEEDS), abs=1e-6)
    questions = {"search": {"type": "noul", "instructions": INSTRUCTIONS}}
    for provider, base in (("typesafe", server.url), ("openai", f"{server.url}/v1")):
        found = litellm.decisions(
            model=f"{provider}/kbtrain", state=NEEDS, questions=questions, api_base=base, api_key="unused"
        )
        assert found.answers["search"].noul == expected
