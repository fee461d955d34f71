"""The wire forms of decision models: the gate's one question is answered, any other is refused."""

import pytest
from serve_support import KNOWN, NEEDS, serving

from kbtrain.serve.app import INSTRUCTIONS

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
    ("change", "says"),
    [
        ({"questions": [{**PREDICATE, "instructions": "Is this polite?"}]}, INSTRUCTIONS),
        ({"questions": [{**PREDICATE, "criteria": {"true": "always"}}]}, "no criteria"),
        ({"questions": [{**PREDICATE, "criteria": False}]}, "no criteria"),
        ({"questions": [{**PREDICATE, "type": "choice"}]}, "type 'predicate' alone"),
        ({"questions": [{**PREDICATE, "name": 3}]}, "expected text"),
        ({"questions": [PREDICATE] * 129}, "1 to 128"),
        ({"questions": []}, "1 to 128"),
        ({"questions": {"q": PREDICATE}}, "a list"),
        ({"questions": ["search?"]}, "expected an object"),
        ({"input": None}, "expected text or messages"),
        ({"input": " "}, "nothing here that the gate reads"),
        ({"input": {"a": 1}}, "expected text or messages"),
        ({"input": [{"content": [{"type": "input_image", "image_url": "x"}]}]}, "image-or-file"),
    ],
    ids=str,
)
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
