"""Servers that answer by streams alone: their chunks make one reply, and a stream that breaks off is none."""

import json

import pytest
from support.http_server import LocalServer, Reply

from kbtrain.llm.check_server import check_server
from kbtrain.llm.server_requests import NoReply, _check_ends, whole_reply


def stream(*chunks, done=True):
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ("data: [DONE]\n\n" if done else "")


def chat(index, **delta):
    return {"id": "a", "choices": [{"index": index, "delta": delta, "finish_reason": None}]}


def ended(index):
    return {"choices": [{"index": index, "delta": {}, "finish_reason": "stop"}], "usage": None}


def test_chunks_of_several_answers_make_one_reply():
    parts = [chat(0, role="assistant", content=""), chat(1, content="Ro"), chat(0, content="Par"),
             chat(0, content="is"), chat(1, content="me"), ended(0), ended(1),
             {"choices": [], "usage": {"prompt_tokens": 9}}]  # fmt: skip
    reply = whole_reply(": comment\n\n" + stream(*parts))
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["Paris", "Rome"]
    assert reply["usage"] == {"prompt_tokens": 9} and {c["finish_reason"] for c in reply["choices"]} == {"stop"}
    halves = ({"choices": [{"index": 0, "text": text}]} for text in ("Pa", "ris"))
    assert whole_reply(stream(*halves))["choices"][0]["text"] == "Paris"
    for first, part in (("Kagarstad", "message"), ("Kaga", "message"), ("No", "delta")):  # a message: the whole again
        reply = whole_reply(stream(chat(0, content=first), {"choices": [{part: {"content": "Kagarstad"}}]}))
        assert reply["choices"][0]["message"]["content"] == "No" * (part == "delta") + "Kagarstad"
    part = {"choices": [{"delta": {"content": "P"}, "logprobs": {"content": [{"token": "P", "logprob": -0.5}]}}]}
    assert len(whole_reply(stream(part, part))["choices"][0]["logprobs"]["content"]) == 2


def test_null_takes_nothing_away_other_types_are_not_joined_and_a_line_separator_ends_no_chunk():
    parts = [chat(0, reasoning_content="Hm", content=None), chat(0, reasoning_content=None, content="Par")]
    reply = whole_reply(stream(*parts, chat(0, content="is"), chat(0, content=None), ended(0)))
    assert reply["choices"][0]["message"] == {"reasoning_content": "Hm", "content": "Paris"}
    for first, second in ((5, "a"), ("a", 5), ([1], "a")):
        mixed = whole_reply(stream(chat(0, content=first), chat(0, content=second)))
        assert mixed["choices"][0]["message"]["content"] == second
    reply = whole_reply('data: {"choices": [{"index": 0, "delta": {"content": "a\u2028b"}}]}\r\n\r\ndata: [DONE]\r\n')
    assert reply["choices"][0]["message"]["content"] == "a\u2028b"


def test_a_stream_that_breaks_off_is_no_answer():
    with pytest.raises(NoReply, match="broke off"):
        _check_ends(whole_reply(stream(chat(0, content="Par"), done=False)))
    with pytest.raises(ValueError):
        whole_reply("data: {half\n\n")


CHUNKS = (5, {"choices": 5}, {"choices": [5]}, {"choices": [{"index": "first", "delta": {}}]},
          {"choices": [{"delta": 5}]}, {"choices": [{"text": "a", "logprobs": [1]}]})  # fmt: skip


@pytest.mark.parametrize("chunk", CHUNKS)
def test_a_chunk_of_another_form_is_refused_by_a_value_error(chunk):
    with pytest.raises(ValueError, match="a chunk of another form"):
        whole_reply(stream(chunk))


class StreamsOnly(LocalServer):
    """Refuses whole replies, and streams the others."""

    path = "/v1"

    def reply(self, asked):
        if asked.path.endswith("models"):
            return Reply(200, {"data": [{"id": "m"}]})
        if not asked.body.get("stream"):
            message = "This model only supports stream mode, please enable the stream parameter"
            return Reply(400, {"error": {"message": message}})
        n = range(asked.body.get("n", 1))
        said = (chat(i, content=f"It is Paris, I think, as number {i}.") for i in n)
        return Reply(200, stream(*said, *map(ended, n)))


def test_check_server_finds_that_a_server_has_to_stream():
    with StreamsOnly() as server:
        checked = check_server(server.url)
    assert checked.settings["server_extra"]["stream"] is True
