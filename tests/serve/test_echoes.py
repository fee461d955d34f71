"""The upstream's key in what the upstream sends back: never in a client's bytes, all others untouched."""

import asyncio
import html
import json
from urllib.parse import quote

import pytest
from serve_support import KNOWN, serving
from stub_upstream import StubUpstream

from kbtrain.serve.echoes import Echoes

KEY = 'sk-A/b&9"-of-the-upstream'
ASKED = {"model": "stub", "messages": [{"role": "user", "content": KNOWN}]}


def streamed(chunks):
    async def source():
        for chunk in chunks:
            yield chunk

    async def read():
        return [chunk async for chunk in Echoes(KEY).chunks(source())]

    return asyncio.run(read())


@pytest.mark.parametrize("way", [str, lambda key: json.dumps(key)[1:-1], html.escape, lambda key: quote(key, safe="")])
def test_a_key_is_struck_wherever_a_chunk_ends(way):
    spelt = way(KEY).encode()
    whole = b'data: {"said": "' + spelt + b'", "sk-": "sk-A"}\n\n\xff\x00sk-'
    struck = whole.replace(spelt, b"*" * len(spelt))
    for cut in range(1, len(whole)):
        assert b"".join(streamed([whole[:cut], whole[cut:]])) == struck
    assert b"".join(streamed([whole[i : i + 1] for i in range(len(whole))])) == struck


def test_events_and_all_that_begins_no_key_leave_at_once():
    chunks = [b'data: {"a": 1}\n\n', b"sk", b"y", b"\n", b"the last sk-"]
    assert streamed(chunks) == [b'data: {"a": 1}\n\n', b"sky", b"\n", b"the last ", b"sk-"]


@pytest.mark.parametrize("key", [None, "EMPTY", "word", "12345"])
def test_without_a_key_that_can_be_struck_nothing_is_looked_for(key):
    assert not Echoes(key)


class Echoing(StubUpstream):
    """Repeats its caller's authorization in bodies, tokens and headers."""

    def _told(self):
        return self.requests[-1][1]["authorization"]

    def part(self, i, body):
        self.extra_headers = (f"x-echo: {self._told()}",)
        return f"data: {json.dumps({'i': i, 'heard': self._told()})}\n\n".encode()

    def answer(self, body):
        return {**super().answer(body), "heard": self._told()}


def test_no_client_is_told_the_upstream_s_key(gate, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Echoing() as stub, serving(gate, upstream=stub.url) as server:
        replies = [server.post("/v1/chat/completions", {**ASKED, "stream": i > 0}, {"accept-encoding": "gzip"})
                   for i in range(3)]  # fmt: skip
        asked_for = stub.requests[-1][1]["accept-encoding"]
        whole = json.loads(replies[0].body)
        assert [reply.status for reply in replies] == [200] * 3
        assert whole["heard"] == "Bearer " + "*" * len(json.dumps(KEY)[1:-1])
        assert replies[2].body == stub.sent[len(stub.sent) // 2 :].replace(
            json.dumps(KEY)[1:-1].encode(), b"*" * len(json.dumps(KEY)[1:-1])
        )
        assert replies[2].headers["x-echo"] == "Bearer " + "*" * len(KEY)
    assert asked_for == "identity"


class Endless(StubUpstream):
    """Sends the head of a reply a byte at a time, or a list of models without end."""

    async def _request(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n")
        if head.startswith(b"GET"):
            writer.write(b"transfer-encoding: chunked\r\n\r\n")
            for _ in range(80):
                writer.write(b"100000\r\n" + b" " * 2**20 + b"\r\n")
                await writer.drain()
        while True:
            writer.write(b"x")
            await writer.drain()
            await asyncio.sleep(0.05)


def test_a_head_without_end_is_a_504_and_an_endless_list_of_models_a_502(gate):
    with Endless() as stub, serving(gate, upstream=stub.url, upstream_timeout_s=0.3) as server:
        reply = server.post("/v1/chat/completions", ASKED)
        assert (reply.status, reply.json["error"]["code"]) == (504, "upstream_slow")
        assert server.get("/v1/models").status == 502
