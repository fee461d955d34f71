"""Settings for servers whose models think, found by asking: not to think, else a budget."""

from __future__ import annotations

import pytest

from kbtrain.llm.check_thoughts import LOOKS, check_thoughts

THOUGHT = "<think>\nAny town.\nParis?\n</think>\n\n"


class Model:
    """A server that applies stop strings to all of an output. ``heeds``: the field that keeps its model from thinking;
    ``refuses``: fields it refuses; ``parser``: field of its thoughts; ``hidden``: they are counted, not shown."""

    def __init__(self, thought=THOUGHT, heeds=None, refuses=(), parser=None, hidden=False, lead="", length=40):
        self.thought, self.heeds, self.refuses, self.parser = thought, heeds, refuses, parser
        self.hidden, self.lead, self.length, self.asked = hidden, lead, length, []

    def __call__(self, change):
        body = {"stop": ["\n"], "max_tokens": 16, **change}
        self.asked.append(body)
        if any(name in body for name in self.refuses):
            return None
        thinks = self.thought and self.heeds not in body
        text, finish = (self.thought if thinks else "") + self.lead + "Lyon", "stop"
        shown = text[text.index("</think>") + 8 :] if thinks and self.hidden else text
        if body["stop"] and "\n" in text:
            text = text.split("\n")[0]
            shown = "" if thinks and self.hidden else text
        elif thinks and body["max_tokens"] < self.length:
            text, finish, shown = text[:9], "length", "" if self.hidden else text[:9]
        message = {"role": "assistant", "content": shown}
        if self.parser and thinks:
            head, end, tail = text.removeprefix("<think>").partition("</think>")
            message = {"role": "assistant", "content": tail if end else None, self.parser: head}
        usage = {"completion_tokens": self.length if thinks else 2}
        if self.hidden:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.length if thinks else 0}
        return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


def check(model, **more):
    found = check_thoughts(model, "max_tokens", 64, **more)
    assert found.silent.n == LOOKS
    return found


def test_a_model_that_does_not_think_is_left_as_it_is():
    found = check(Model(thought=""))
    assert (found.extra, found.settings, found.silent.kinds.total()) == ({}, {}, 0)
    assert found.line() == (
        "the model does not think before it answers; 5 answers: 0.0% empty, 0.0% cut before they began, 0.0% thoughts "
        "alone"
    )


@pytest.mark.parametrize(("heeds", "refuses"), [
    ("chat_template_kwargs", ()), ("reasoning_effort", ("chat_template_kwargs",)), ("thinking", ()),
    ("enable_thinking", ("thinking", "reasoning_effort")), ("reasoning", ()),
])  # fmt: skip
@pytest.mark.parametrize("how", [{}, {"parser": "reasoning_content"}, {"hidden": True}])
def test_asking_not_to_think_is_tried_first(heeds, refuses, how):
    found = check(Model(heeds=heeds, refuses=refuses, **how))
    assert set(found.extra) == {heeds} and not found.settings and not found.silent.kinds
    assert "asked not to" in found.line()


@pytest.mark.parametrize("how", [{}, {"parser": "reasoning"}, {"hidden": True}])
def test_a_model_that_cannot_be_kept_from_thinking_gets_a_budget(how):
    found = check(Model(length=200, **how))
    assert (found.extra, found.settings) == ({}, {"max_thought_tokens": 1024})  # 4 times 200, in powers of two
    assert not found.silent.kinds


def test_a_template_that_opens_the_thought_is_found():
    found = check(Model(thought="Any town.\nParis?\n</think>\n\n"))
    assert found.settings == {"max_thought_tokens": 512, "server_thought_opened": True} and not found.silent.kinds


def test_a_blank_first_line_takes_the_stop_string_from_the_server():
    found = check(Model(thought="", lead="\n\n"))
    assert (found.extra, found.settings, found.silent.kinds.total()) == ({"stop": None}, {}, 0)
    both = check(Model(heeds="thinking", lead="\n\n"))
    assert both.extra == {"thinking": {"type": "disabled"}, "stop": None}


def test_thoughts_that_never_end_are_said_to_be_cut():
    found = check(Model(length=10**6))
    assert found.settings == {"max_thought_tokens": 4096}
    assert found.silent.kinds == {"cut": LOOKS} and found.silent.is_too_silent()
    assert check(Model(length=10**6), context=4096).settings == {"max_thought_tokens": 2048}
