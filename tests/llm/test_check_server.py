"""kbtrain check-server: what it finds out is what the server can, and the configuration it writes works at once."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from model_server import ModelServer
from support import scripts

from kbtrain.cli import main
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.check_server import check_server
from kbtrain.llm.check_thoughts import LOOKS, check_thoughts


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


CASES = {
    "all": ({}, {"server_endpoint": "chat", "server_n": True, "server_logprobs": True}),
    "hosted": (
        {"logprobs": False, "missing": ("completions",)},
        {"server_endpoint": "chat", "server_n": True, "server_logprobs": False},
    ),
    "base model": (
        {"missing": ("chat/completions",)},
        {"server_endpoint": "completions", "server_n": True, "server_logprobs": True},
    ),
    "no n": ({"most": 1}, {"server_endpoint": "chat", "server_n": False, "server_logprobs": True}),
    "refuses n and log-probabilities": ({"unknown": ("n", "logprobs")}, {"server_n": False, "server_logprobs": False}),
    "no stop": ({"unknown": ("stop",)}, {"server_extra": {"stop": None}}),
    "other limit": ({"unknown": ("max_tokens",)}, {"server_limit": "max_completion_tokens"}),
    "no seeds": ({"unknown": ("seed",)}, {"server_extra": {"seed": None}, "server_logprobs": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_configuration_fits_the_server(case, tmp_path, capsys, question):
    abilities, expected = CASES[case]
    path = tmp_path / "server.yaml"
    with ModelServer(**abilities) as server:
        assert main(["check-server", server.url, "--output", str(path)]) == 0
        assert main(["check-server", server.url, "--output", str(path)]) == 2  # nothing is overwritten
        settings = yaml.safe_load(path.read_text())
        assert {key: settings[key] for key in expected} == expected
        assert len(server.requests) <= 25
        if settings["server_endpoint"] == "chat":  # the tokenizer of a model that is nowhere is not asked for
            config = build(LLMConfig, None, {**settings, "max_new_tokens": 9})
            (made,) = [one for group in open_llm(config).answer([AnswerRequest(question("q"), "llm", None, 3)])
                       for one in group]  # fmt: skip
            assert len(made.samples) == 3
            limits = {key: server.requests[-1].get(key) for key in ("max_tokens", "max_completion_tokens")}
            other = case == "other limit"
            assert limits == {"max_tokens": None if other else 9, "max_completion_tokens": 9 if other else None}
    said, refused = capsys.readouterr()
    assert "exists already" in refused
    assert "kbtrain run sample --config" in said and all(word in said for word in ("logprobs", "endpoint", "reasoning"))
    assert build(scripts.load("data_gen/sample.py").SampleConfig, path, {"run": tmp_path}).conditions == ("llm", "rag")
    build(scripts.load("data_gen/judge.py").JudgeConfig, path, {"run": tmp_path, "judge": "llm"})  # the same file


def test_a_busy_server_is_waited_for_and_keeps_its_endpoint(monkeypatch, capsys):
    waited = []
    monkeypatch.setattr("kbtrain.llm.check_server.time", SimpleNamespace(sleep=waited.append))
    with ModelServer(("busy_seconds", "", "", "broken")) as server:
        found = check_server(server.url)
    assert (found.settings["server_endpoint"], dict(found.refused), found.answers) == ("chat", {}, 30)
    assert found.n_requests == 17 and len(waited) == 2 and waited[0] >= 0.4
    with ModelServer(("broken",) * 30) as server, pytest.raises(UserError, match=r"chat: status 500 \(internal\)"):
        check_server(server.url)
    said = rf"server {server.url}: status 500 \(internal\); the next try in \d\.\d s"
    assert re.fullmatch(said, capsys.readouterr().err.splitlines()[-1])


def test_an_error_in_place_of_an_answer_is_waited_for_and_is_not_an_answer(monkeypatch):
    monkeypatch.setattr("kbtrain.llm.check_server.time", SimpleNamespace(sleep=lambda seconds: None))
    with ModelServer(("no_choices",) * 2) as server:
        assert check_server(server.url).settings["server_endpoint"] == "chat"
    with ModelServer(("no_choices",) * 6) as server, pytest.raises(UserError, match=r"status 502 \(out of luck\)"):
        check_server(server.url)
    with ModelServer(("empty_choices",)) as server:
        assert check_server(server.url).settings["server_endpoint"] == "completions"
    neither = ModelServer(unknown=("messages", "prompt"))
    with neither as server, pytest.raises(UserError, match="does it want other fields"):
        check_server(server.url)


def test_what_stops_it_is_one_line_with_what_to_do(tmp_path, monkeypatch, capsys):
    with ModelServer(models=("a-model", "b-model")) as server:
        with pytest.raises(UserError, match="has 2 models; choose one by --model: a-model, b-model"):
            check_server(server.url)
        with pytest.raises(UserError, match="did you mean 'a-model'"):
            check_server(server.url, "a-modell")
        assert check_server(server.url, "b-model").model.name == "b-model"
    neither = ModelServer(missing=("completions", "chat/completions"))
    with neither as server, pytest.raises(UserError, match=r"answers neither chat nor completions .*no such path"):
        check_server(server.url)
    advice = "variable MY_KEY, or name another one: .*--key-env NAME --output server.yaml`, then `kbtrain fit --config"
    with ModelServer(("no_key",) * 20) as server, pytest.raises(UserError, match=advice):
        check_server(server.url, key_env="MY_KEY")
    with pytest.raises(UserError, match="no connection"):
        check_server(server.url)
    with (
        ModelServer() as server,
        pytest.raises(UserError, match=r"no answer within 0\.2 s to a prompt of about \d+ tok.*600"),
    ):
        server.delay = 1.0
        monkeypatch.setattr("kbtrain.llm.server_requests.SILENCE", 0.1)
        check_server(server.url, seconds=0.2)
    assert f"server {server.url}: waiting for its answer to /chat/completions, 0 s left\n" in capsys.readouterr().err
    assert not list(Path(tmp_path).iterdir())


def test_a_server_whose_answers_say_nothing_is_refused_unless_allowed(tmp_path, monkeypatch, capsys):
    """Every output is used up by its thought, however long: a configuration would store no answer."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def think(body, i):
        return "<think>\nIt may be Lyon." + ("" if body.get("stop") else "\nOr Paris.")

    with ModelServer(say=think) as server:
        written = tmp_path / "server.yaml"
        assert main(["check-server", server.url, "--output", str(written)]) == 2
        said = capsys.readouterr()
        assert not written.exists()
        assert "reasoning the model reasons before it answers" in said.out and "100.0% reasoning alone" in said.err
        assert "--allow-empty writes" in said.err and said.err.count("\n") == 1
        assert main(["check-server", server.url, "--output", str(written), "--allow-empty"]) == 0
    assert yaml.safe_load(written.read_text())["max_thought_tokens"] == 512


def say_town(body, i):
    """An answer to the question that differs by it."""
    return f"{body['messages'][-1]['content'].split()[2].strip('.,')} {body.get('seed', 0) % 7}"


class Thinker(ModelServer):
    """Answers only where a field asks its model not to think; 403 for a field; a window of some tokens; sources."""

    def __init__(self, needs=None, forbidden=None, window=None, cites=False, **settings):
        super().__init__(missing=("completions",), say=say_town, **settings)
        self.needs, self.forbidden, self.window, self.cites = needs, forbidden, window, cites

    def reply(self, asked):
        if asked.method == "POST" and self.needs and self.needs not in asked.body:
            return 400, {"error": {"message": f"{self.needs} must be set to false for non-streaming calls"}}
        if asked.method == "POST" and self.forbidden in asked.body:
            return 403, {"error": {"message": "this needs another plan"}}
        status, body, *rest = super().reply(asked)
        if self.window and "usage" in body:
            body["usage"]["prompt_tokens"] = min(body["usage"]["prompt_tokens"], self.window)
        return (status, {**body, "citations": ["https://a.org"]} if self.cites else body, *rest)


def test_a_server_that_answers_only_without_thoughts_gets_the_field(monkeypatch):
    with Thinker(needs="enable_thinking") as server:
        assert check_server(server.url).settings["server_extra"] == {"enable_thinking": False}


def test_403_for_one_field_is_not_the_key_s():
    with Thinker(forbidden="seed") as server:
        found = check_server(server.url)
    assert found.settings["server_extra"] == {"seed": None} and "another plan" in found.refused["seed"]


def test_a_name_outside_the_list_is_asked():
    with Thinker(owner="gateway") as server:
        assert check_server(server.url, "other").model.name == "other"
    none = Thinker(owner="gateway", unknown=("model",))
    with none as server, pytest.raises(UserError, match=r"list of models has no 'tinny': did you mean 'tiny'"):
        check_server(server.url, "tinny")


@pytest.mark.parametrize(
    ("settings", "line"),
    [({"window": 300}, "it reads 300 tokens of a longer prompt"), ({"cites": True}, "the model searches by itself")],
)
def test_a_server_whose_answers_are_worth_nothing_stops_it(settings, line, tmp_path, capsys):
    path = tmp_path / "server.yaml"
    with Thinker(**settings) as server:
        assert main(["check-server", server.url, "--output", str(path)]) == 2
        assert line in capsys.readouterr().err and not path.exists()
        assert main(["check-server", server.url, "--output", str(path), "--allow-empty"]) == 0
    assert yaml.safe_load(path.read_text()).get("max_prompt_tokens") == (236 if "window" in settings else None)


def test_answers_that_begin_alike_stop_it_and_one_answer_to_all_is_named():
    with ModelServer(missing=("completions",), say=lambda body, i: f"<hmm> {say_town(body, i)} it is") as server:
        assert "begin with '<hmm>'" in str(check_server(server.url).problem)
    with ModelServer(say=lambda body, i: "Lyon") as server:
        assert "different questions have one answer ('Lyon')" in check_server(server.url).thoughts.line()


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
        "the model does not reason before it answers; 5 answers: 0.0% empty, 0.0% cut before they began, 0.0% "
        "reasoning alone"
    )


@pytest.mark.parametrize(("heeds", "refuses"), [
    ("chat_template_kwargs", ()), ("reasoning_effort", ("chat_template_kwargs",)), ("thinking", ()),
    ("enable_thinking", ("thinking", "reasoning_effort")), ("reasoning", ()),
])  # fmt: skip
@pytest.mark.parametrize("how", [{}, {"parser": "reasoning_content"}, {"hidden": True}])
def test_asking_not_to_think_is_tried_first(heeds, refuses, how):
    found = check(Model(heeds=heeds, refuses=refuses, **how))
    assert set(found.extra) == {heeds} and not found.settings and not found.silent.kinds
    assert "reasoning is turned off" in found.line()


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
