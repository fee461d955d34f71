"""llama.cpp's own server and vLLM's CPU build behind ``kbtrain serve``, by OpenAI's client: ``make test-servers``."""

import json

import httpx2
import pytest
from serve_support import KNOWN, NEEDS, serving
from support.llamacpp_server import SERVERS_PYTHON, llamacpp
from support.vllm_server import VLLM_PYTHON, vllm_server

MODEL = "smollm2-135m-instruct"
OPEN = {
    "llama.cpp": (SERVERS_PYTHON, "make test-servers", lambda: llamacpp(2048, 2)),
    "vllm": (VLLM_PYTHON, "make vllm-env, then make test-servers", lambda: vllm_server(MODEL)),
}


@pytest.fixture(scope="module", params=list(OPEN))
def upstream(request):
    python, command, start = OPEN[request.param]
    if not python:
        pytest.skip(f"needs an environment of its own: {command}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_PROXY", "127.0.0.1")
        with start() as url:
            yield url


@pytest.fixture(scope="module")
def server(upstream, gate):
    with serving(gate, upstream=upstream, search="serve_support:echo", k=1, window=3) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as one:
        yield one


@pytest.fixture(scope="module")
def model(client):
    return client.models.list().data[0].id


def asked(model, text, **more):
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0, **more}


def test_chats_are_gated_and_answered_whole_and_streamed(client, model):
    tokens = {}
    for text, retrieved in ((NEEDS, "1"), (KNOWN, "0")):
        reply = client.chat.completions.with_raw_response.create(**asked(model, text))
        assert reply.headers["x-kbtrain-retrieved"] == retrieved
        whole = reply.parse()
        tokens[retrieved] = whole.usage.prompt_tokens
        pieces = list(client.chat.completions.create(**asked(model, text), stream=True))
        streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert streamed == whole.choices[0].message.content and streamed
    assert tokens["1"] > tokens["0"] + 5  # the passage is in the prompt


def test_completions_and_responses_are_gated(client, model):
    reply = client.completions.with_raw_response.create(model=model, prompt=NEEDS, max_tokens=4)
    assert reply.headers["x-kbtrain-retrieved"] == "1" and reply.parse().choices[0].text
    reply = client.responses.with_raw_response.create(model=model, input=NEEDS, max_output_tokens=8, temperature=0)
    assert reply.headers["x-kbtrain-reason"] == "above-threshold" and reply.parse().output_text


def test_every_other_route_answers_as_the_upstream_itself(server, upstream, model):
    for method, path, body in (
        ("POST", "/v1/embeddings", {"model": model, "input": "hi"}),
        ("POST", "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": KNOWN}], "n": -1}),
        ("POST", "/v1/no-such-route", {}),
        ("GET", f"/v1/models/{model.replace('/', '%2F')}", None),
    ):
        ours = server.ask(method, path, body)
        theirs = httpx2.request(method, upstream.removesuffix("/v1") + path, json=body, trust_env=False, timeout=120)
        assert ours.status == theirs.status_code, path
        assert bool(ours.body) is bool(theirs.content)


def test_a_follow_up_is_searched_for_with_its_question(server, model):
    texts = [NEEDS, "It opens at nine.", "And on Mondays?"]
    messages = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]
    reply = server.post("/v1/chat/completions", {**asked(model, ""), "messages": messages})
    assert reply.status == 200 and reply.headers["x-kbtrain-context"] == "window"
    assert json.loads(reply.body)["choices"][0]["message"]["content"]
