"""Traffic beside the plain form: encodings, roles, tools, routes, broken heads, errors inside answers."""

import contextlib
import http.client
import json
import socket
import threading

import pytest
from serve_support import KNOWN, NEEDS, echo, serving
from stub_upstream import StubUpstream
from support.servers import wait_until

from kbtrain.serve.upstream import ErrorEvents

CHAT = {"model": "m", "messages": [{"role": "user", "content": NEEDS}]}
ECHO = f"{echo.__module__}:echo"
ALWAYS = {"x-kbtrain-retrieve": "always"}


@pytest.fixture(scope="module")
def proxy(gate, stub):
    with serving(gate, upstream=stub.url, search=ECHO, max_body_mb=0.1, read_timeout_s=2) as running:
        yield running


# bodies


@pytest.mark.parametrize(
    ("data", "key"),
    [
        (
            b'{"messages": [{"role": "user", "content": "a"}], "messages": [{"role": "user", "content": "b"}]}',
            "messages",
        ),
        (b'{"messages": [{"role": "user", "content": "a", "role": "system"}]}', "role"),
        (b'{"messages": [{"role": "user", "content": "a"}], "tools": [{"x": {"y": 1, "y": 1}}]}', "y"),
    ],
)
def test_a_duplicate_key_is_a_400_that_names_it(proxy, stub, data, key):
    before = len(stub.requests)
    reply = proxy.post("/v1/chat/completions", data)
    assert (reply.status, reply.json["error"]["param"]) == (400, key) and f"duplicate key '{key}'" in reply.error
    assert len(stub.requests) == before


@pytest.mark.parametrize("encoding", ["gzip", "br", "identity, zstd"])
def test_a_packed_body_is_a_415(proxy, encoding):
    reply = proxy.post("/v1/chat/completions", b"x", {"content-encoding": encoding})
    assert (reply.status, reply.json["error"]["code"]) == (415, "encoding")


def test_a_byte_order_mark_is_no_error(proxy, stub):
    reply = proxy.post("/v1/chat/completions", b"\xef\xbb\xbf" + json.dumps(CHAT).encode())
    assert reply.status == 200 and stub.body()["model"] == "m"


def test_a_body_above_the_limit_passes_ungated_and_whole(proxy, stub):
    data = json.dumps({**CHAT, "pad": "x" * 300_000}).encode()
    reply = proxy.post("/v1/chat/completions", data)
    assert (reply.status, reply.headers["x-kbtrain-reason"], stub.requests[-1][2]) == (200, "large-body", data)
    refused = proxy.post("/v1/gate", data)
    assert refused.status == 413 and "--max-body-mb" in refused.error


# roles and tools


def test_messages_of_other_roles_are_passed_on_and_the_user_s_last_word_is_gated(proxy, stub):
    messages = [
        {"role": "control", "content": "citations"},
        {"role": "document", "content": "Artemis"},
        {"role": "user", "content": KNOWN},
    ]
    reply = proxy.post("/v1/chat/completions", {"model": "granite", "messages": messages})
    assert reply.headers["x-kbtrain-reason"] in {"above-threshold", "below-threshold"}
    last = proxy.post("/v1/chat/completions", {"model": "granite", "messages": [messages[2], messages[1]]})
    assert (last.status, last.headers["x-kbtrain-reason"]) == (200, "other-role")
    assert stub.body()["messages"] == [messages[2], messages[1]]


def test_passages_as_a_tool_s_message_fit_strict_servers(gate, stub):
    with serving(gate, upstream=stub.url, search=ECHO, injection="tool") as server:
        assert server.post("/v1/chat/completions", CHAT, ALWAYS).status == 200
    sent = stub.body()
    call, result = sent["messages"][-2]["tool_calls"][0], sent["messages"][-1]
    assert len(call["id"]) == 9 and call["id"].isascii() and call["id"].isalnum()
    assert result["tool_call_id"] == call["id"]
    assert [tool["function"]["name"] for tool in sent["tools"]] == [call["function"]["name"]]
    assert sent["tool_choice"] == "none"  # the client has no tools: none may be called


class Strict(StubUpstream):
    """Refuses calls without a signature by ``refusal``."""

    refusal = 400

    async def _answer(self, writer, body):
        self.status = self.refusal if any(message.get("tool_calls") for message in body["messages"]) else 200
        return await super()._answer(writer, body)


@pytest.mark.parametrize(("refusal", "status", "requests"), [(400, 200, 2), (422, 200, 2), (500, 500, 1)])
def test_an_upstream_that_refuses_an_inserted_call_gets_the_passages_before_the_question(
    gate, refusal, status, requests
):
    with Strict() as strict, serving(gate, upstream=strict.url, search=ECHO, injection="tool") as server:
        strict.refusal = refusal
        reply = server.post("/v1/chat/completions", CHAT, ALWAYS)
        assert (reply.status, reply.headers["x-kbtrain-retrieved"], len(strict.requests)) == (status, "1", requests)
        if status == 200:
            (message,) = strict.body()["messages"]
            assert message["content"].endswith(NEEDS) and len(message["content"]) > len(NEEDS)
            assert "tools" not in strict.body()


# routes


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1//chat/completions", "//v1/chat/completions",
                                  "/v1/v1/chat/completions", "/v1/v1//chat/completions//", "/v1/Chat/Completions",
                                  "/v1/openai/deployments/M/chat/completions?api-version=1"])  # fmt: skip
def test_a_path_that_a_client_joined_wrongly_is_the_one_that_is_meant(proxy, stub, path):
    reply = proxy.post(path, CHAT, ALWAYS)
    assert (reply.status, reply.headers["x-kbtrain-retrieved"]) == (200, "1")
    assert stub.requests[-1][0] == (path if "deployments" in path else "/v1/chat/completions")


def test_the_other_forms_are_known_behind_a_gateways_address_too(proxy, stub):
    asked = proxy.post("/v1/openai/v1/responses", {"model": "stub", "input": CHAT["messages"][-1]["content"]}, ALWAYS)
    assert (asked.headers["x-kbtrain-retrieved"], stub.requests[-1][0]) == ("1", "/v1/openai/v1/responses")


class Redirecting(StubUpstream):
    """Answers with a redirect to ``location``."""

    location = ""

    async def _answer(self, writer, body):
        head = f"HTTP/1.1 307 Told\r\nlocation: {self.location}\r\ncontent-length: 0\r\n\r\n"
        writer.write(head.encode())
        return True


@pytest.mark.parametrize(
    ("location", "status"),
    [
        ("{url}/rerank?a=1", 307),
        ("/v1/rerank?a=1", 307),
        ("{url}extra", 502),
        ("https://elsewhere.example/v1/rerank", 502),
    ],
)
def test_a_redirect_leads_nobody_past_the_server(gate, location, status):
    with Redirecting() as upstream, serving(gate, upstream=upstream.url) as server:
        upstream.location = location.replace("{url}", upstream.url)
        reply = server.post("/v1/rerank/", CHAT)
    assert reply.status == status
    assert reply.headers.get("location") == ("/v1/rerank?a=1" if status == 307 else None)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404), ("POST", "/responses", 404), ("OPTIONS", "/v1/chat/completions", 405),
        ("OPTIONS", "/v1/embeddings", 405), ("GET", "/v1/gate", 405),
    ],
)  # fmt: skip
def test_an_unknown_route_is_an_error_of_openai_s_form(proxy, method, path, status):
    reply = proxy.ask(method, path, {"model": "m"} if method == "POST" else None)
    assert reply.status == status and reply.headers["content-type"] == "application/json"
    assert set(reply.json["error"]) == {"message", "type", "param", "code"}
    if status == 404:
        assert "POST /v1/chat/completions" in reply.error and "GET /v1/models" in reply.error
    else:
        assert reply.headers["allow"].split(", ")[0] in reply.error


def test_an_unknown_route_needs_the_key_and_is_counted_without_its_name(gate, tmp_path):
    (tmp_path / "keys.txt").write_text("a-key-of-sixteen-characters\n")
    with serving(gate, keys=tmp_path / "keys.txt") as server:
        assert server.get("/v1/words-of-a-client").status == 401
        key = {"authorization": "Bearer a-key-of-sixteen-characters"}
        metrics = server.get("/metrics", key).body.decode()
        assert 'kbtrain_requests_total{route="/v1/*",status="401"} 1.0' in metrics
        assert "words-of-a-client" not in metrics


# errors inside answers


STREAM = b'data: {"choices": [{"delta": {"content": "the error"}}]}\n\n'
OK, JSON = [(b"content-type", b"text/event-stream; charset=utf-8")], [(b"content-type", b"application/json")]


@pytest.mark.parametrize(
    ("headers", "body", "found"),
    [
        (OK, STREAM + b'data: {"error": {"message": "overloaded", "code": 502}}\n\ndata: [DONE]\n\n', True),
        (OK, STREAM + b'event: error\ndata: {"type": "overloaded_error"}\n\n', True),
        (OK, b'data: {"type": "error", "error": {"type": "overloaded_error"}}\r\n\r\n', True),
        (OK, b'data: {"error": "x"}', True),  # cut off behind it
        (OK, STREAM + b'error: {"code": 500, "message": "x"}\n\n', True),  # llama.cpp
        (OK, STREAM + b'data: {"object": "error", "message": "x"}\n\n', True),
        (OK, STREAM + b'data: {"choices": [{"delta": {}, "error": {"code": 502}}]}\n\n', True),
        (OK, STREAM + b'data: {"choices": [], "base_resp": {"status_code": 1013}}\n\n', True),
        (OK, STREAM + b'data: {"choices": [], "base_resp": {"status_code": 0}}\n\n', False),
        (OK, b'data: {"type": "code.done", "code": "print(1)"}\n\n', False),
        (OK, STREAM + b'data: {"type": "response.failed", "response": {"status": "failed"}}\n\n', True),
        (OK, STREAM + b'data: {"choices": [{"delta": {}, "finish_reason": "error"}]}\n\ndata: [DONE]\n\n', True),
        (OK, STREAM + b'data: {"choices": [{"delta": {}, "finish_reason": "abort"}]}\n\n', True),
        (OK, b'data: {"choices": [{"delta": {"content": "abort"}, "finish_reason": "stop"}]}\n\n', False),
        (JSON, b'{"choices": [{"message": {"content": "x"}, "finish_reason": "network_error"}]}', True),
        (OK, STREAM + b'data: {"error": null, "choices": []}\n\ndata: [DONE]\n\n', False),
        (OK, b'data: {"choices": [{"delta": {"content": "{\\"error\\": 1}"}}]}\n\n', False),
        (OK, b': error\n\ndata: error\n\ndata: {"error": \n\n', False),
        (JSON, b'{"id": "gen-1", "error": {"message": "overloaded", "code": 502}}', True),
        (JSON, b'[{"error": {"message": "overloaded", "code": 502}}]', True),
        (OK, STREAM + b'data: {"Response": {"Error": {"Code": "x"}}}\n\n', True),
        (JSON, b'{"id": "gen-1", "choices": [{"message": {"content": "error"}}]}', False),
        ([*JSON, (b"content-encoding", b"gzip")], b'{"error": "x"}', False),
        ([(b"content-type", b"text/plain")], b'{"error": "x"}', False),
    ],
)
def test_an_error_is_found_wherever_the_pieces_are_cut(headers, body, found):
    for size in (1, 7, len(body)):
        events = ErrorEvents(headers)
        for start in range(0, len(body), size):
            events.feed(body[start : start + size])
        events.end()
        assert events.found is found


class FailingUpstream(StubUpstream):
    def part(self, i, body):
        return b'data: {"error": {"message": "overloaded"}}\n\n' if i == 3 else super().part(i, body)


def test_an_error_inside_a_stream_is_counted_and_logged(gate, tmp_path):
    log = tmp_path / "log.jsonl"
    with FailingUpstream() as upstream, serving(gate, upstream=upstream.url, log=log) as server:
        reply = server.post("/v1/chat/completions", {**CHAT, "stream": True})
        assert reply.status == 200 and reply.body == upstream.sent
        assert server.metric('kbtrain_upstream_failures_total{kind="error-event"}') == 1
    assert json.loads(log.read_text())["outcome"] == "error-event"


# heads


class BrokenHeads(StubUpstream):
    """Answers with ``head`` and closes."""

    head = b""

    async def _request(self, reader, writer):
        self.requests.append((await reader.readuntil(b"\r\n\r\n"), {}, b""))
        writer.write(self.head)
        await writer.drain()
        return False


@pytest.mark.parametrize(
    ("head", "tries", "code"),
    [
        (b"HTTP/1.1 200 OK\r\nbad header\r\n\r\n", 1, "upstream_failed"),
        (b"nonsense\r\n\r\n", 1, "upstream_failed"),
        (b"HTTP/1.1 200 OK\r\ncontent-type: text/pl", 1, "upstream_failed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", 1, "upstream_failed"),
        (b"", 3, "upstream_unreachable"),  # nothing came: it is tried again, as the setting says
    ],
)
def test_a_request_is_sent_once_where_a_byte_of_an_answer_has_come(gate, head, tries, code):
    with BrokenHeads() as upstream, serving(gate, upstream=upstream.url) as server:
        upstream.head = head
        reply = server.post("/v1/chat/completions", CHAT)
        assert (reply.status, reply.json["error"]["code"], len(upstream.requests)) == (502, code, tries)


BODY = json.dumps({"questions": [KNOWN]}).encode()
UPGRADE = b"host: localhost\r\nconnection: upgrade\r\nupgrade: h2c\r\n"
POST = b"POST /v1/gate HTTP/1.1\r\n" + UPGRADE + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
GET = b"GET /health HTTP/1.1\r\n" + UPGRADE + b"\r\n"
CHUNKED = POST.replace(b"content-length: %d" % len(BODY), b"transfer-encoding: chunked").replace(
    BODY, b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
)


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (POST + b"X", [b"200"]), (POST + b"X" * 100_000, [b"200"]), (CHUNKED + b"X", [b"200"]),
        (POST * 2 + b"X", [b"200", b"200"]), (GET + b"X", [b"200"]),
        (GET + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [b"200"]), (b"X" + POST, [b"400"]),
        (CHUNKED.replace(b"\r\n0\r\n\r\n", b"\r\nnonsense\r\n"), [b"400"]),
    ],
)  # fmt: skip
def test_bytes_behind_a_request_neither_cut_its_answer_nor_fill_the_log(proxy, caplog, sent, statuses):
    with socket.create_connection(("127.0.0.1", proxy.port), 10) as client:
        client.sendall(sent)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == statuses
    assert "Traceback" not in caplog.text and not any(record.exc_info for record in caplog.records)
    assert proxy.get("/health").status == 200


def test_streams_under_way_at_the_end_leave_a_line_and_no_traceback(gate, tmp_path, caplog, monkeypatch):
    import uvicorn

    config = uvicorn.Config
    monkeypatch.setattr(uvicorn, "Config", lambda *a, **k: config(*a, **{**k, "timeout_graceful_shutdown": 0.2}))
    log = tmp_path / "log.jsonl"
    with StubUpstream() as upstream:
        upstream.hold = "stream"
        with serving(gate, upstream=upstream.url, log=log) as server:
            seen = []

            def client():
                try:
                    server.post("/v1/chat/completions", {**CHAT, "stream": True})
                except (http.client.IncompleteRead, OSError) as error:
                    seen.append(type(error).__name__)

            threads = [threading.Thread(target=client) for _ in range(3)]
            for thread in threads:
                thread.start()
            wait_until(lambda: len(upstream.requests) >= 3 and len(upstream.sent) >= 3)
            threading.Event().wait(0.2)
        for thread in threads:
            thread.join()
    assert len(seen) == 3  # cut, none seemingly whole
    assert not any(record.exc_info for record in caplog.records) and "Traceback" not in caplog.text
    assert [json.loads(line)["outcome"] for line in log.read_text().splitlines()] == ["cut-off"] * 3


# Bytes on a connection: heads and chunks that do not end, trailers, several requests at once


KEY = b"a-key-of-somebody"
HEALTH = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.fixture(scope="module")
def locked(gate, tmp_path_factory):
    keys = tmp_path_factory.mktemp("keys") / "keys.txt"
    keys.write_bytes(KEY)
    with serving(gate, keys=keys) as running:
        yield running


def talk(port, *parts, until=None):
    """Send the parts; the answer until the server closes, or until it ends with ``until``."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        with contextlib.suppress(ConnectionError):  # the server need not take all of it
            for part in parts:
                client.sendall(part)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while (until is None or not answer.endswith(until)) and (part := client.recv(65_536)):
                answer += part
        return answer


CHUNKED_HEAD = (
    b"POST /v1/gate HTTP/1.1\r\nhost: a\r\nauthorization: Bearer %s\r\ntransfer-encoding: chunked\r\n\r\n" % KEY
)
ENDLESS = {
    "value": b"GET /health HTTP/1.1\r\nhost: a\r\nx-long: ", "name": b"GET /health HTTP/1.1\r\nhost: a\r\n",
    "path": b"GET /", "chunk": CHUNKED_HEAD + b"1;", "trailer": CHUNKED_HEAD + b"1\r\n{\r\n0\r\nx: ",
}  # fmt: skip


@pytest.mark.parametrize("begin", ENDLESS.values(), ids=ENDLESS)
def test_lines_that_do_not_end_are_refused_before_they_are_kept(locked, begin):
    answer = talk(locked.port, begin, *[b"a" * 10_000] * 200)
    assert answer.startswith(b"HTTP/1.1 4") and b"connection: close" in answer
    assert locked.get("/health").status == 200


def test_blank_lines_alone_are_no_request(locked):
    assert talk(locked.port, *[b"\r\n" * 5_000] * 20).startswith(b"HTTP/1.1 431 ")


def test_what_stands_behind_a_body_is_no_header(locked):
    head = b"POST /v1/gate HTTP/1.1\r\nhost: a\r\nconnection: close\r\ntransfer-encoding: chunked\r\n"
    body, key = b'13\r\n{"questions":["a"]}\r\n0\r\n', b"authorization: Bearer %s\r\n" % KEY
    assert talk(locked.port, head + key + b"\r\n" + body + b"\r\n").startswith(b"HTTP/1.1 200 ")
    assert talk(locked.port, head + b"\r\n" + body + key + b"\r\n").startswith(b"HTTP/1.1 401 ")


def test_requests_that_come_together_are_answered_in_turn(locked):
    last = HEALTH.replace(b"a\r\n\r\n", b"a\r\nconnection: close\r\n\r\n")
    answer = talk(locked.port, HEALTH + HEALTH.replace(b"health", b"nothing") + last)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"401", b"200"]


def test_another_protocol_that_is_offered_is_not_taken_and_no_body_is_lost(locked):
    body = json.dumps({"questions": ["a"]}).encode()
    ask = b"POST /v1/gate HTTP/1.1\r\nhost: a\r\nauthorization: Bearer " + KEY + b"\r\n%s\r\n"
    offer = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMA\r\n"
    told, chunked = b"content-length: %d\r\n" % len(body), b"transfer-encoding: chunked\r\n"
    whole = ask % (offer + told) + body
    parts = [whole[:-5], whole[-5:], ask % (offer + chunked), b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)]
    parts += [HEALTH.replace(b"host", offer + b"host"), whole, ask % (b"connection: close\r\n" + told), body]
    answer = talk(locked.port, *parts)
    assert [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]] == [b"200"] * 5
    assert answer.count(b'"decisions"') == 4


def test_half_a_head_behind_a_request_does_not_cut_its_answer(gate):
    body = json.dumps({"model": "stub", "stream": True, "messages": [{"role": "user", "content": KNOWN}]}).encode()
    ask = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    with StubUpstream(pause=0.1) as stub, serving(gate, upstream=stub.url, read_timeout_s=0.2) as server:
        first, _, second = talk(server.port, ask + b"GET /hea").rpartition(b"HTTP/1.1 ")
    assert first.startswith(b"HTTP/1.1 200 ") and first.endswith(b"\r\n0\r\n\r\n") and second.startswith(b"408 ")
