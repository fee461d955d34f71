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


def first_gate(folder):
    """A gate of questions that asks for a search for "Where ...?" and not for "Who ...?"."""
    rows = [Labelled(GateExample.ask(f"{('Who', 'Where')[i % 2]} is number {i}?"), float(i % 2)) for i in range(40)]
    gate = Features.fit(Frequencies.none(), {"benefit": rows})
    folder.mkdir()
    gate.save_beside(folder)
    gate.card.write(folder)
    set_threshold(folder, gate.name, Threshold(threshold=0.5, rule="given", dev_file_sha256="", n_dev=0))
    return folder


def find_two(query, k):
    """A best passage that stands out for ferries, two alike for the rest."""
    scores = (9.0, 1.0) if "ferry" in query else (9.0, 8.0)
    return [{"id": f"p{score}", "title": "T", "text": f"The pier. {score}", "score": score} for score in scores]


@pytest.mark.parametrize(
    ("second", "threshold", "search"),
    [("folder", None, "find"), ("retriever_score", 4.0, "find"), ("retriever_gap", 0.5, "find_two")],
)
def test_a_second_judgement_drops_passages_and_saves_no_search(second, threshold, search, folder, stub, tmp_path):
    log, gate = tmp_path / "log.jsonl", first_gate(tmp_path / "first")
    settings = {"second": str(folder) if second == "folder" else second, "second_threshold": threshold}
    with serving(gate, upstream=stub.url, search=f"{__name__}:{search}", k=2, log=log, **settings) as server:
        for question, retrieved, reason, saves in (
            ("Where does the ferry land?", "1", "above-threshold", "passages"),
            ("Where is the bread?", "0", "passages-dropped", "passages"),
            ("Who baked the bread?", "0", "below-threshold", "searches"),
        ):
            reply = server.post("/v1/chat/completions", chat(question))
            shown = {key.removeprefix("x-kbtrain-"): value for key, value in reply.headers.items()}
            assert (shown["retrieved"], shown["reason"], shown["saves"]) == (retrieved, reason, saves)
            assert ("second-score" in shown) is (saves == "passages")
            assert ("The pier." in stub.body()["messages"][-1]["content"]) is (retrieved == "1")
        assert server.metric('kbtrain_searches_total{result="found"}') == 2
        forced = server.post("/v1/chat/completions", chat("Where is the bread?"), {"x-kbtrain-retrieve": "always"})
        assert forced.headers["x-kbtrain-retrieved"] == "1"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(row["searched"], row["passages"] > 0, row["second"] is not None) for row in rows[:3]] == [
        (True, True, True), (True, False, True), (False, False, False)
    ]  # fmt: skip


def test_a_kbm_s_second_judgement_reads_the_passages_as_its_reference(tmp_path, monkeypatch):
    """It drops them where it still cannot answer: its score with them is above the threshold, 0.5 by default."""
    import asyncio

    from tiny_kbm import make_model, make_tokenizer

    from kbtrain.gates.kbm.gate import KBM
    from kbtrain.serve import decide

    kbm, seen = KBM(make_model(), make_tokenizer(), ("mastery",), 256), []
    monkeypatch.setattr(kbm, "score", lambda examples: seen.extend(examples) or [0.4 if len(seen) % 2 else 0.6])
    monkeypatch.setattr(decide, "folder_of", lambda name: name)
    first = decide.LoadedGate(kbm, "0" * 12)
    monkeypatch.setattr(decide.LoadedGate, "open", lambda *a: first)
    judge = decide.PassageJudge(ServeConfig(gate=tmp_path, second="kbm"), first)
    try:
        hits = [Hit("p", "Pier", "The ferry lands there.", 1.0)]
        assert asyncio.run(judge.judge(GOOD, hits)) == (0.4, True)
        assert asyncio.run(judge.judge(GOOD, hits)) == (0.6, False)
    finally:
        judge.close()
    assert [example.reference for example in seen] == ["Pier: The ferry lands there."] * 2


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ("retriever_score", "retriever_score has no threshold; give one: --second-threshold"),
        ("first", "gate 'features_benefit' does not read what a search found"),
    ],
)
def test_a_second_judgement_that_cannot_be_is_one_line(second, says, tmp_path):
    from kbtrain.serve.decide import PassageJudge

    gate = first_gate(tmp_path / "first")
    config = ServeConfig(gate=gate, second=str(gate) if second == "first" else second)
    decider = Decider(config)
    try:
        with pytest.raises(UserError, match=says):
            PassageJudge(config, decider.loaded)
    finally:
        decider.close()
