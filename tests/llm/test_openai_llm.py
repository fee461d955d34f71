"""The server back end against a local server that fails in every way a server can."""

import contextlib
import itertools
import re
import socket
import threading
import time
from dataclasses import replace

import pytest
from model_server import ModelServer

from kbtrain.errors import UserError
from kbtrain.llm.base import AnswerRequest, Sampling, request_seed
from kbtrain.llm.dialect import Dialect, Server
from kbtrain.llm.openai_llm import OpenAILLM
from kbtrain.llm.replies import OutputRules, RepliesSoFar, samples, token_count, top_logprobs, unusable_parts
from kbtrain.llm.server_requests import NoReply, PromptRefusal, _check_ends, _open_requests, azure_hint
from kbtrain.net import Retry, retry_after
from kbtrain.prompts.kbm import answer_prompt, encode

QUICK = Retry(tries=4, first=0.01, longest=0.02)
PATIENT = Retry(tries=40, first=0.01, longest=0.02)
PASSING = (
    "busy", "busy_seconds", "busy_date", "broken", "gateway", "hang_up", "cut_off", "too_late", "no_json", "no_choices",
    "empty_choices",
)  # fmt: skip


@pytest.fixture
def open_llm(tokenizer, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def opened(server, chat=False, sampling=None, **settings):
        dialect = Dialect(**{key: settings.pop(key) for key in Dialect.model_fields if key in settings})
        given = {"chat": chat, "timeout": 60.0, "retry": QUICK, "dialect": dialect, **settings}
        how = Server(server.url, "tiny", **given)
        return OpenAILLM("tiny", None if chat else tokenizer, sampling or Sampling(max_prompt_tokens=300), how)

    return opened


@pytest.fixture
def asks(question):
    return [AnswerRequest(question(f"q{i}", text=f"Where is town {i}?"), "llm", None, n=3) for i in range(4)]


def answered(llm, asks, done=frozenset()):
    return sorted(itertools.chain.from_iterable(llm.answer(asks, done)), key=lambda made: made.question_id)


def expected_texts(ask):
    seed = request_seed("0", ask.question.id, ask.condition)
    return [f"answer {seed + i}" for i in range(ask.n)]


def test_answers_are_the_servers_with_seeds_tokens_and_logprobs(open_llm, asks, tokenizer):
    with ModelServer() as server:
        found = answered(open_llm(server), asks)
        sent = server.requests
    assert [made.question_id for made in found] == ["q0", "q1", "q2", "q3"]
    for made, ask in zip(found, asks, strict=True):
        assert [sample.text for sample in made.samples] == expected_texts(ask)
        assert [sample.index for sample in made.samples] == [0, 1, 2]
        assert (made.greedy.index, made.greedy.text, made.greedy.n_tokens) == (-1, "greedy", 2)
        assert {(s.n_tokens, s.finish, s.logprob) for s in made.samples} == {(3, "eos", -0.75)}
        ids = encode(tokenizer, answer_prompt(ask.question, "llm"))
        assert made.prompt_tokens == len(ids)
        assert sum(request["prompt"] == ids for request in sent) == 2  # one greedy, one for all samples
        seeds = [open_llm(server)._how(ask, index)["seed"] for index in (-1, 0, 1, 2)]  # one where none is greedy
        assert len({*seeds}) == 4
        assert seeds[0] == open_llm(server)._how(replace(ask, n=0), -1)["seed"] != seeds[1]  # as a pilot asks
    assert {request["path"] for request in sent} == {"/v1/completions"}
    assert all(request["key"] is None for request in sent)


@pytest.mark.parametrize("failure", PASSING)
def test_a_failure_that_passes_changes_no_answer_and_is_said_once(failure, open_llm, asks, monkeypatch, capsys):
    monkeypatch.setattr("kbtrain.llm.server_requests.SILENCE", 0.001)
    _open_requests.cache_clear()  # an earlier test's server may have had this port, and its line
    late = failure == "too_late"  # the only one that must not be waited for
    with ModelServer(failures=(failure, failure)) as server:
        found = answered(open_llm(server, timeout=1.0 if late else 60.0, retry=PATIENT if late else QUICK), asks)
        assert len(server.requests) >= 10 if late else len(server.requests) == 10  # 4 greedy, 4 for samples, 2 failed
    assert [[s.text for s in made.samples] for made in found] == [expected_texts(ask) for ask in asks]
    assert re.fullmatch(rf"server {server.url}/: \d requests? waiting: \S.*\n", capsys.readouterr().err)


def test_a_server_that_stays_ill_is_one_line_and_what_was_finished_came_out(open_llm, asks):
    with ModelServer(failures=("broken",) * 100) as server:
        server.failures[:2] = []
        with pytest.raises(UserError, match=r"status 500 \(internal\), 4 times; what was finished is kept") as caught:
            answered(open_llm(server, asked_at_once=1), asks)
    assert "\n" not in str(caught.value)
    with ModelServer() as server:
        llm, found = open_llm(server, asked_at_once=1), []
        with pytest.raises(UserError):
            for group in llm.answer(asks):
                found += group
                server.failures[:] = ["broken"] * 100
    assert [made.question_id for made in found] == ["q0"]


@pytest.mark.parametrize(("failure", "message"), [("no_key", r"status 401 \(no key\); set the key"),
    ("no_model", r"status 404 \(model not found\); check .*server_endpoint")])  # fmt: skip
def test_what_does_not_pass_is_said_at_once(failure, message, open_llm, question):
    with ModelServer(failures=(failure,)) as server:
        with pytest.raises(UserError, match=message) as caught:
            answered(open_llm(server), [AnswerRequest(question("q"), "llm", None, n=2, greedy=False)])
        assert len(server.requests) == 1
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("way", ["n in one", "n requests", "server that knows no n"])
def test_n_answers_are_the_same_in_one_request_or_many(way, open_llm, asks):
    with ModelServer(most=1 if way == "server that knows no n" else 100) as server:
        found = answered(open_llm(server, most=1 if way == "n requests" else None), asks)
        n_requests = len(server.requests)
    assert [[s.text for s in made.samples] for made in found] == [expected_texts(ask) for ask in asks]
    # one greedy request a question, and then 1, 3, or (where nobody knew yet) 1 + 2
    assert n_requests == {"n in one": 8}.get(way, 16)


def test_no_more_requests_are_under_way_than_allowed_and_slow_ones_are_said(open_llm, question, monkeypatch, capsys):
    monkeypatch.setattr("kbtrain.llm.server_requests.SILENCE", 0.001)
    monkeypatch.setattr("kbtrain.llm.server_requests.MINUTE", 0.01)
    asks = [AnswerRequest(question(f"q{i}"), "llm", None, n=4) for i in range(12)]
    with ModelServer() as server:
        server.delay = 0.02
        answered(open_llm(server, asked_at_once=3, most=1), asks)
        assert len(server.requests) == 12 * 5 and 2 <= server.busiest <= 3
    assert re.match(rf"server {server.url}/: \d requests? waiting: no answer for 0 s\n", capsys.readouterr().err)


def test_chat_leaves_the_rendering_to_the_server(open_llm, question):
    ask = AnswerRequest(question("q", text="Who?"), "rag", "It was Ann.", n=2)
    with ModelServer() as server:
        (made,) = answered(open_llm(server, chat=True), [ask])
        request = server.requests[-1]
    assert request["path"] == "/v1/chat/completions" and "prompt" not in request
    assert request["messages"] == [{"role": "user", "content": answer_prompt(ask.question, "rag", "It was Ann.")}]
    assert [sample.text for sample in made.samples] == expected_texts(ask)
    assert made.prompt_tokens == 17 and made.samples[0].logprob == -0.75


def test_a_server_without_logprobs_is_warned_of_or_declared(open_llm, asks):
    with ModelServer(logprobs=False) as server:
        words = "16 answers have no log-probabilities that can be used: 0 is stored for them"
        with pytest.warns(UserWarning, match=words):
            found = answered(open_llm(server), asks)
        assert {(s.logprob, s.text != "") for made in found for s in made.samples} == {(0.0, True)}
        found = answered(open_llm(server, chat=True, logprobs=False, most=1), asks)
        assert {(s.logprob, s.n_tokens) for made in found for s in made.samples} == {(0.0, 3)}
        together = answered(open_llm(server, chat=True, logprobs=False), asks)
        assert {(s.logprob, s.n_tokens) for made in together for s in made.samples} == {(0.0, 3)}


def test_the_tokens_of_a_reply_are_shared_out_among_its_answers():
    reply = {"choices": [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(("a" * 30, "b"))]}
    lengths = lambda used: [s.n_tokens for s in samples({**reply, **used}, 0, 2, OutputRules(), None)]  # noqa: E731
    assert lengths({"usage": {"completion_tokens": 31}}) == [30, 1]
    assert lengths({"usage": {"completion_tokens": 3}}) == [3, 1]  # none of nothing
    assert lengths({}) == [8, 1]  # a quarter of their bytes
    message = {"role": "assistant", "content": "Paris", "reasoning_content": "It is the capital. " * 90}
    one = {"message": message, "logprobs": {"content": [{"logprob": -1}]}, "finish_reason": "stop"}
    thinking = {"choices": [one], "usage": {"completion_tokens": 500}}  # log-probabilities of the text alone
    assert [s.n_tokens for s in samples(thinking, 0, 1, OutputRules(), None)] == [500]
    both = {"choices": [one, {**one, "index": 1}], "usage": {"completion_tokens": 3}}  # of all that was written
    assert [s.n_tokens for s in samples(both, 0, 2, OutputRules(), None)] == [1, 1]


def test_fields_can_be_added_and_taken_out(open_llm, question):
    sampling = Sampling(temperature=0.7, top_k=5, top_p=0.9, stop=(), max_new_tokens=9, max_prompt_tokens=300)
    with ModelServer() as server:
        llm = open_llm(server, sampling=sampling, extra={"min_p": 0.1, "top_k": None})
        answered(llm, [AnswerRequest(question("q"), "llm", None, n=1, greedy=False)])
        (request,) = server.requests
    assert request.keys() == {"path", "key", "model", "prompt", "max_tokens", "temperature", "top_p", "min_p", "seed",
                              "logprobs"}  # fmt: skip
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.7, 0.9, 9)


def test_connecting_names_a_wrong_address_or_model(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ModelServer() as server:
        with pytest.raises(UserError, match=r"has no model 'tyny'; did you mean 'tiny'\?"):
            OpenAILLM.connect("m", Sampling(), Server(server.url, "tyny", chat=True))
        with pytest.raises(UserError, match="no such folder"):
            OpenAILLM.connect("./no/tokenizer", Sampling(), Server(server.url, "tiny"))
    with pytest.raises(UserError, match=r"no connection .* is it running"):
        OpenAILLM.connect("m", Sampling(), Server(server.url, "tiny", chat=True))
    with pytest.raises(UserError, match="server_url"):
        OpenAILLM.connect("m", Sampling(), Server("localhost:8000/v1", "tiny", chat=True))


def test_one_models_tokens_are_not_sent_to_another(monkeypatch, tokenizer, tmp_path):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    tokenizer.save_pretrained(tmp_path)
    with ModelServer() as server:
        with pytest.raises(UserError, match="sent as ids to 'tiny', another model; set server_endpoint: chat"):
            OpenAILLM.connect(str(tmp_path), Sampling(), Server(server.url, "tiny"))
        OpenAILLM.connect(str(tmp_path), Sampling(), Server(server.url, "tiny", alias=True))
        OpenAILLM.connect("gpt-anything", Sampling(), Server(server.url, "tiny", chat=True))  # needs no tokenizer


def test_a_vllm_server_does_not_fill_in_the_models_own_sampling(monkeypatch, question):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ModelServer() as server:
        how = Server(server.url, "tiny", chat=True, dialect=Dialect(extra={"min_p": 0.2}))
        llm = OpenAILLM.connect("m", Sampling(top_k=5), how)
        answered(llm, [AnswerRequest(question("q"), "llm", None, n=2)])
        greedy, drawn = server.requests
    assert (drawn["top_k"], drawn["min_p"], drawn["repetition_penalty"]) == (5, 0.2, 1.0)
    assert (greedy["top_k"], greedy["temperature"]) == (0, 0.0)


def test_waits_double_up_to_the_longest_and_keep_to_the_servers_wish():
    retry = Retry(first=1.0, longest=8.0, patience=100.0)
    for failed, full in [(1, 1), (2, 2), (3, 4), (4, 8), (9, 8)]:
        waits = [retry.seconds(failed, None) for _ in range(50)]
        assert full / 2 <= min(waits) and max(waits) <= full and len(set(waits)) > 1
    assert (retry.seconds(1, 30.0), retry.seconds(1, 1e6)) == (30.0, 100.0)


@pytest.mark.parametrize(("text", "seconds"), [(None, None), ("7", 7), ("-1", 0), ("soon", None),
                                               ("900", 60), ("inf", 60), ("1e999", 60), ("nan", None), ("-inf", 0),
                                               ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
                                               ("Wed, 21 Oct 9999 07:28:00 GMT", 60)])  # fmt: skip
def test_retry_after_is_seconds_or_a_date_and_bounded(text, seconds):
    assert retry_after(text, 60.0) == seconds


@pytest.mark.parametrize(
    "change", [ {"choices": ["text"]}, {"choices": [{"text": 3, "logprobs": {"token_logprobs": [-1.0]}}]},
    {"choices": [{"index": "first", "text": "x"}]}, {"choices": {"text": "x"}},
    {"choices": [{"message": "x", "logprobs": {"token_logprobs": [-1.0]}}]}, *(
    {"choices": [{**wrong, "logprobs": {"token_logprobs": [-1.0]}}]} for wrong in ( {}, {"message": {}},
    {"message": []}, {"message": ""}, {"message": {"content": []}}, {"message": {"content": [{"type": "text"}]}},
    {"text": {}}, {"text": "x", "finish_reason": 3}, {"text": "x", "finish_reason": ["stop"]}, ) ), ],
)  # fmt: skip
def test_a_reply_of_wrong_types_is_one_line(change):
    with pytest.raises(UserError, match=r"^server: its reply does not follow OpenAI's protocol \(") as caught:
        samples(change, 0, 1, OutputRules(), None)
    assert "\n" not in str(caught.value)


def test_halves_of_surrogate_pairs_are_replaced(open_llm, asks):
    with ModelServer(say=lambda body, place: f"{place}\ud800\ud83d") as server:
        found = answered(open_llm(server), asks)  # 4 greedy answers, 12 drawn
    assert [sample.text for sample in found[0].samples] == [f"{i}\ufffd\ufffd" for i in range(3)]


@pytest.mark.parametrize(
    "choice", [{"message": {"content": None}}, {"message": {"role": "assistant"}}, {"text": None}, {"text": ""}]
)
def test_an_answer_that_is_null_or_empty_is_empty(choice):
    reply = {"choices": [{**choice, "logprobs": {"content": []}}]}
    assert [s.text for s in samples(reply, 0, 1, OutputRules(), None)] == [""]


@pytest.mark.parametrize(
    "wrong",
    [
        None, [], "none", {"content": None}, {"content": {}}, {"content": ""}, {"content": []}, {"content": [{}]},
        {"content": [None]}, {"content": [{"logprob": None}]}, {"content": [{"logprob": "-1"}]},
        {"token_logprobs": None}, {"token_logprobs": {}}, {"token_logprobs": []}, {"token_logprobs": [False]},
        {"token_logprobs": [None, -1.0]}, {"token_logprobs": [-1.0, float("-inf")]},
        {"token_logprobs": [float("nan")]}, {"token_logprobs": [-1e308, -1e308]}, {"token_logprobs": [0.5]},
    ],
)  # fmt: skip
def test_log_probabilities_that_cannot_be_used_cost_themselves_alone(wrong):
    reply = {"choices": [{"text": "x y", "logprobs": wrong}], "usage": {"completion_tokens": 3}}
    (made,) = samples(reply, 0, 1, OutputRules(), None)
    assert (made.text, made.logprob, made.n_tokens) == ("x y", 0.0, 3)
    assert unusable_parts(reply, True) == {"logprobs": 1, "usage": 0}
    assert unusable_parts(reply, False) == {"logprobs": 0, "usage": 0}


@pytest.mark.parametrize(
    ("usage", "wrong"),
    [(None, 0), ({}, 0), ({"completion_tokens": None}, 0), ({"completion_tokens": 3}, 0), ([1], 1), ("3", 1),
     ({"completion_tokens": -1}, 1), ({"completion_tokens": float("nan")}, 1), ({"prompt_tokens": 10**30}, 1),
     ({"prompt_tokens": "x"}, 1)],
)  # fmt: skip
def test_a_usage_that_cannot_be_used_costs_itself_alone(usage, wrong):
    reply = {"choices": [{"text": "abcdefgh", "logprobs": None}], "usage": usage}
    assert unusable_parts(reply, False)["usage"] == wrong
    assert samples(reply, 0, 1, OutputRules(), None)[0].n_tokens == (3 if usage == {"completion_tokens": 3} else 2)
    assert token_count(reply, "prompt_tokens") is None


def test_top_log_probabilities_may_lack_some():
    place = {"token": "Yes", "top_logprobs": [{"token": "Yes", "logprob": -0.5}, {"token": "No", "logprob": None},
                                              {"token": "no", "logprob": float("-inf")}]}  # fmt: skip
    reply = {"choices": [{"logprobs": {"content": [place, {"token": ".", "top_logprobs": None}]}}]}
    assert top_logprobs(reply) == [[("Yes", -0.5)]]
    for none in (None, {"content": None}, {"content": [{"token": ".", "top_logprobs": None}]}):
        with pytest.raises(UserError, match="gives no top log-probabilities"):
            top_logprobs({"choices": [{"logprobs": none}]})


@contextlib.contextmanager
def endless(part, pause):
    """Address of a server that repeats ``part`` for ever as the body of its answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    caller, _ = server.accept()
                    with caller, contextlib.suppress(OSError):
                        caller.recv(65536)
                        caller.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
                        while True:
                            caller.sendall(part)
                            time.sleep(pause)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


@pytest.mark.parametrize(("part", "pause", "seconds", "message"), [
    (b" ", 0.05, 0.3, "no whole answer in time, 2 times"),
    (b" " * 2**20, 0.0, 9.0, "a reply of more than 1 MiB, 2 times")])  # fmt: skip
def test_a_reply_without_end_is_given_up(part, pause, seconds, message, question, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("kbtrain.llm.server_requests.LARGEST", 2**20)
    with endless(part, pause) as url:
        server = Server(url, "tiny", chat=True, timeout=seconds, retry=Retry(tries=2, first=0.0))
        with pytest.raises(UserError, match=message):
            answered(OpenAILLM("m", None, Sampling(), server), [AnswerRequest(question("q"), "llm", None, n=1)])


def ended(reason, content="Par", **more):
    return {"choices": [{"message": {"content": content, **more}, "finish_reason": reason}]}


WHOLE = ("stop", "eos", "STOP", "length", "max_tokens", "tool_calls", "end_turn", "", None)
HALF = ("abort", "network_error", "insufficient_system_resource", "error", "unheard_of")
REFUSED = ("content_filter", "sensitive", "refusal", "SAFETY", "RECITATION")


def test_half_an_answer_is_asked_for_again_and_a_refused_one_is_no_empty_one():
    for reply in (*map(ended, WHOLE), ended("stop", "Paris", refusal=None)):
        assert _check_ends(reply) is None
    for reason in HALF:
        with pytest.raises(NoReply, match=f"an answer that broke off .*{reason}") as caught:
            _check_ends(ended(reason))
        assert caught.value.is_empty
    for reply in (*(ended(reason, None) for reason in REFUSED), ended("stop", None, refusal="I cannot help.")):
        with pytest.raises(PromptRefusal, match="content_filter"):
            _check_ends(reply)


def counted(prompts):
    """As of a server that has counted these prompts: (their length, its count)."""
    so_far = RepliesSoFar("server s")
    for tokens, n in prompts:
        so_far.add_prompt(tokens, n)


def test_a_server_that_reads_a_part_of_long_prompts_is_stopped():
    counted([(200 + i, 400 + 2 * i) for i in range(50)])
    counted([(200 + i % 3, 400) for i in range(50)])  # alike in length
    counted([(100 + i, 80) for i in range(50)])  # short
    counted([(500 + i, 17) for i in range(50)])  # no count
    for cut in ([(500 + i, 375) for i in range(10)], [(500 + 9 * i, min(375 + 20 * i, 500)) for i in range(30)]):
        with pytest.raises(UserError, match=r"it reads at most (375|500) tokens of prompts that are longer"):
            counted(cut)
    with pytest.raises(UserError, match="raise its context"):
        counted([(1000, 300 - i) for i in range(10)])


@pytest.mark.parametrize(
    "sign",
    [
        {"citations": ["https://a.org"]}, {"search_results": [{"title": "x"}]}, {"usage": {"num_search_queries": 1}},
        {"choices": [{"message": {"content": "Paris ([a.org](https://a.org))"}}]},
        {"choices": [{"message": {"content": "Paris [1][2]"}}]},
        {"choices": [{"message": {"content": "Paris", "context": {"citations": [{"url": "x"}]}}}]},
        {"choices": [{"message": {"content": "x", "annotations": [{"type": "url_citation"}]}}]},
    ],
)  # fmt: skip
def test_plain_answers_with_citations_stop_the_run(sign):
    so_far = RepliesSoFar("server s")
    for _ in range(20):
        so_far.add_plain({"choices": [{"message": {"content": "x[1] is y", "annotations": []}}], "citations": []})
    with pytest.raises(UserError, match="the model searches by itself"):
        for _ in range(10):
            so_far.add_plain(sign)


def test_a_firewall_s_403_refuses_one_prompt_and_a_key_s_stops(open_llm, question):
    asks = [AnswerRequest(question(f"q{i}", text="DROP TABLE x" if i == 1 else f"Who is {i}?"), "llm", None, n=1)
            for i in range(3)]  # fmt: skip
    with ModelServer(forbids=lambda text: "DROP" in text) as server:
        found = answered(open_llm(server, chat=True), asks)
    assert [made.refused is not None for made in found] == [False, True, False]
    assert "status 403" in found[1].refused
    with ModelServer(forbids=lambda text: True) as server, pytest.raises(UserError, match="is the key allowed"):
        answered(open_llm(server, chat=True), asks)


def test_an_address_of_azure_without_its_version_is_named():
    assert "api-version" in azure_hint("https://x.openai.azure.com/openai/deployments/m")
    assert azure_hint("https://x.openai.azure.com/openai/deployments/m?api-version=1") == ""
    assert azure_hint("https://x.openai.azure.com/openai/v1") == azure_hint("http://h/v1") == ""
