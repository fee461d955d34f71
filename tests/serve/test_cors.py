"""Web pages of other origins: refused unless a setting names them; then a browser's preflight is answered."""

import pytest
from pydantic import ValidationError
from serve_support import KNOWN, serving
from support.api_server import api_server

from kbtrain.serve.config import ServeConfig

PAGE = "https://chat.example"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type",
}
CHAT = {"model": "stub", "messages": [{"role": "user", "content": KNOWN}]}


@pytest.fixture(scope="module")
def upstream():
    with api_server() as running:
        yield running


@pytest.mark.parametrize("origin", [PAGE, "http://localhost:3000", "null"])
def test_without_the_setting_no_page_gets_an_answer_to_its_preflight(gate, upstream, origin):
    with serving(gate, upstream=upstream.url) as server:
        for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/gate"):
            reply = server.ask("OPTIONS", path, None, {**PREFLIGHT, "origin": origin})
            assert reply.status in (403, 405) and not any(name.startswith("access-control") for name in reply.headers)
        reply = server.get("/v1/models/stub")
        assert not any(name.startswith("access-control") for name in reply.headers)  # the upstream's are not ours


def test_a_named_page_may_ask_and_read_the_decision(gate, upstream, tmp_path):
    (tmp_path / "keys.txt").write_text("a-key-of-sixteen-characters\n")
    key = {"authorization": "Bearer a-key-of-sixteen-characters"}
    with serving(gate, upstream=upstream.url, cors=[PAGE], keys=tmp_path / "keys.txt") as server:
        before = len(upstream.asked)
        reply = server.ask("OPTIONS", "/v1/responses", None, PREFLIGHT)  # a preflight carries no key
        assert reply.status == 200 and reply.headers["access-control-allow-origin"] == PAGE
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert reply.headers["access-control-allow-headers"] == "authorization,content-type"
        assert len(upstream.asked) == before
        reply = server.post("/v1/chat/completions", CHAT, {"origin": PAGE, **key})
        assert reply.status == 200 and reply.headers["access-control-allow-origin"] == PAGE
        assert reply.headers["access-control-expose-headers"] == "*" and reply.headers["vary"] == "Origin"
        assert "origin" not in upstream.asked[-1][2]
        reply = server.post("/v1/chat/completions", CHAT, {"origin": PAGE})
        assert reply.status == 401 and reply.headers["access-control-allow-origin"] == PAGE  # so that the page sees why
        other = server.ask("OPTIONS", "/v1/responses", None, {**PREFLIGHT, "origin": "https://other.example"})
        assert other.status == 400 and "access-control-allow-origin" not in other.headers


def test_a_named_page_needs_no_key_where_nobody_does(gate):
    with serving(gate, cors=[PAGE]) as server:
        assert server.post("/v1/gate", {"questions": [KNOWN]}, {"origin": PAGE}).status == 200
        assert server.post("/v1/gate", {"questions": [KNOWN]}, {"origin": "https://other.example"}).status == 403


@pytest.mark.parametrize("origin", ["https://chat.example/", "chat.example", "https://chat.example/path", ""])
def test_an_origin_is_a_scheme_and_a_host(gate, origin):
    with pytest.raises(ValidationError, match="key 'cors': expected an origin"):
        ServeConfig(gate=gate, cors=[origin])


def test_all_pages_need_keys(gate):
    with pytest.raises(ValidationError, match="name a file of API keys"):
        ServeConfig(gate=gate, cors=["*"])
