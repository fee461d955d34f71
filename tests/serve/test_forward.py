"""Routes of the upstream that are not gated: sent on as they come, both ways as streams, counted and logged."""

import gzip
import http.client
import json
import socket

import pytest
from serve_support import KNOWN, serving
from stub_upstream import StubUpstream
from tiny_kbm import make_folder


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return tmp_path_factory.mktemp("log") / "decisions.jsonl"


@pytest.fixture(scope="module")
def server(gate, upstream, log):
    with serving(gate, upstream=upstream.url, log=log, max_body_mb=0.01, read_timeout_s=2) as running:
        yield running


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_a_request_is_sent_on_by_its_method_with_query_and_bytes(server, upstream, method):
    data = b'{ "a":1.50,\n"b": NaN }' if method != "GET" else None
    reply = server.ask(method, "/v1/batches/b%2F1?after=%20x&limit=2", data, {"x-own": "7"})
    assert (reply.status, reply.error) == (404, "File Not Found")  # the upstream's own
    assert reply.headers["x-kbtrain-reason"] == "ungated-route" and reply.headers["x-kbtrain-retrieved"] == "0"
    got, path, headers, body = upstream.asked[-1]
    assert (got, path, body) == (method, "/v1/batches/b%2F1?after=%20x&limit=2", data or b"")
    assert headers["x-own"] == "7" and not any(name.startswith("x-kbtrain") for name in headers)


def test_other_methods_of_a_gated_path_are_the_upstream_s(server, upstream):
    assert server.get("/v1/chat/completions").error == "File Not Found"
    assert upstream.asked[-1][:2] == ("GET", "/v1/chat/completions")
    reply = server.ask("HEAD", "/v1/models/stub")
    assert reply.status == 200 and reply.body == b"" and upstream.asked[-1][0] == "HEAD"
    assert server.get("/v1/models/stub").json["owned_by"] == "stand-in"


def test_a_compressed_body_is_sent_on_compressed(server, upstream):
    data = gzip.compress(b'{"model": "e", "input": "x"}')
    server.ask("POST", "/v1/rerank", data, {"content-encoding": "gzip"})
    assert upstream.asked[-1][2]["content-encoding"] == "gzip" and upstream.asked[-1][3] == data


def test_an_upload_is_sent_on_while_it_comes_whatever_its_size(server, upstream):
    upstream.got_part.clear()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest("POST", "/v1/files")
    connection.putheader("content-length", "50000")
    connection.endheaders(b"x" * 1000)
    assert upstream.got_part.wait(20)  # before the rest has been sent
    connection.send(b"y" * 49_000)
    reply = connection.getresponse()
    assert (reply.status, json.loads(reply.read())["bytes"]) == (200, 50_000)
    assert upstream.asked[-1][2]["content-length"] == "50000"
    connection.close()


def test_an_upload_without_a_length_is_sent_on_in_chunks(server, upstream):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", "/v1/files", iter([b"a" * 10, b"b" * 10]), encode_chunked=True,
                       headers={"transfer-encoding": "chunked"})  # fmt: skip
    assert json.loads(connection.getresponse().read())["bytes"] == 20
    connection.close()


def test_a_gated_route_sends_a_long_body_without_a_length_on_as_it_comes(server, upstream):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    parts = [b'{"messages": "', b"a" * 20_000, b'"}']
    connection.request("POST", "/v1/chat/completions", iter(parts), encode_chunked=True,
                       headers={"transfer-encoding": "chunked"})  # fmt: skip
    assert connection.getresponse().headers["x-kbtrain-reason"] == "large-body"
    assert upstream.asked[-1][3] == b"".join(parts)
    connection.close()


def test_a_client_that_leaves_within_its_upload_ends_it(server, upstream):
    upstream.got_part.clear()
    upstream.upload_left.clear()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000\r\n\r\n" + b"x" * 100)
        assert upstream.got_part.wait(20)
    assert upstream.upload_left.wait(20)


def test_an_upload_that_stops_is_a_408(server, upstream):
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000\r\n\r\n" + b"x" * 100)
        client.settimeout(30)
        assert client.recv(65_536).startswith(b"HTTP/1.1 408 ")


def test_an_answer_is_passed_back_while_it_comes(server, upstream):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/v1/slow")
    assert connection.getresponse().read(5) == b"first"  # the upstream never sends the rest
    connection.close()


def test_ungated_requests_are_counted_and_logged_without_their_words(gate, upstream, tmp_path):
    log = tmp_path / "log.jsonl"
    with serving(gate, upstream=upstream.url, log=log) as server:
        server.post("/v1/embeddings", {"model": "e", "input": "x"})
        server.get("/v1/files/words-of-a-client?q=words")
        server.get("/v1/WORDS-of-a-client")
        gate_name = server.service.decider.loaded.name
        labels = f'{{decision="plain",gate="{gate_name}",reason="ungated-route"}}'
        assert server.metric(f"kbtrain_decisions_total{labels}") == 3
        assert server.metric('kbtrain_requests_total{route="/v1/*",status="200"}') == 1
        assert "of-a-client" not in server.get("/metrics").body.decode()
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert [(row["route"], row["reason"], row["score"], row["status"]) for row in rows] == [
        ("embeddings", "ungated-route", None, 200),
        ("files", "ungated-route", None, 404),
        ("other", "ungated-route", None, 404),
    ]
    assert "of-a-client" not in log.read_text()


@pytest.mark.parametrize("path", ["/v1/../admin", "/v1/%2e%2e/admin", "/v1/a/%2E%2E/%2e%2e/admin", "/v1/./x",
                                  "/%76%31/x", "/v1/../x/chat/completions"])  # fmt: skip
def test_no_path_leads_out_of_v1(server, upstream, path):
    before = len(upstream.asked)
    reply = server.post(path, {"model": "m", "messages": [{"role": "user", "content": "Who wrote Hamlet?"}]})
    assert (reply.status, reply.json["error"]["code"]) == (400, "path")
    assert len(upstream.asked) == before


def test_a_policy_that_is_none_is_refused_here_as_well(server):
    assert server.ask("GET", "/v1/files", None, {"x-kbtrain-retrieve": "maybe"}).status == 400


def test_an_upstream_that_is_down_is_a_502_in_the_caller_s_dialect(gate):
    with StubUpstream() as gone:
        url = gone.url
    with serving(gate, upstream=url) as server:
        reply = server.post("/v1/embeddings", {"input": "x"})
        assert (reply.status, reply.json["error"]["code"]) == (502, "upstream_unreachable")
        reply = server.get("/v1/files", {"anthropic-version": "2023-06-01"})
        assert (reply.status, reply.json["type"], reply.json["error"]["type"]) == (502, "error", "api_error")
        assert server.ask("POST", "/v1/files", b"x" * 1_000_000).status == 502


def test_an_upload_is_never_sent_twice(gate):
    with StubUpstream() as stub, serving(gate, upstream=stub.url) as server:
        stub.fail = 9
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        connection.putrequest("POST", "/v1/files")
        connection.putheader("content-length", "200")
        connection.endheaders(b"x" * 100)
        connection.send(b"x" * 100)
        assert connection.getresponse().status == 502
        connection.close()
        assert len(stub.requests) == 1 or stub.requests[0][2] == b"x" * 200


@pytest.mark.parametrize(
    ("settings", "path", "says"),
    [
        ({}, "/v1/embeddings", "no such route; there are: POST /v1/chat/completions"),
        ({}, "/v1/messages", "start it with --upstream"),
        ({"model": True}, "/v1/embeddings", "no such route"),
        ({"model": True}, "/v1/responses", "the model in this process answers /v1/chat/completions"),
        ({"model": True}, "/v1/messages", "the model in this process answers /v1/chat/completions"),
    ],
    ids=str,
)
def test_without_a_server_behind_it_a_route_is_a_404_in_the_caller_s_dialect(gate, tmp_path, settings, path, says):
    if settings:
        settings = {"model": str(make_folder(tmp_path / "tiny"))}
    with serving(gate, **settings) as server:
        reply = server.post(path, {"model": "m", "input": KNOWN, "messages": [{"role": "user", "content": KNOWN}]})
        assert reply.status == 404 and says in reply.error
        assert ("type" in reply.json) == path.endswith("messages")
        entry = server.get(f"/v1/models/{server.service.decider.loaded.name}")
        assert entry.json["owned_by"] == "kbtrain"
