"""The gated part of each form of request, and the places that passages take in it, by hand."""

import json

import pytest
from serve_support import KNOWN, NEEDS

from kbtrain.errors import UserError
from kbtrain.prompts.kbm import background
from kbtrain.prompts.own import OwnPrompts
from kbtrain.serve.config import ServeConfig, serve_settings
from kbtrain.serve.problem import Refused
from kbtrain.serve.request_forms import CALL, FORMS, with_evidence

RESPONSES, MESSAGES = FORMS["responses"], FORMS["messages"]
TEXT = background("It opens at nine.", "en")
QUESTIONS = frozenset({"question"})


def read(form, body, reads=QUESTIONS, **settings):
    return form.gate_input(body, ServeConfig(gate="g", **settings), reads)


def put(form, body, evidence="It opens at nine.", own=None, injection="user"):
    before, gated = json.dumps(body), read(form, body)
    found = with_evidence(form, body, gated, evidence, "auto", own, injection)
    assert json.dumps(body) == before  # the client's own is left as it is
    return found


def user(text=NEEDS, kind="input_text"):
    return {"role": "user", "content": [{"type": kind, "text": text}]}


RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "9"}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"input": NEEDS}, ""),
        ({"input": [user()]}, ""),
        ({"input": [{"type": "message", **user()}]}, ""),
        ({"input": NEEDS, "instructions": "Be brief", "previous_response_id": "resp_1"}, ""),
        ({"input": [{"type": "reasoning", "summary": []}, {"type": "function_call", "name": "f"}, user()]}, ""),
        ({"input": [user(), {"type": "function_call_output", "call_id": "1", "output": "9"}]}, "tool-message"),
        ({"input": [user(), {"type": "computer_call_output", "call_id": "1", "output": {}}]}, "tool-message"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "other-role"),
        ({"input": [user(), {"role": "assistant", "content": "Hm"}]}, ""),  # an answer that is begun
        ({"input": [user(), {"role": "developer", "content": "Be brief"}]}, ""),
        ({"input": [user(), {"type": "additional_tools", "tools": []}]}, ""),
        ({"input": [user(), {"role": "user", "content": "<system-reminder>No tasks.</system-reminder>"}]}, ""),
        ({"input": [user()] * 1500}, ""),
        ({"input": [user(), {"type": "function_call", "name": "f"}]}, "no-user-message"),
        ({"input": [{"role": "developer", "content": "Be brief"}]}, "system-only"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "image-or-file"),
        ({"input": " "}, "empty-question"),
        ({"prompt": {"id": "pmpt_1"}}, "no-user-message"),
        ({"input": NEEDS, "instructions": "Generate a concise title of 3-5 words for this chat, only the title."},
         "client-task"),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_gated_of_responses(body, reason):
    found = read(RESPONSES, body)
    assert found.reason == reason and found.query == (None if reason else NEEDS)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"messages": [user(kind="text")], "system": [{"type": "text", "text": "Be brief"}]}, ""),
        ({"messages": [{"role": "user", "content": [RESULT, {"type": "text", "text": "Go on"}]}]}, "tool-message"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image-or-file"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "image-or-file"),
        ({"messages": [user(kind="text"), {"role": "assistant", "content": "The"}]}, ""),
        ({"messages": [user(kind="text"), {"role": "system", "content": "Be brief"}]}, ""),
        ({"messages": [user(kind="text"), {"role": "document", "content": "Be brief"}]}, "other-role"),
        ({"messages": [{"role": "user", "content": ""}]}, "empty-question"),
    ],
    ids=str,
)
def test_what_is_gated_of_messages(body, reason):
    assert read(MESSAGES, body).reason == reason


def test_own_wrappers_are_struck_before_gate_and_search_and_counted():
    body = {"messages": [user(kind="text"), {"role": "user", "content": f"/// ticket\n17 /// {NEEDS}"}]}
    found = read(MESSAGES, body, wrappers=["(?s)///.*?///"])
    assert (found.query, found.struck) == (NEEDS, 1)
    turn = read(MESSAGES, body, frozenset({"turn"}), wrappers=["(?s)///.*?///"])
    assert turn.value.context[-1].text == NEEDS
    with pytest.raises(UserError, match="key 'wrappers': input should be a valid regular expression, found '\\('"):
        serve_settings(["g", "--wrappers", "['(']"])


def test_a_gate_of_turns_reads_the_dialogue_of_each_form():
    turns = [{"role": "user", "content": KNOWN}, {"role": "assistant", "content": "Done."}]
    items = [turns[0], {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Done."}]}]
    for form, body in ((MESSAGES, {"messages": [*turns, user(kind="text")]}), (RESPONSES, {"input": [*items, user()]})):
        found = read(form, body, frozenset({"turn"})).value
        assert [(u.speaker, u.text) for u in found.context] == [("USER", KNOWN), ("SYSTEM", "Done."), ("USER", NEEDS)]


@pytest.mark.parametrize(
    ("form", "body", "says"),
    [
        ("responses", {"input": []}, "field 'input': expected text or a list"),
        ("responses", {"input": 3}, "field 'input': expected text or a list"),
        ("responses", {"input": [3]}, "field 'input': message 0: expected an object"),
        ("responses", {"input": [{"type": "message"}], "instructions": "x"}, "message 0: field 'role'"),
        ("responses", {"input": "x", "instructions": ["x"]}, "field 'instructions'"),
        ("messages", {}, "field 'messages': expected a list"),
        ("messages", {"messages": [3], "system": "x"}, "message 0: expected an object"),
        ("messages", {"messages": [user()], "system": 3}, "field 'system'"),
        ("messages", {"messages": [user()], "system": [3]}, "each part is an object"),
    ],
    ids=str,
)
def test_a_body_that_is_none_of_the_form_is_refused_by_its_field(form, body, says):
    with pytest.raises(Refused, match=says) as refused:
        read(FORMS[form], body)
    assert refused.value.status == 400


@pytest.mark.parametrize("behind", [{"role": "system", "content": "Plan"}, {"role": "assistant", "content": "{"}])
@pytest.mark.parametrize("injection", ["user", "tool"])
def test_passages_stand_at_the_question_wherever_it_is(behind, injection):
    body = {"messages": [{"role": "user", "content": f"<system-reminder>x</system-reminder>{NEEDS}"}, behind]}
    found = read(MESSAGES, body)
    assert (found.query, found.place, found.struck) == (NEEDS, 0, 1)
    asked, *call, last = put(MESSAGES, body, injection=injection)["messages"]
    before, n = (TEXT, 0) if injection == "user" else ("", 2)
    assert last == behind and asked["content"] == before + body["messages"][0]["content"] and len(call) == n


def test_passages_in_responses_and_messages():
    assert put(RESPONSES, {"input": NEEDS}) == {"input": TEXT + NEEDS}
    two = [user(KNOWN), user()]
    parts = [{"type": "input_text", "text": TEXT}, *two[1]["content"]]
    assert put(RESPONSES, {"input": two}) == {"input": [two[0], {"role": "user", "content": parts}]}
    body = {"messages": [{"role": "user", "content": NEEDS}], "system": "Be brief"}
    assert put(MESSAGES, body) == {**body, "messages": [{"role": "user", "content": TEXT + NEEDS}]}


LINE, DEVELOPER = TEXT.rstrip("\n"), {"role": "developer", "content": "Be brief"}
BLOCK = {"type": "text", "text": "Be brief", "cache_control": {"type": "ephemeral"}}
QUESTION = {"messages": [{"role": "user", "content": NEEDS}]}
THINKING = {**QUESTION, "thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.mark.parametrize(
    ("path", "body", "changed"),
    [
        ("responses", {"input": NEEDS}, {"instructions": LINE}),
        ("responses", {"input": [user()], "instructions": "Be brief"}, {"instructions": f"Be brief\n\n{LINE}"}),
        ("responses", {"input": [DEVELOPER, user()]},
         {"input": [{**DEVELOPER, "content": f"Be brief\n\n{LINE}"}, user()]}),
        ("messages", QUESTION, {"system": LINE}),
        ("messages", {**QUESTION, "system": "Be brief"}, {"system": f"Be brief\n\n{LINE}"}),
        ("messages", {**QUESTION, "system": [BLOCK]}, {"system": [BLOCK, {"type": "text", "text": LINE}]}),
        ("completions", {"prompt": NEEDS}, {"prompt": TEXT + NEEDS}),
    ],
    ids=str,
)  # fmt: skip
def test_passages_behind_the_system_s_message(path, body, changed):
    assert put(FORMS[path], body, injection="system") == body | changed


def test_passages_as_the_result_of_a_call():
    found = put(RESPONSES, {"input": NEEDS}, injection="tool")
    question, call, result = found["input"]
    assert question == {"role": "user", "content": NEEDS}
    assert (call["type"], call["call_id"], json.loads(call["arguments"])) == ("function_call", CALL, {"query": NEEDS})
    assert result == {"type": "function_call_output", "call_id": CALL, "output": "It opens at nine."}
    assert found["tools"][0]["name"] == "search" and found["tool_choice"] == "none"
    own, other = {"type": "function", "name": "search"}, {"type": "function", "name": "weather"}
    assert put(RESPONSES, {"input": NEEDS, "tools": [own]}, injection="tool")["tools"] == [own]
    found = put(RESPONSES, {"input": NEEDS, "tools": [other]}, injection="tool")
    assert len(found["tools"]) == 2 and "tool_choice" not in found
    found = put(MESSAGES, QUESTION, injection="tool")
    used = {"type": "tool_use", "id": CALL, "name": "search", "input": {"query": NEEDS}}
    told = {"type": "tool_result", "tool_use_id": CALL, "content": "It opens at nine."}
    call = [{"role": "assistant", "content": [used]}, {"role": "user", "content": [told]}]
    assert found["messages"] == [*QUESTION["messages"], *call]
    assert found["tools"][0]["input_schema"]["required"] == ["query"] and found["tool_choice"] == {"type": "none"}


@pytest.mark.parametrize(("path", "body"), [("messages", THINKING), ("completions", {"prompt": NEEDS})])
def test_no_call_stands_before_a_model_that_thinks_nor_in_a_prompt(path, body):
    assert put(FORMS[path], body, injection="tool") == put(FORMS[path], body)


def test_a_prompt_of_its_own_takes_the_place_of_question_and_system():
    own = OwnPrompts(llm="Say: {question}", rag="Read {evidence} Say: {question}", system="Short.")
    for form, body, system in (
        (RESPONSES, {"input": [{"role": "system", "content": "Long"}, user()], "instructions": "Long"}, "instructions"),
        (MESSAGES, {"messages": [user(kind="text")], "system": [{"type": "text", "text": "Long"}]}, "system"),
    ):
        found = put(form, body, "It opens.", own)
        assert found[system] == "Short."
        (last,) = found["input" if system == "instructions" else "messages"]
        assert last["content"] == f"Read It opens. Say: {NEEDS}"
    assert put(RESPONSES, {"input": NEEDS}, None, own) == {"input": f"Say: {NEEDS}", "instructions": "Short."}
