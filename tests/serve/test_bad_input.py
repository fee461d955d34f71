"""Whatever a client sends, it is told what is wrong by a status below 500, and the next request is served."""

import http.client
import json
import socket
from copy import deepcopy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_support import KNOWN, serving
from stub_upstream import StubUpstream

from kbtrain.prompts.kbm import INSTRUCTIONS

CHAT = {"model": "stub", "messages": [{"role": "user", "content": KNOWN}], "stream": False}
PREDICATE = {"type": "predicate", "name": "search", "instructions": INSTRUCTIONS}
VALID = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "stub", "prompt": KNOWN, "stream": False},
    "/v1/gate": {"questions": [KNOWN, "Hi"], "threshold": 0.5},
    "/v1/decisions": {"model": "kbtrain", "input": KNOWN, "questions": [PREDICATE]},
    "/v1/systemone": {
        "model": "kbtrain",
        "state": {"messages": CHAT["messages"]},
        "questions": {"q": {"type": "noul", "instructions": INSTRUCTIONS}},
    },
}


@pytest.fixture(scope="module")
def proxy(gate):
    with (
        StubUpstream() as stub,
        serving(gate, upstream=stub.url, search="serve_support:echo", read_timeout_s=1.0) as running,
    ):
        yield running


def served(server):
    return server.post("/v1/gate", {"questions": [KNOWN]}).status == 200


ODD = [
    "", " ", "\ud800", "\udfff\ud800", "\x00", "‮", "😀" * 50, "a" * 30_000, -1, 0, 2**63, 10**400, -0.0, 1e308, 5e-324,
    True, None, [], {}, [[]], {"": ""}, [None], "auto", "image_url",
]  # fmt: skip
ANYTHING = st.recursive(
    st.sampled_from(ODD) | st.text(max_size=12) | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)


@st.composite
def spoiled(draw, valid):
    """A valid body with one to three of its parts replaced, taken out or added."""
    body = deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        part = body
        while True:
            keys = list(part) if isinstance(part, dict) else list(range(len(part)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(part[key], dict | list) and draw(st.booleans()):
                part = part[key]
                continue
            how = draw(st.sampled_from(("replace", "remove", "add")))
            if how == "replace":
                part[key] = draw(ANYTHING)
            elif how == "remove":
                del part[key]
            elif isinstance(part, list):
                part.append(draw(ANYTHING))
            else:
                part[draw(st.sampled_from(("n", "stop", "tools", "criteria", "budget", "role", "")))] = draw(ANYTHING)
            break
    return body


@pytest.mark.parametrize("path", VALID)
def test_a_valid_body_is_answered(proxy, path):
    assert proxy.post(path, VALID[path]).status == 200


@pytest.mark.parametrize("path", VALID)
def test_no_spoiled_body_is_a_fault_of_the_server(proxy, path):
    @settings(max_examples=20)
    @given(body=spoiled(VALID[path]))
    def check(body):
        reply = proxy.post(path, body)
        assert reply.status < 500, reply
        assert reply.status == 200 or (reply.error and "Traceback" not in reply.error)

    check()
    assert served(proxy)


HEADERS = ("retrieve", "threshold", "budget", "debug", "gate", "")
VALUES = ("", "auto", "always", "never", "-1", "0.5", "1e400", "nan", "-inf", "0x1", "１", "true", "2", "a" * 3000)


@settings(max_examples=40)
@given(
    policy=st.dictionaries(st.sampled_from(HEADERS), st.sampled_from(VALUES), min_size=1, max_size=2),
    path=st.sampled_from((*VALID, "/v1/models", "/health", "/ready", "/metrics", "/v1/none", "/%00/..//v1/gate?x=%ff")),
    method=st.sampled_from(("POST", "GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")),
    data=st.sampled_from((b"", b"{}", b"[]", b"\xff\xfe", b'{"messages":', json.dumps(CHAT).encode())),
)
def test_no_headers_methods_and_paths_are_a_fault_of_the_server(proxy, policy, path, method, data):
    headers = {f"x-kbtrain-{name}": value.encode() for name, value in policy.items()}
    assert proxy.ask(method, path, data, headers).status < 500


@pytest.mark.parametrize("path", [*VALID, "/health", "/v1/models"])
def test_a_header_of_100_kb_is_refused(proxy, path):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=30)
    connection.request("POST" if path in VALID else "GET", path, b"{}", {"x-long": "a" * 100_000})
    assert connection.getresponse().status in {400, 431}
    connection.close()
    assert served(proxy)


def test_clients_that_send_a_byte_at_a_time_are_cut_off_and_hold_up_nobody(proxy):
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 500\r\n\r\n{"
    slow = []
    for begun in (b"POST /v1/chat", head):
        for _ in range(10):
            client = socket.create_connection(("127.0.0.1", proxy.port), timeout=30)
            client.sendall(begun)
            slow.append(client)
    assert served(proxy)
    for client in slow:
        assert client.recv(65_536).startswith(b"HTTP/1.1 408 ")
        client.close()


def test_a_refused_client_gets_its_answer_though_it_goes_on_sending(proxy):
    """A socket closed over unread bytes is reset, and the answer lost."""
    for _ in range(5):
        reply = proxy.post("/v1/gate", b'{"messages": "' + b"x" * 10_000_000 + b'"}')
        assert (reply.status, reply.headers["connection"]) == (413, "close")
