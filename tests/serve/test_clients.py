"""The official clients of OpenAI and Anthropic, unchanged, against the server: answers, streams, errors, keys."""

import pytest
from serve_support import KNOWN, NEEDS, serving
from support.api_server import WORDS

from kbtrain.prompts.kbm import background

TEXT = "".join(WORDS)
FOUND = background(NEEDS, "en")  # the search of these tests finds the question
KEY = "a-key-of-sixteen-characters"


@pytest.fixture(autouse=True)
def fresh(upstream):
    upstream.asked.clear()
    upstream.fail = False


@pytest.fixture(scope="module")
def server(gate, upstream, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_text(f"{KEY}\n")
    with serving(gate, upstream=upstream.url, search="serve_support:echo", k=1, keys=keys) as running:
        yield running


@pytest.fixture(scope="module")
def openai_client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic_client(server):
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=server.url, api_key=KEY, max_retries=0) as client:
        yield client


def policy(reply):
    return reply.headers["x-kbtrain-retrieved"], reply.headers["x-kbtrain-reason"]


def error_events(server):
    """Answers of status 200 with an error inside, as the metric counts them."""
    return server.service.metrics.upstream_failures.labels("error-event")._value.get()


# OpenAI's


def test_openai_chat_whole_and_streamed(openai_client, upstream):
    asked = {"model": "stub", "messages": [{"role": "user", "content": NEEDS}]}
    reply = openai_client.chat.completions.with_raw_response.create(**asked)
    assert policy(reply) == ("1", "above-threshold")
    assert reply.parse().choices[0].message.content == TEXT
    assert upstream.body()["messages"][0]["content"] == FOUND + NEEDS
    chunks = list(openai_client.chat.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT


def test_openai_responses_of_text_are_gated(openai_client, upstream):
    reply = openai_client.responses.with_raw_response.create(model="stub", input=NEEDS, instructions="Be brief.")
    assert policy(reply) == ("1", "above-threshold") and reply.parse().output_text == TEXT
    assert upstream.body() == {"model": "stub", "input": FOUND + NEEDS, "instructions": "Be brief."}
    plain = openai_client.responses.with_raw_response.create(model="stub", input=KNOWN)
    assert policy(plain) == ("0", "below-threshold") and upstream.body() == {"model": "stub", "input": KNOWN}


def test_openai_responses_events_are_passed_on(openai_client, server, upstream):
    events = list(openai_client.responses.create(model="stub", input=NEEDS, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
    assert events[-1].type == "response.completed" and events[-1].response.output_text == TEXT
    upstream.fail = True
    before = error_events(server)
    *_, last = openai_client.responses.create(model="stub", input=NEEDS, stream=True)
    assert last.type == "response.failed" and error_events(server) == before + 1


def test_openai_embeddings_and_models_are_the_upstream_s(openai_client, server, upstream):
    reply = openai_client.embeddings.with_raw_response.create(model="e", input=NEEDS, encoding_format="float")
    assert policy(reply) == ("0", "ungated-route") and reply.parse().data[0].embedding == [0.25, -1.0]
    names = [model.id for model in openai_client.models.list()]
    assert names == ["stub", server.service.decider.loaded.name]
    assert openai_client.models.retrieve("stub").owned_by == "stand-in"
    assert openai_client.models.retrieve(names[-1]).owned_by == "kbtrain"


def test_openai_errors_are_the_client_s_own(openai_client, server):
    import openai

    with pytest.raises(openai.NotFoundError, match="File Not Found"):
        openai_client.models.retrieve("none")
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.responses.create(model="stub", input=[{"role": "user", "content": 3}])
    assert refused.value.param == "input" and "field 'content'" in refused.value.message
    wrong = openai_client.with_options(api_key="another-key-of-sixteen")
    with pytest.raises(openai.AuthenticationError, match="no valid API key"):
        wrong.embeddings.create(model="e", input="x")


# Anthropic's


def message(text=NEEDS, **more):
    return {"model": "stub", "max_tokens": 9, "messages": [{"role": "user", "content": text}], **more}


def test_anthropic_messages_are_gated(anthropic_client, upstream):
    reply = anthropic_client.messages.with_raw_response.create(**message(system="Be brief."))
    assert policy(reply) == ("1", "above-threshold") and reply.parse().content[0].text == TEXT
    assert upstream.body() == message(FOUND + NEEDS, system="Be brief.")
    plain = anthropic_client.messages.with_raw_response.create(**message(KNOWN))
    assert policy(plain) == ("0", "below-threshold") and upstream.body() == message(KNOWN)


def test_anthropic_events_are_passed_on(anthropic_client, upstream):
    import anthropic

    with anthropic_client.messages.stream(**message()) as stream:
        assert "".join(stream.text_stream) == TEXT
        assert stream.get_final_message().usage.output_tokens == 3
    upstream.fail = True
    with anthropic_client.messages.stream(**message()) as stream, pytest.raises(anthropic.APIError, match="Overloaded"):
        stream.get_final_message()


def test_anthropic_tokens_and_models_are_the_upstream_s(anthropic_client, upstream):
    asked = {"model": "stub", "messages": message()["messages"]}
    reply = anthropic_client.messages.with_raw_response.count_tokens(**asked)
    assert policy(reply) == ("0", "ungated-route") and reply.parse().input_tokens > 1
    assert [model.display_name for model in anthropic_client.models.list()] == ["Stub"]


def test_anthropic_errors_are_the_client_s_own(anthropic_client, server):
    import anthropic

    wrong = anthropic_client.with_options(api_key="another-key-of-sixteen")
    for ask in (lambda: wrong.messages.create(**message()), lambda: wrong.models.list()):
        with pytest.raises(anthropic.AuthenticationError) as refused:
            ask()
        assert refused.value.body["type"] == "error"
        assert refused.value.body["error"]["type"] == "authentication_error"
    with pytest.raises(anthropic.BadRequestError, match="field 'content'") as refused:
        anthropic_client.messages.create(**message(3))
    assert refused.value.body["error"]["type"] == "invalid_request_error"


def test_anthropic_s_key_header_is_a_key_and_stays_here(server, upstream):
    """Clients before anthropic 2.x send the key as X-Api-Key."""
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    assert server.post("/v1/messages", message(), headers).status == 200
    assert "x-api-key" not in upstream.asked[-1][2] and "authorization" not in upstream.asked[-1][2]
    refused = server.post("/v1/messages", message(), {**headers, "x-api-key": "x" * 20})
    assert (refused.status, refused.json["type"]) == (401, "error")
