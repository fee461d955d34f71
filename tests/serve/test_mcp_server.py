"""The MCP server, asked by the SDK's own client over standard input and output."""

import asyncio
import json
import os
import sys

import pytest
from serve_support import KNOWN, NEEDS

from kbtrain.errors import UserError

pytest.importorskip("mcp")
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
    """Instructions, names of the tools, and the results of calls, from a server in a process of its own."""
    from mcp import Client, StdioServerParameters

    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = ["-m", "kbtrain.cli", "mcp", *map(str, arguments)]
    parameters = StdioServerParameters(command=sys.executable, args=command, env=environment)

    async def talk():
        async with Client(parameters) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            return tools, [await client.call_tool(name, given) for name, given in calls]

    return asyncio.run(talk())


def test_an_agent_judges_and_searches_only_where_it_is_needed(gate, corpus):
    calls = [
        ("should_search", {"question": NEEDS}),
        ("should_search", {"question": "Hi"}),
        ("search", {"question": NEEDS, "most": 2}),
        ("search", {"question": KNOWN}),
        ("search", {"question": "What is 2+2?"}),
        ("search", {"question": " "}),
        ("search", {"question": NEEDS, "most": 0}),
    ]
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
        gated.decider.close()


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
            gated.decider.close()

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
            gated.decider.close()

    with pytest.raises(Refused, match="the search failed"):
        asyncio.run(failing_search())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--port", "80"], "unknown key 'port'|unrecognized|port"),
        ([], "no index beside .*; give one, or none"),
        (["--search", "missing.jsonl"], "no such file"),
    ],
)
def test_what_it_cannot_do_is_one_line(gate, words, message):
    from kbtrain.serve.mcp_server import mcp_command

    with pytest.raises(UserError, match=message) as caught:
        mcp_command([str(gate), *words], lambda line: None)
    assert "\n" not in str(caught.value)


WRAPPED = """
import sys
from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, ImageContent, TextContent

server = MCPServer("somebody's", instructions="Search the wiki.")
calls = open(sys.argv[1], "a", buffering=1)

@server.tool()
def wiki_search(query: str, limit: int = 3) -> list[str]:
    "Search the wiki."
    calls.write(f"{query} {limit}\\n")
    return ["The museum opens at nine.", "It is closed on Mondays."]

@server.tool()
def search_images(query: str) -> CallToolResult:
    "Search pictures."
    picture = ImageContent(type="image", data="AAAA", mimeType="image/png")
    return CallToolResult(content=[TextContent(type="text", text=query), picture], isError=query == "broken museum")

@server.tool()
def add_note(text: str) -> str:
    "No search."
    return f"noted {text}"

@server.resource("wiki://about")
def about() -> str:
    return "A wiki."

if __name__ == "__main__":
    server.run("stdio")
"""


@pytest.fixture(scope="module")
def wrapped(tmp_path_factory):
    """A search server of the SDK's, and the file that it writes its calls into."""
    folder = tmp_path_factory.mktemp("wrapped")
    (folder / "server.py").write_text(WRAPPED)
    return folder / "server.py", folder / "calls"


def test_a_wrapped_search_is_called_only_where_it_is_needed(gate, wrapped):
    script, log = wrapped
    log.write_text("")
    calls = [
        ("wiki_search", {"query": KNOWN}),
        ("wiki_search", {"query": "Hi"}),
        ("wiki_search", {"query": NEEDS, "limit": 2}),
        ("add_note", {"text": KNOWN}),
    ]
    tools, results = asked([gate, "--wrap", f"{sys.executable} {script} {log}"], calls)
    assert tools == {"wiki_search", "search_images", "add_note"}
    known, greeting, needed, note = results
    assert known.content[0].text == "No search needed (below-threshold): answer from what you know."
    assert known.structured_content["retrieve"] is False and not known.is_error
    assert greeting.structured_content["reason"] == "greeting"
    assert needed.structured_content == {"result": ["The museum opens at nine.", "It is closed on Mondays."]}
    assert note.content[0].text == f"noted {KNOWN}"
    assert log.read_text().splitlines() == [f"{NEEDS} 2"]


REFUSED = [
    (
        {"search_tool": ["lookup"]},
        "no tool of the wrapped server has such a name; its tools: wiki_search",
    ),
    ({"query_argument": "words"}, "name the question's argument of tool 'wiki_search': query, limit"),
]


def test_results_of_a_wrapped_server_at_an_address_are_unchanged(gate, wrapped, monkeypatch):
    """Contents, errors, resources and instructions are those that a client of the server itself gets."""
    import runpy
    import threading

    import uvicorn
    from mcp import Client
    from support.waiting import wait_until

    from kbtrain.serve import mcp_server
    from kbtrain.serve.config import ServeConfig
    from kbtrain.serve.server import listen

    script, log = wrapped
    monkeypatch.setattr(sys, "argv", [str(script), str(log)])
    app = runpy.run_path(str(script))["server"].streamable_http_app()
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        asks = mcp_server.AgentGate(ServeConfig(gate=gate, threshold=0.0))
        config = mcp_server.McpConfig(gate=gate, wrap=address)

        async def talk():
            async with mcp_server.open_wrapped(config) as behind, Client(address) as direct:
                assert await mcp_server.gated_tools(behind, config) == ["wiki_search", "search_images"]
                for change, message in REFUSED:
                    with pytest.raises(UserError, match=message):
                        await mcp_server.gated_tools(behind, config.model_copy(update=change))
                async with Client(mcp_server.wrapper(asks, behind, config)) as client:
                    assert client.instructions == direct.instructions == "Search the wiki."
                    for query in (NEEDS, "broken museum"):
                        given = {"query": query}
                        ours, theirs = [await one.call_tool("search_images", given) for one in (client, direct)]
                        assert ours.model_dump(exclude={"meta"}) == theirs.model_dump(exclude={"meta"})
                        assert len(ours.content) == 2
                    assert ours.is_error
                    ours, theirs = [await one.read_resource("wiki://about") for one in (client, direct)]
                    assert ours.contents == theirs.contents
                    schemas = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
                    assert schemas["wiki_search"] is None and schemas["add_note"] is not None

        asyncio.run(asyncio.wait_for(talk(), 60))
        asks.decider.close()
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--wrap", "no-such-command-here"], "key 'wrap': no MCP server answers there \\(FileNotFoundError"),
        (["--wrap", "server", "--k", "5"], "key 'wrap': the wrapped server searches; remove"),
        (["--wrap", "'"], "key 'wrap': expected a command or an address .No closing quotation"),
    ],
)
def test_a_server_that_cannot_be_wrapped_is_one_line(gate, words, message):
    from kbtrain.serve.mcp_server import mcp_command

    with pytest.raises(UserError, match=message) as caught:
        mcp_command([str(gate), *words], lambda line: None)
    assert "\n" not in str(caught.value)
