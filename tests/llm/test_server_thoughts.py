"""Servers whose models think before they answer: what is stored is the answer.

The stand-in generates one whole output and then does as vLLM and llama.cpp do: it cuts at the first stop string, which
it looks for in the thought, too, or at the limit of tokens (here: characters); then its reasoning parser takes the
thought out of the text, if it has one.
"""

import pytest
from model_server import ModelServer

from kbtrain.llm.base import AnswerRequest, Sampling
from kbtrain.llm.dialect import Dialect, Server
from kbtrain.llm.openai_llm import OpenAILLM
from kbtrain.llm.replies import OutputRules, samples
from kbtrain.llm.server_requests import Retry

THINKS = "<think>\nIt may be Rome.\nOr Paris.\n</think>\n\n{answer}\nIt is in France."
OPENED = THINKS.removeprefix("<think>\n")
BLANK = "\n\n{answer}\nIt is in France."


class ThinkingServer(ModelServer):
    """``output``: what the model generates; ``parser``: name of the field of the thought, None without a parser."""

    def __init__(self, output, parser=None, names_stop=False, parts=False):
        super().__init__(say=lambda body, i: "")
        self.output, self.parser, self.names_stop, self.parts = output, parser, names_stop, parts

    def reply_to(self, body):
        made = [self.choice(body, i) for i in range(body.get("n", 1))]
        return {"choices": made, "usage": {"prompt_tokens": 7, "completion_tokens": 5 * len(made)}}

    def choice(self, body, i):
        answer = "greedy" if body["temperature"] == 0 else f"answer {body.get('seed', 0) + i}"
        text, finish, met = self.output.format(answer=answer), "stop", None
        places = {text.find(stop): stop for stop in body.get("stop") or () if stop in text}
        if places:
            met = places[min(places)]
            text = text[: min(places)]
        elif len(text) > body["max_tokens"]:
            text, finish = text[: body["max_tokens"]], "length"
        message = {"role": "assistant", "content": text}
        if self.parser:
            thought, end, rest = text.removeprefix("<think>").partition("</think>")
            thinks = "<think>" in self.output or self.output is OPENED
            message = {"role": "assistant", "content": (rest if thinks else text) or None,
                       self.parser: thought if thinks else None}  # fmt: skip
            if self.parts:
                inner = {"type": "thinking", "thinking": [{"type": "text", "text": thought}]}
                message = {"role": "assistant", "content": [inner, *([{"type": "text", "text": rest}] if end else [])]}
        named = {"stop_reason": met} if self.names_stop else {}
        return {"index": i, "message": message, "text": text, "finish_reason": finish, **named}


@pytest.fixture(autouse=True)
def _replies(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(
        "model_server.completion", lambda body, most, logprobs, chat, say: say.__self__.reply_to(body), raising=True
    )


@pytest.fixture
def asked(question):
    """Stored answers of two questions to a server, and the requests it got."""

    def ask(server, **settings):
        server.say = server.reply_to
        opened = settings.pop("opened", False)
        sampling = Sampling(**{"max_new_tokens": 400, **settings})
        given = {"chat": True, "opened": opened, "retry": Retry(1), "asked_at_once": 1}
        how = Server(server.url, "tiny", dialect=Dialect(logprobs=False), **given)
        llm = OpenAILLM("tiny", None, sampling, how)
        sets = [made for i in (1, 2) for group in llm.answer([AnswerRequest(question(f"q{i}"), "llm", None, 2)])
                for made in group]  # fmt: skip
        return [(sample.text, sample.finish) for made in sets for sample in (made.greedy, *made.samples)]

    return ask


def is_whole(answers):
    return (
        all(text == "greedy" or text.startswith("answer ") for text, _ in answers)
        and len({text for text, _ in answers}) == 5
    )


@pytest.mark.parametrize("parser", [None, "reasoning_content", "reasoning"])
@pytest.mark.parametrize("names_stop", [False, True])
@pytest.mark.parametrize("output", [THINKS, BLANK])
def test_the_answer_is_stored_though_the_server_stops_in_the_thought(asked, output, names_stop, parser):
    with ThinkingServer(output, parser, names_stop) as server:
        assert is_whole(asked(server))
        stops = ["stop" in request for request in server.requests]
    assert stops == [True, False, False, False, False]  # asked once in vain, then never again


@pytest.mark.parametrize("parser", [None, "reasoning_content"])
def test_a_thought_with_a_budget_is_not_sent_the_stop_strings(asked, parser):
    with ThinkingServer(THINKS, parser) as server:
        assert is_whole(asked(server, max_thought_tokens=100))
        assert [("stop" in r, r["max_tokens"]) for r in server.requests] == [(False, 500)] * 4


@pytest.mark.parametrize("parser", [None, "reasoning"])
def test_a_thought_alone_is_told_from_an_empty_answer(asked, parser):
    with ThinkingServer("<think>\nIt may be Rome.\n</think>\n\n", parser) as server:
        assert set(asked(server)) == {("", "thought")}
    with ThinkingServer("", parser) as server:
        assert set(asked(server)) == {("", "stop")}


def test_a_thought_in_parts_of_the_content_is_taken_off(asked):
    with ThinkingServer(THINKS, "reasoning", parts=True) as server:
        assert is_whole(asked(server, max_thought_tokens=100))


def test_a_template_that_opens_the_thought_is_warned_of_or_declared(asked):
    with ThinkingServer(OPENED) as server:
        with pytest.warns(UserWarning, match="set server_thought_opened: true"):
            assert is_whole(asked(server, max_thought_tokens=100))
        assert is_whole(asked(server, max_thought_tokens=100, opened=True))
        assert set(asked(server, max_new_tokens=9, max_thought_tokens=1, opened=True)) == {("", "length")}
        assert is_whole(asked(server, opened=True))  # stopped at the thought's first line, and asked again


def test_log_probabilities_of_the_answer_alone_do_not_end_a_run_of_thoughts():
    message = {"role": "assistant", "content": None, "reasoning_content": "It may be Rome"}
    choice = {"message": message, "finish_reason": "length", "logprobs": {"content": []}}
    (made,) = samples(
        {"choices": [choice], "usage": {"completion_tokens": 4}}, 0, 1, OutputRules(("\n",)), None
    )  # fmt: skip
    assert (made.text, made.finish, made.n_tokens, made.logprob) == ("", "length", 4, 0.0)


def test_reasoning_is_counted_beside_the_log_probabilities_of_the_text():
    def choice(text, thought, n):
        logprobs = n and {"content": [{"token": "x", "logprob": -0.1}] * n}
        message = {"content": text, "reasoning_content": thought}
        return {"message": message, "finish_reason": "stop", "logprobs": logprobs}

    def counted(*choices, used):
        replies = [dict(one, index=i) for i, one in enumerate(choices)]
        reply = {"choices": replies, "usage": {"completion_tokens": used}}
        return [made.n_tokens for made in samples(reply, 0, len(choices), OutputRules(("\n",)), None)]

    assert counted(choice("1 4 1 5", "Pi.", 39), choice("3", "t" * 297, 1), used=540) == [44, 496]  # 500 by bytes
    assert counted(choice("Rome", "It is Rome", 30), choice("Rome", "It is", 0), used=70)[0] == 30
