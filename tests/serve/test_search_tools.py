"""Requests that bring their own search tool: no passages are put in, and the gate decides about the tool."""

import pytest
from serve_support import KNOWN, NEEDS, serving
from stub_upstream import StubUpstream

from kbtrain.serve.config import SEARCH_TOOLS
from kbtrain.serve.request_forms import search_fields, search_tools

OTHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
SEARCH = {"type": "function", "function": {"name": "web_search", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def server(gate, stub):
    with serving(gate, upstream=stub.url, search="serve_support:echo", k=1) as running:
        yield running


def ask(server, text, tools, rule=None, path="chat/completions", **more):
    body = {"model": "stub", "tools": tools, **more}
    body |= {"input": text} if path == "responses" else {"messages": [{"role": "user", "content": text}]}
    headers = {} if rule is None else {"x-kbtrain-tool": rule}
    return body, server.post(f"/v1/{path}", body, headers).headers


@pytest.mark.parametrize(
    ("text", "rule", "outcome", "names", "choice"),
    [
        (NEEDS, None, "kept", ["get_weather", "web_search"], None),
        (KNOWN, None, "removed", ["get_weather"], None),
        (NEEDS, "force", "forced", ["get_weather", "web_search"], "web_search"),
        (KNOWN, "force", "removed", ["get_weather"], None),
        (KNOWN, "keep", "kept", ["get_weather", "web_search"], None),
    ],
)
def test_the_gate_keeps_removes_or_forces_the_tool(server, stub, text, rule, outcome, names, choice):
    _, found = ask(server, text, [OTHER, SEARCH], rule)
    sent = stub.body()
    assert (found["x-kbtrain-tool"], found["x-kbtrain-retrieved"]) == (outcome, "0")
    assert [tool["function"]["name"] for tool in sent["tools"]] == names
    assert sent["messages"] == [{"role": "user", "content": text}]  # no passages, in any case
    assert sent.get("tool_choice") == (choice and {"type": "function", "function": {"name": choice}})
    assert found["x-kbtrain-reason"] == ("above-threshold" if text == NEEDS else "below-threshold")


def test_a_lone_search_tool_leaves_with_its_choice(server, stub):
    ask(server, KNOWN, [SEARCH], tool_choice="auto", parallel_tool_calls=True)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & set(stub.body())


@pytest.mark.parametrize(
    ("path", "tool", "choice"),
    [
        ("responses", {"type": "web_search"}, {"type": "web_search"}),
        ("responses", {"type": "function", "name": "search_docs"}, {"type": "function", "name": "search_docs"}),
        ("messages", {"type": "web_search_20250305", "name": "web_search"}, {"type": "tool", "name": "web_search"}),
    ],
)
def test_each_dialect_names_the_tool_in_its_own_form(server, stub, path, tool, choice):
    _, found = ask(server, NEEDS, [tool], "force", path, max_tokens=5)
    assert (found["x-kbtrain-tool"], stub.body()["tool_choice"]) == ("forced", choice)


CODING = ["search_replace", "codebase_search", "grep_search", "search_flights", "retrieve_order", "tool_search",
          "searchReplace", "google_drive_search", "delete_web_search_history", "ToolSearch", "gmail.search",
          "mcp__slack__search", "stripe__retrieve", "mcp__google-calendar__search", "mcp__google_drive__search",
          "mcp__docker__search", "mcp__storage__search", "google_search_console_query"]  # fmt: skip
WRITTEN = ["google_web_search", "webSearchPrime", "$web_search", "TavilySearch", "builtin::websearch", "search-web",
           "mcp__docs__search", "mcp__brave-search__search", "mcp__google__search"]  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_a_search_is_known_by_each_way_to_write_its_name(name):
    named = {"type": "function", "function": {"name": name}}
    for tool in (named, {"type": "openrouter:web_search"}, {"webSearch": {}}):
        for field in ("tools", "functions"):
            assert search_tools({field: [tool]}, SEARCH_TOOLS) == [tool]


@pytest.mark.parametrize("body", [
    {"tools": [{"type": "web_search", "web_search": {"enable": False}}]},
    {"plugins": [{"id": "web", "enabled": False}]},
    {"enable_search": False, "search_options": {"forced_search": False}}], ids=str)  # fmt: skip
def test_a_search_that_is_switched_off_is_none(body):
    assert not search_tools(body, SEARCH_TOOLS) and not search_fields(body, SEARCH_TOOLS)


@pytest.mark.parametrize("name", CODING)
def test_a_tool_that_only_sounds_like_a_search_stays(server, stub, name):
    tool = {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    body, found = ask(server, KNOWN, [tool])
    assert "x-kbtrain-tool" not in found and stub.body()["tools"] == body["tools"]


def test_the_tool_that_finds_tools_is_never_taken(gate, stub):
    finder = {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"}
    with serving(gate, upstream=stub.url, search="none", search_tool=["*search*"]) as own:
        ask(own, KNOWN, [finder, SEARCH])
    assert stub.body()["tools"] == [finder]


@pytest.mark.parametrize("field", [
    {"web_search_options": {}}, {"plugins": [{"id": "web"}]}, {"enable_search": True}, {"model": "stub:online"},
    {"search_parameters": {"mode": "auto"}}, {"webSearch": True}, {"features": {"web_search": True}},
    {"venice_parameters": {"enable_web_search": "on"}}, {"force_search_enhancement": True}], ids=str)  # fmt: skip
def test_a_field_that_makes_the_upstream_search_is_steered_as_a_tool(server, stub, field):
    for text, outcome in ((NEEDS, "kept"), (KNOWN, "removed")):
        body = {"model": "stub", "messages": [{"role": "user", "content": text}], **field}
        found = server.post("/v1/chat/completions", body).headers
        assert (found["x-kbtrain-tool"], found["x-kbtrain-retrieved"]) == (outcome, "0")
        kept = body if text == NEEDS else {"model": "stub", "messages": body["messages"]}
        assert stub.body() == kept


def test_a_field_that_says_no_is_no_search(server, stub):
    off = {"enable_search": False, "web_search_options": None, "search_parameters": {"mode": "off"}, "plugins": [{}],
           "web_search": {"enable": False}, "venice_parameters": {"enable_web_search": "off"}}  # fmt: skip
    body = {"model": "stub", "messages": [{"role": "user", "content": KNOWN}], **off}
    assert "x-kbtrain-tool" not in server.post("/v1/chat/completions", body).headers and stub.body() == body


@pytest.mark.parametrize(
    ("path", "tools", "choice"),
    [
        ("chat/completions", [SEARCH], "none"),
        ("chat/completions", [OTHER, SEARCH], {"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [{"type": "function", "function": {"name": "get_weather"}}]}}),
        ("responses", [{"type": "function", "name": "get_weather"}, {"name": "save"}, {"type": "web_search"}],
         {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "get_weather"},
                                                             {"type": "function", "name": "save"}]}),
        ("messages", [{"type": "web_search_20250305", "name": "web_search"}], {"type": "none"}),
    ],
)  # fmt: skip
def test_the_list_of_tools_may_stay_for_a_cached_prompt(server, stub, path, tools, choice):
    body, found = ask(server, KNOWN, tools, "allow", path)
    assert found["x-kbtrain-tool"] == "removed"
    assert stub.body() == {**body, "tool_choice": choice}


def test_a_choice_of_auto_with_options_is_steered_and_a_model_that_thinks_is_not_forced(server, stub):
    tool, auto = {"name": "web_search"}, {"type": "auto", "disable_parallel_tool_use": True}
    ask(server, NEEDS, [tool], "force", "messages", tool_choice=auto)
    assert stub.body()["tool_choice"] == {"type": "tool", "name": "web_search", "disable_parallel_tool_use": True}
    ask(server, KNOWN, [tool], None, "messages", tool_choice=auto)
    assert "tools" not in stub.body()
    for thinking in ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}):
        body, found = ask(server, NEEDS, [tool], "force", "messages", **thinking)
        assert found["x-kbtrain-tool"] == "kept" and stub.body() == body


def test_of_the_tools_that_a_client_allows_the_search_is_taken(server, stub):
    names = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "web_search")]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names}}
    body, found = ask(server, KNOWN, [OTHER, SEARCH], tool_choice=choice)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": names[:1]}}
    assert (found["x-kbtrain-tool"], stub.body()) == ("removed", {**body, "tool_choice": allowed})


def test_a_steered_request_that_the_upstream_refuses_is_sent_as_it_came(gate):
    with StubUpstream() as strict, serving(gate, upstream=strict.url, search="none") as own:
        strict.status = 400
        body, found = ask(own, NEEDS, [SEARCH], "force")
        assert (found["x-kbtrain-tool"], len(strict.requests), strict.body()) == ("kept", 2, body)


def test_what_the_client_chose_or_called_stays(server, stub):
    body, found = ask(server, KNOWN, [SEARCH], tool_choice="required")
    assert (found["x-kbtrain-tool"], stub.body()) == ("kept", body)
    for tools in ([OTHER], [OTHER, SEARCH]):
        body, _ = ask(server, KNOWN, tools, tool_choice="required", web_search_options={})  # of tools, not of the field
        assert stub.body() == {key: value for key, value in body.items() if key != "web_search_options"}
    call = {"id": "a", "type": "function", "function": {"name": "web_search", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "Hi there, who?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "Nobody."}, {"role": "assistant", "content": "Nobody."},
        {"role": "user", "content": KNOWN},
    ]  # fmt: skip
    body, found = ask(server, KNOWN, [SEARCH])
    used = {"content": [{"type": "server_tool_use"}]}
    for mine in ({"tool_calls": [call]}, {"function_call": call["function"]}, used):
        body["messages"] = [turns[0], {"role": "assistant", "content": None} | mine, turns[4]]
        assert server.post("/v1/chat/completions", body).headers["x-kbtrain-tool"] == "kept"
    body["messages"] = turns
    found = server.post("/v1/chat/completions", body).headers
    assert (found["x-kbtrain-tool"], stub.body()) == ("kept", body)


def test_other_tools_and_other_patterns_get_passages_as_ever(gate, server, stub):
    _, found = ask(server, NEEDS, [OTHER])
    assert found["x-kbtrain-retrieved"] == "1" and "x-kbtrain-tool" not in found
    with serving(gate, upstream=stub.url, search="serve_support:echo", k=1, search_tool=["get_*"]) as own:
        assert ask(own, NEEDS, [SEARCH])[1]["x-kbtrain-retrieved"] == "1"
        assert ask(own, NEEDS, [OTHER])[1]["x-kbtrain-tool"] == "kept"
    with serving(gate, upstream=stub.url, search="serve_support:echo", policy="pass") as shadow:
        for text, reason in ((NEEDS, "policy"), (KNOWN, "below-threshold")):
            _, found = ask(shadow, text, [SEARCH], "force")
            assert (found["x-kbtrain-tool"], found["x-kbtrain-reason"]) == ("kept", reason)
    for policy, done in (("always", ("kept", "forced")), ("never", ("removed", "removed"))):
        with serving(gate, upstream=stub.url, search="none", policy=policy) as server:
            for text in (NEEDS, KNOWN):
                tools = tuple(ask(server, text, [SEARCH], tool)[1]["x-kbtrain-tool"] for tool in ("remove", "force"))
                assert tools == done
