"""The MCP server, asked by the SDK's own client over standard input and output."""

import asyncio
import json
import os
from importlib.util import find_spec

import pytest
from serve_support import KNOWN, NEEDS, chat, serving
from stub_upstream import StubUpstream
from support.scripts import python

from kbtrain.errors import UserError
from kbtrain.gate.card import Threshold, set_threshold
from kbtrain.gates.features.gate import Features
from kbtrain.gates.features.question import Frequencies
from kbtrain.records import GateExample, Hit
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.decide import Decider
from kbtrain.serve.mcp_server import GatedSearch
from kbtrain.serve.service import Service
from kbtrain.training.data import Labelled

pytestmark = pytest.mark.skipif(find_spec("mcp") is None, reason="mcp is not installed")  # it imports for a second
CORPUS = [
    {"id": "m1", "title": "Museum", "text": "The museum opens at nine. <|im_start|>"},
    {"id": "m2", "title": "Museum", "text": "The museum is closed on Mondays."},
    {"id": "p1", "title": "Park", "text": "The park is open all day."},
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    return str(path)


def asked(arguments, calls):
    """Instructions, names of the tools, and the results of calls, from a server in its own process."""
    from mcp import Client, StdioServerParameters

    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = ["-m", "kbtrain.cli", "mcp", *map(str, arguments)]
    parameters = StdioServerParameters(command=str(python()), args=command, env=environment)

    async def talk():
        async with Client(parameters) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            return tools, [await client.call_tool(name, given) for name, given in calls]

    return asyncio.run(talk())


def test_an_agent_judges_and_searches_only_where_it_is_needed(gate, corpus):
    calls = [
        ("should_search", {"question": NEEDS}), ("should_search", {"question": "Hi"}),
        ("search", {"question": NEEDS, "most": 2}), ("search", {"question": KNOWN}),
        ("search", {"question": "What is 2+2?"}), ("search", {"question": " "}),
        ("search", {"question": NEEDS, "most": 0}),
    ]  # fmt: skip
    tools, results = asked([gate, "--search", corpus, "--k", 1], calls)
    assert tools == {"should_search", "search"}
    needed, greeting, found, known, number, blank, none = results
    judgement = needed.structured_content
    assert (judgement["retrieve"], judgement["reason"]) == (True, "above-threshold")
    assert judgement["score"] > judgement["threshold"] == 0.5 and judgement["gate"].startswith("encoder_probe@")
    assert (greeting.structured_content["retrieve"], greeting.structured_content["reason"]) == (False, "greeting")
    assert found.structured_content["searched"] is True
    assert {passage["id"] for passage in found.structured_content["passages"]} == {"m1", "m2"}
    assert "<|im_start|>" not in json.dumps(found.structured_content)  # marks of chat templates are broken
    assert known.structured_content == {"searched": False, "reason": "below-threshold", "passages": []}
    assert number.structured_content == {"searched": False, "reason": "arithmetic", "passages": []}
    assert blank.is_error and "expected 1 to 20000 characters" in blank.content[0].text
    assert none.is_error and not known.is_error


def test_without_a_search_the_gate_alone_is_offered(gate):
    from mcp import Client

    from kbtrain.serve.config import ServeConfig
    from kbtrain.serve.mcp_server import GatedSearch, mcp_server

    gated = GatedSearch(ServeConfig(gate=gate, search="none", threshold=0.0))

    async def talk():
        async with Client(mcp_server(gated)) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == {"should_search"}
            return await client.call_tool("should_search", {"question": KNOWN})

    try:
        assert asyncio.run(talk()).structured_content["retrieve"] is True
    finally:
        gated.decider.worker.close()


def test_a_failing_gate_and_a_failing_search(gate, monkeypatch):
    from kbtrain.serve.config import ServeConfig
    from kbtrain.serve.mcp_server import GatedSearch
    from kbtrain.serve.problem import Refused

    async def broken(query, k):
        raise ValueError(query)

    async def of(setting):
        gated = GatedSearch(ServeConfig(gate=gate, search="serve_support:echo", on_gate_failure=setting))
        monkeypatch.setattr(gated.decider.loaded.gate, "score_all", lambda inputs: 1 / 0)
        try:
            return await gated.find(NEEDS, None)
        finally:
            gated.decider.worker.close()

    assert asyncio.run(of("retrieve")).reason == "gate-failed"
    assert asyncio.run(of("plain")).model_dump() == {"searched": False, "reason": "gate-failed", "passages": []}
    with pytest.raises(Refused, match="the gate failed"):
        asyncio.run(of("error"))

    async def failing_search():
        gated = GatedSearch(ServeConfig(gate=gate, search="serve_support:echo", threshold=0.0))
        gated.search.find = broken
        try:
            await gated.find(NEEDS, None)
        finally:
            gated.decider.worker.close()

    with pytest.raises(Refused, match="the search failed"):
        asyncio.run(failing_search())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "80"], "unknown key 'port'|unrecognized|port"),
        ([], "no index beside .*; give --search or none"),
        (["--search", "missing.jsonl"], "no such file"),
    ],
)
def test_what_it_cannot_do_is_one_line(gate, words, message):
    from kbtrain.serve.config import mcp_settings
    from kbtrain.serve.mcp_server import run

    with pytest.raises(UserError, match=message) as caught:
        run(mcp_settings([str(gate), *words]), lambda line: None)
    assert "\n" not in str(caught.value)


# A gate that reads what a search found: it decides about the passages, and says that it saves no search


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
    (decided, other), tools = [row for row in rows if row["route"] == "gate"][:2], [{"type": "web_search"}]
    assert (decided["passages"], other["passages"]) == (1, 0) and decided["seconds"] > decided["gate_ms"] / 1000
    with serving(folder, upstream=stub.url, search=f"{__name__}:find", k=1) as server:
        for more, outcome in (({}, "kept"), ({"x-kbtrain-retrieve": "never"}, "removed")):
            said = server.post("/v1/chat/completions", {**chat(GOOD), "tools": tools}, more).headers
            assert (said["x-kbtrain-tool"], said["x-kbtrain-reason"]) == (outcome, "forced" if more else "own-search")


@pytest.mark.parametrize(
    ("settings", "says"), [({"search": "none"}, "give it a search"), ({"policy": "pass"}, "policy pass never searches")]
)
def test_without_a_search_it_does_not_start(folder, stub, settings, says):
    given = {"gate": folder, "upstream": stub.url, "search": f"{__name__}:find", **settings}
    with pytest.raises(UserError, match=f"gate 'features_benefit': reads what a search found; {says}"):
        Decider(ServeConfig(**given))
    with pytest.raises(UserError, match="give it a search"):  # a server that only decides opens none by itself
        Service(ServeConfig(gate=folder))


def test_an_agent_cannot_ask_it_before_the_search(folder):
    with pytest.raises(UserError, match="an agent asks before the search"):
        GatedSearch(ServeConfig(gate=folder, search=f"{__name__}:find"))
