"""A model in this process behind the server: the official client, streaming and not; settings used or refused."""

import asyncio
import json

import pytest
import torch
from serve_support import KNOWN, NEEDS, probe_folder, serving
from support.servers import wait_until
from tiny_kbm import CHAT, make_folder, make_tokenizer

from kbtrain.errors import UserError
from kbtrain.gate.card import CARD
from kbtrain.llm.sampler.draw import DrawnTokens
from kbtrain.prompts.own import OwnPrompts
from kbtrain.serve.local_model import LocalModel


@pytest.fixture(scope="module")
def openai():
    return pytest.importorskip("openai")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def local(gate, folder):
    with serving(gate, model=str(folder), search="serve_support:echo") as running:
        yield running


@pytest.fixture(scope="module")
def client(local, openai):
    with openai.OpenAI(base_url=f"{local.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def ask(text):
    return [{"role": "user", "content": text}]


def test_the_official_client_streams_what_it_gets_whole(client, folder):
    settings = {"model": str(folder), "messages": ask(NEEDS), "max_completion_tokens": 12, "seed": 3}
    whole = client.chat.completions.create(**settings)
    parts = list(client.chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content and text
    assert parts[0].choices[0].delta.role == "assistant"
    assert [p.choices[0].finish_reason for p in parts if p.choices][-1] == whole.choices[0].finish_reason
    assert parts[-1].usage == whole.usage and whole.usage.completion_tokens <= 12
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens


def test_the_list_of_models_and_errors_are_read_by_the_official_client(client, openai, folder, local):
    names = [model.id for model in client.models.list()]
    assert names == [str(folder), local.service.decider.loaded.name]
    with pytest.raises(openai.BadRequestError, match="expected auto, always or never"):
        client.chat.completions.create(
            model=str(folder), messages=ask(KNOWN), extra_headers={"x-kbtrain-retrieve": "?"}
        )
    with pytest.raises(openai.NotFoundError, match="the model here is"):
        client.chat.completions.create(model="gpt-9", messages=ask(KNOWN))


def test_the_greedy_answer_is_the_sampler_s(client, folder):
    from kbtrain.llm.base import Sampling
    from kbtrain.llm.sampler.observer import PromptRows
    from kbtrain.llm.sampler.sampler import BatchSampler
    from kbtrain.models.load import load_model
    from kbtrain.prompts.kbm import encode
    from kbtrain.records import GREEDY

    model, tokenizer = load_model(str(folder))
    sampler = BatchSampler(model, tokenizer, Sampling(max_new_tokens=16, stop=()))
    ((expected,),) = sampler.sample([PromptRows("q", "llm", tuple(encode(tokenizer, KNOWN)), (GREEDY,))])
    found = client.chat.completions.create(model=str(folder), messages=ask(KNOWN), temperature=0, max_tokens=16)
    assert found.choices[0].message.content == expected.text
    assert found.usage.completion_tokens == expected.n_tokens


def test_an_answer_ends_before_a_stop_string_in_a_stream_too(client, folder):
    settings = {"model": str(folder), "messages": ask(KNOWN), "temperature": 0, "max_tokens": 16}
    whole = client.chat.completions.create(**settings).choices[0].message.content
    stop = whole[4:7]
    expected = whole.split(stop, 1)[0]
    parts = client.chat.completions.create(**settings, stop=stop, stream=True)
    chunks = [part.choices[0] for part in parts]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == expected
    assert chunks[-1].finish_reason == "stop"


@pytest.mark.parametrize(
    "wrong",
    [{"n": 2}, {"temperature": -1}, {"temperature": "hot"}, {"top_p": 2}, {"max_tokens": 0}, {"max_tokens": 1.5},
     {"stop": 3}, {"stop": [""]}, {"tools": [{"type": "function"}]}, {"max_tokens": True}],
    ids=str,
)  # fmt: skip
def test_settings_that_cannot_be_met_are_refused(local, wrong):
    reply = local.post("/v1/chat/completions", {"messages": ask(KNOWN), **wrong})
    assert reply.status == 400, reply.body


ANSWER_CHANGES = {
    "presence_penalty": (0.5, 0), "frequency_penalty": (-2, 0.0), "repetition_penalty": (1.1, 1), "min_p": (0.1, 0),
    "logit_bias": ({"5": 100}, {}), "response_format": ({"type": "json_object"}, {"type": "text"}), "n": (2, 1),
    "tools": ([{"type": "function"}], []), "functions": ([{"name": "f"}], []), "tool_choice": ("required", "auto"),
    "logprobs": (True, False), "top_logprobs": (3, 0), "modalities": (["audio"], ["text"]),
    "reasoning_effort": ("high", "none"), "guided_choice": (["yes", "no"], None), "prompt": ("Hi", None),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWER_CHANGES)
def test_a_field_that_would_change_the_answer_is_met_or_refused_by_its_name(local, name):
    asked, neutral = ANSWER_CHANGES[name]
    reply = local.post("/v1/chat/completions", {"messages": ask(KNOWN), "max_tokens": 2, name: asked})
    assert (reply.status, reply.json["error"]["code"], reply.json["error"]["param"]) == (400, "unsupported", name)
    assert f"'{name}'" in reply.error and "\n" not in reply.error
    for nothing in (neutral, None):
        reply = local.post("/v1/chat/completions", {"messages": ask(KNOWN), "max_tokens": 2, name: nothing})
        assert reply.status == 200, reply.error


REFUSED = {
    "n": {"n": 2}, "tools": {"tools": [{"type": "function"}]}, "temperature": {"temperature": 9},
    "model": {"model": "x"}, "messages": {"messages": ask("Book tickets " * 1500)},
}  # fmt: skip


@pytest.mark.parametrize("field", REFUSED)
@pytest.mark.parametrize("policy", ["auto", "always"])
def test_a_request_that_is_refused_costs_neither_a_decision_nor_a_search(local, field, policy):
    body = {"messages": ask(NEEDS), **REFUSED[field]}
    searches, gate = (f"kbtrain_{name}" for name in ('searches_total{result="found"}', "gate_seconds_count"))
    before = local.metric(searches), local.metric(gate)
    reply = local.post("/v1/chat/completions", body, {"x-kbtrain-retrieve": policy})
    assert reply.status == (404 if field == "model" else 400) and reply.json["error"]["param"] == field
    assert (local.metric(searches), local.metric(gate)) == before
    assert "x-kbtrain-score" not in reply.headers and reply.headers["x-kbtrain-retrieved"] == "0"


def test_fields_that_change_no_answer_pass(local):
    about = {"user": "me", "metadata": {"a": "b"}, "store": False, "service_tier": "auto", "parallel_tool_calls": True}
    assert local.post("/v1/chat/completions", {"messages": ask(KNOWN), "max_tokens": 2, **about}).status == 200


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", None])
def test_messages_with_more_than_text_are_refused(local, kind):
    parts = [{"type": "text", "text": KNOWN}, {"type": kind, "image_url": {}}]
    reply = local.post("/v1/chat/completions", {"messages": [{"role": "user", "content": parts}], "max_tokens": 2})
    assert (reply.status, reply.json["error"]["param"]) == (400, "messages") and "only text" in reply.error


NO_SYSTEM = CHAT.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")


def called(arguments='{"query": "Who?"}', name="search", **fields):
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    found = {"role": "tool", "tool_call_id": "c1", "content": 'He said "no"\nand left', "name": None}
    return [*ask(KNOWN), {"role": "assistant", "content": None, "tool_calls": [call], **fields}, found]


def with_template(template):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize(
    ("template", "messages", "told"),
    [
        (CHAT, called(), "message 1: role 'assistant', field 'tool_calls'"),
        (None, called(), "message 1: role 'assistant', field 'tool_calls'"),
        (NO_SYSTEM, [{"role": "system", "content": "Be brief"}, *ask(KNOWN)], "message 0: role 'system'"),
        (CHAT, called(tool_calls=None, function_call={"name": "f"}), "field 'function_call'"),
        ("{{ raise_exception('no') }}", ask(KNOWN), "takes no such messages"),
    ],
    ids=str,
)  # fmt: skip
def test_messages_that_the_chat_template_leaves_out_are_refused_by_name(template, messages, told):
    from kbtrain.serve.local_model import chat_text
    from kbtrain.serve.problem import Refused

    with pytest.raises(Refused, match=told) as refused:
        chat_text(with_template(template), messages)
    assert (refused.value.status, refused.value.param) == (400, "messages") and "\n" not in str(refused.value)


def test_a_server_refuses_calls_of_tools_that_its_model_is_not_shown(local, gate, folder):
    reply = local.post("/v1/chat/completions", {"messages": called(), "max_tokens": 2})
    assert (reply.status, reply.json["error"]["param"]) == (400, "messages") and "'tool_calls'" in reply.error
    plain = called(tool_calls=None, content="I look it up")
    assert local.post("/v1/chat/completions", {"messages": plain, "max_tokens": 2}).status == 200
    in_vain = serving(gate, model=str(folder), search="atlas", injection="tool")
    with pytest.raises(UserError, match=r"key 'injection': 'tool' with .*field 'tools'"), in_vain:
        pass


def test_a_gate_opened_again_with_prompts_that_the_model_is_not_shown_is_left(tmp_path, folder, caplog):
    """It took the old one's place, and every request from then on was refused."""
    probe = probe_folder(tmp_path / "probe")
    with serving(probe, model=str(folder), search="serve_support:echo") as server:
        before = server.service.decider.loaded.name
        server.service.upstream.tokenizer.chat_template = NO_SYSTEM
        own = OwnPrompts("Q: {question}", "{evidence} Q: {question}", "Be brief.").as_record()
        card = json.loads((probe / CARD).read_text())
        (probe / CARD).write_text(json.dumps({**card, "label_rule": {"own_prompts": own}}))
        server.service.decider.reload()
        assert server.service.decider.loaded.name == before and "role 'system'" in caplog.text
        reply = server.post("/v1/chat/completions", {"messages": ask(NEEDS), "max_tokens": 2})
        assert (reply.status, reply.headers["x-kbtrain-retrieved"]) == (200, "1")


def test_a_prompt_longer_than_the_model_s_room_is_refused(local):
    reply = local.post("/v1/chat/completions", {"messages": ask("Book tickets " * 1500)})
    assert (reply.status, reply.json["error"]["code"]) == (400, "context_length_exceeded")


def test_a_client_that_leaves_ends_the_drawing_of_its_answer(local):
    import socket

    data = json.dumps({"messages": ask(KNOWN), "max_tokens": 3000, "stop": "\u2603"}).encode()
    client = socket.create_connection(("127.0.0.1", local.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    upstream = local.service.upstream
    wait_until(lambda: upstream._waiting)
    client.close()
    wait_until(lambda: not upstream._waiting)  # and the answer's thread is free for the next one
    assert local.post("/v1/chat/completions", {"messages": ask(KNOWN), "max_tokens": 2}).status == 200


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("<think>\nIs it so?\n</think>\n\nYes\nit is", "Yes\nit is"),
        ("<them> and us", "<them> and us"),
        ("<think>\nIs it so?", ""),
    ],
)
def test_a_client_of_a_model_that_thinks_gets_what_follows_the_thought(tmp_path, monkeypatch, text, content):
    model = LocalModel(str(make_folder(tmp_path / "tiny")), "fp32")
    steps = iter(model.tokenizer(text, add_special_tokens=False)["input_ids"] + [model.tokenizer.eos_token_id])

    def drawn(self, logits, uniforms, greedy, source):
        return DrawnTokens(torch.tensor([next(steps)]), torch.tensor([-0.5]))

    async def reply():
        body = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 200}
        async with model.send("chat/completions", json.dumps(body).encode(), []) as made:
            return json.loads(b"".join([part async for part in made.pieces]))

    monkeypatch.setattr("kbtrain.llm.sampler.sampler.BatchSampler._draw_tokens", drawn)
    (choice,) = asyncio.run(reply())["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, "stop")
