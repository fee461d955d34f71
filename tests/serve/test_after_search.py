"""A gate that reads what a search found: it decides about the passages, and says that it saves no search."""

import json

import pytest
from serve_support import serving
from stub_upstream import StubUpstream

from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.gates.features.frequencies import Frequencies
from kbtrain.gates.features.gate import Features
from kbtrain.records import GateExample, Hit
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decide import Decider
from kbtrain.serve.mcp_server import GatedSearch
from kbtrain.training.data import Labelled

GOOD, POOR = "Where does the ferry land?", "Who baked the bread?"
DEAD = {"now": False}


def find(query, k):
    """Passages of a high score for ferries, of a low one for the rest; none about nothing."""
    if DEAD["now"]:
        raise OSError("gone")
    score = 9.0 if "ferry" in query else 1.0
    return [] if "nothing" in query else [{"id": "p", "title": "T", "text": "The pier.", "score": score}][:k]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("after") / "features"
    rows = []
    for i in range(40):
        hit = Hit(f"p{i}", "T", "The pier.", 9.0 if i % 2 else 1.0)
        rows.append(Labelled(GateExample.ask(f"What about number {i // 2}?", hits=[hit]), float(i % 2)))
    gate = Features.fit(Frequencies.none(), {"benefit": rows}, after_search=True)
    made.mkdir()
    gate.save_beside(made)
    gate.card.write(made)
    set_threshold(made, gate.name, Threshold(threshold=0.5, rule="given", dev_file_sha256="", n_dev=0))
    return made


@pytest.fixture
def stub():
    DEAD["now"] = False
    with StubUpstream() as running:
        yield running


def chat(text):
    return {"model": "stub", "messages": [{"role": "user", "content": text}]}


def test_passages_go_into_the_prompt_where_the_gate_takes_them(folder, stub, tmp_path):
    log = tmp_path / "log.jsonl"
    with serving(folder, upstream=stub.url, search=f"{__name__}:find", k=1, log=log) as server:
        for question, sent in ((GOOD, True), (POOR, False)):
            reply = server.post("/v1/chat/completions", chat(question))
            found = {key.removeprefix("x-kbtrain-"): value for key, value in reply.headers.items()}
            assert ("The pier." in stub.body()["messages"][-1]["content"]) is sent
            assert (found["retrieved"], found["passages"], found["saves"]) == (str(int(sent)),) * 2 + ("passages",)
            assert found["reason"] == ("above-threshold" if sent else "below-threshold") and "search-ms" in found
            stub.requests.clear()
        assert server.metric('kbtrain_searches_total{result="found"}') == 2  # both were searched for
        empty = server.post("/v1/chat/completions", chat("What about nothing?"))
        assert empty.headers["x-kbtrain-reason"] == "no-passages" and "x-kbtrain-score" not in empty.headers
        both = server.post("/v1/gate", {"questions": [GOOD, POOR]}).json["decisions"]
        assert [one["retrieve"] for one in both] == [True, False]
        DEAD["now"] = True
        assert server.post("/v1/chat/completions", chat(GOOD)).headers["x-kbtrain-reason"] == "search-failed"
        assert server.post("/v1/gate", {"questions": [GOOD]}).json["error"]["code"] == "search_failed"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert {row["saves"] for row in rows} == {"passages"} and [row["passages"] for row in rows[:2]] == [1, 0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [({"search": "none"}, "give it a search"), ({"shadow": True}, "shadow mode never searches")],
)
def test_without_a_search_it_does_not_start(folder, stub, settings, says):
    given = {"gate": folder, "upstream": stub.url, "search": f"{__name__}:find", **settings}
    with pytest.raises(UserError, match=f"gate 'features_benefit': reads what a search found; {says}"):
        Decider(ServeConfig(**given))


def test_an_agent_cannot_ask_it_before_the_search(folder):
    with pytest.raises(UserError, match="an agent asks before the search"):
        GatedSearch(ServeConfig(gate=folder, search=f"{__name__}:find"))
