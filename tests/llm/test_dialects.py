"""Servers of twelve makers: check-server finds the fields that each takes, and sampling asks by what it writes."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from model_server import MAKERS, DialectServer, openai_error

from kbtrain.cli import main
from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.llm.backends import LLMConfig, open_llm
from kbtrain.llm.base import AnswerRequest, cut_to_bytes, request_seed
from kbtrain.llm.check_server import check_server
from kbtrain.llm.dialect import find_model, read_models
from kbtrain.llm.server_requests import read_error
from kbtrain.net import Retry

QUICK = Retry(tries=3, first=0.01, longest=0.02)
KEY = "sk-a-key-of-azures-1234"


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def ask(question):
    def answered(config, n, greedy=True, text="Who?", evidence=None):
        condition = "llm" if evidence is None else "rag"
        request = AnswerRequest(question("q", text=text), condition, evidence, n, greedy)
        (made,) = itertools.chain.from_iterable(open_llm(config).answer([request]))
        return made

    return answered


NO_LOGPROBS = {"server_logprobs": False}
FOUND: dict[str, dict[str, Any]] = {
    "gpt-5": {
        **NO_LOGPROBS, "server_n": True, "server_limit": "max_completion_tokens", "server_greedy": False,
        "server_extra": {"stop": None, "top_p": None},
    },
    "o1-preview": {
        **NO_LOGPROBS, "server_n": True, "server_limit": "max_completion_tokens",
        "server_extra": {"stop": None, "temperature": None, "top_p": None},
    },
    "azure": {"server_n": True, "server_logprobs": True, "server_key_header": "api-key"},
    "llama.cpp": {"server_n": 4, "server_logprobs": True, "max_prompt_tokens": 2048 - 64 - 64},
    "vllm": {"server_n": True, "server_logprobs": True, "max_prompt_tokens": 512 - 64 - 64},
    "mistral": {**NO_LOGPROBS, "server_n": True, "server_extra": {"seed": None}},
    "fastapi": {"server_n": True, "server_logprobs": True, "server_extra": {"stop": None}},
    "gemini": {**NO_LOGPROBS, "model": "models/m", "server_n": False, "server_extra": {"seed": None}},
    "ollama": {**NO_LOGPROBS, "model": "m:latest", "server_n": False},
    "lm studio": {**NO_LOGPROBS, "server_n": False},
    "together": {"server_n": True, "server_logprobs": True},
    "litellm": {"server_n": True, "server_logprobs": True},
}  # fmt: skip
USUAL = {"backend": "openai", "model": "m", "server_endpoint": "chat"}


@pytest.mark.parametrize("maker", MAKERS)
def test_sampling_asks_by_what_check_server_writes(maker, tmp_path, ask):
    path, answers = tmp_path / "server.yaml", 10
    with DialectServer(maker) as server:
        assert main(["check-server", server.url, "--model", "m", "--output", str(path)]) == 0
        settings = yaml.safe_load(path.read_text())
        assert settings == {**USUAL, "server_url": server.url, **FOUND[maker]}
        server.requests.clear()
        made = ask(build(LLMConfig, path, {"server_tries": 2}), answers)
    assert made.refused is None and len(made.samples) == answers and made.greedy is not None
    seed = request_seed("0", "q", "llm")
    if "seed" in settings.get("server_extra", {}):
        assert {sample.text for sample in made.samples} <= {f"answer {i}" for i in range(answers)}
    else:  # one request or many: the same seeds
        assert [sample.text for sample in made.samples] == [f"answer {seed + i}" for i in range(answers)]
    most = {True: answers, False: 1}.get(settings["server_n"], settings["server_n"])
    assert len(server.requests) == 1 + -(-answers // most)  # none was refused or asked again


def test_the_longest_answer_and_the_number_of_answers_are_those_of_the_run(tmp_path):
    path = tmp_path / "server.yaml"
    with DialectServer("vllm") as server:
        more = ["--samples", "6", "--max-new-tokens", "200", "--output", str(path)]
        assert main(["check-server", server.url, *more]) == 0
        assert 200 in {body["max_tokens"] for body in server.requests}
        assert max(body.get("n", 1) for body in server.requests) == 6
    assert yaml.safe_load(path.read_text())["max_new_tokens"] == 200


def test_a_list_of_patterns_names_no_model():
    with DialectServer("litellm") as server, pytest.raises(UserError, match="name one by --model"):
        check_server(server.url)


@pytest.mark.parametrize(
    ("wanted", "listed", "found"), [ ("m", "m", "m"), ("m", "models/m", "models/m"), ("models/m", "m", "m"),
    ("m", "m:latest", "m:latest"), ("openai/gpt", "openai/*", "openai/gpt"), ("anything", "*", "anything"),
    ("maker/m:free", "maker/m", "maker/m:free"), ("m:8b", "m:latest", None), ("n", "m", None), ],
)  # fmt: skip
def test_the_names_of_a_model(wanted, listed, found):
    model = find_model(wanted, read_models(f'{{"data": [{{"id": "other"}}, {{"id": "{listed}"}}]}}'))
    assert (model.name if model else None) == found


def test_a_server_that_gives_fewer_answers_than_before_is_asked_more_often(ask):
    with DialectServer("llama.cpp") as server:
        made = ask(LLMConfig(backend="openai", model="m", server_url=server.url, server_endpoint="chat"), 10)
        # the one for a single answer is the short question, which shows that the fields are right
        sizes = [body.get("n", 1) for body in server.requests if body["temperature"] == 1.0]
    seed = request_seed("0", "q", "llm")
    assert [sample.text for sample in made.samples] == [f"answer {seed + i}" for i in range(10)]
    assert sizes == [10, 1, 5, 5, 2, 2, 2, 2, 2]


ERRORS = Path(__file__).with_name("server_errors.jsonl").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("row", map(json.loads, ERRORS), ids=str)
def test_what_an_error_says_of_prompt_account_and_hour(row):
    error, kind = read_error(row["status"], json.dumps(row["body"])), row["kind"]
    found = "quota" if error.is_quota else error.refusal or (f"wait {error.wait}" if error.wait else "none")
    assert found == kind or (str(error.status) == kind and error.refusal is None)


def test_an_account_without_quota_is_one_line_at_once(ask):
    quota = openai_error("You exceeded your current quota.", "insufficient_quota", status=429)
    with DialectServer("vllm", failures=(quota,) * 9) as server:
        config = LLMConfig(backend="openai", model="m", server_url=server.url, server_endpoint="chat")
        with pytest.raises(UserError, match="no quota left: add credit or take another key"):
            ask(config, 1)
        assert len(server.requests) == 1
        with pytest.raises(UserError, match="no quota left"):
            check_server(server.url)
        assert len(server.requests) == 2


def test_evidence_for_the_chat_endpoint_is_cut_to_the_prompts_room(ask, question):
    request = AnswerRequest(question("q"), "rag", "word " * 2000, 1)
    evidence, cut = cut_to_bytes(request, 500)
    whole = request.text(evidence)
    assert 1480 <= len(whole.encode()) <= 1500 and cut == -(-(10000 - len(evidence or "")) // 3)
    assert cut_to_bytes(request, 100_000) == (request.evidence, 0)
    with DialectServer("vllm") as server:  # 512 tokens of context: the whole evidence is refused, the cut one is not
        usual = {"backend": "openai", "model": "m", "server_url": server.url, "server_endpoint": "chat"}
        made = ask(build(LLMConfig, None, {**usual, "max_prompt_tokens": 384}), 1, evidence="word " * 2000)
        assert made.refused is None and made.evidence_cut > 2000
        made = ask(build(LLMConfig, None, {**usual, "max_prompt_tokens": 9000}), 1, evidence="word " * 2000)
    assert made.refused is not None and made.refused.startswith("context_length: status 400 (This model's maximum")
