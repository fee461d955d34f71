"""Servers that lie: one in OpenAI's protocol, and what can be wrong with its replies, of which one thing is drawn.

What a client of it may do is bounded by its own settings (``--server-timeout``, ``--server-tries``,
``--server-patience``), which are small here.
"""

from __future__ import annotations

import copy
import gzip
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from model_server import completion, vector
from support.http_server import LocalServer
from torture.damage import WRONG

KEY = "sk-planted-in-the-campaign"  # of the client; a server may send it back, and no file or line may show it
ENDLESS = 80 * 2**20  # bytes, more than any client reads
LONGEST = 60.0  # seconds after which a lie that takes its time is over by itself, should the client not go


def right(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The reply of a sound server."""
    if path.endswith("/embeddings"):
        rows = [{"index": i, "embedding": [*vector(text)[:8], 1.0]} for i, text in enumerate(body["input"])]
        return {"object": "list", "data": rows, "model": body["model"]}
    chat = "chat" in path
    made = completion(
        {"temperature": 1.0, **body}, 100, True, chat, lambda request, place: f"1 Yes {request.get('seed', 0) + place}"
    )
    wanted = body.get("top_logprobs") if chat else body.get("logprobs")
    if type(wanted) is int and wanted > 1:
        top = {"Yes": -0.25, "No": -2.0}
        for choice in made["choices"]:
            if chat:
                for token in choice["logprobs"]["content"]:
                    token["top_logprobs"] = [{"token": name, "logprob": value} for name, value in top.items()]
            else:
                choice["logprobs"]["top_logprobs"] = [top for _ in choice["logprobs"]["token_logprobs"]]
    return made


def listed() -> dict[str, Any]:
    """The list of models of a sound server."""
    return {"object": "list", "data": [{"id": "tiny", "object": "model", "owned_by": "test"}]}


Content = Callable[[dict[str, Any], random.Random], Any]
Told = Callable[["Handler", dict[str, Any]], object]


@dataclass(frozen=True)
class Lie:
    """``tells`` writes the reply in the place of the right one. ``passes``: no client can take it for a right one."""

    name: str
    tells: Told
    passes: bool = False


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    inner = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    return found + [one for key, held in inner for one in _places(held, (*path, key))]


def _changed(reply: dict[str, Any], seed: int) -> tuple[str, dict[str, Any]]:
    """One place of a reply missing, duplicate, or of a wrong value."""
    rng = random.Random(seed)
    made = copy.deepcopy(reply)
    path = rng.choice(_places(made))
    held = made
    for key in path[:-1]:
        held = held[key]
    values = (
        *WRONG, float("inf"), float("-inf"), 5.0, True, "\ud800", "", "x\n\x00\x1b[2J", "9" * 5000, [None], {"a": 1},
    )  # fmt: skip
    how = rng.randrange(len(values) + 2)
    if how == len(values):
        del held[path[-1]]
        return f"without {path}", made
    if how > len(values):
        held[path[-1]] = [held[path[-1]]] * 3
        return f"{path} in a list of three", made
    held[path[-1]] = values[how]
    return f"{path} = {values[how]!r:.20}", made


def _content(change: Content) -> Told:
    return lambda handler, reply: handler.say(json.dumps(change(copy.deepcopy(reply), random.Random(0))))


def _choices(number: int) -> Content:
    def change(reply: dict[str, Any], rng: random.Random) -> dict[str, Any]:
        for name in ("choices", "data"):
            if name in reply:
                reply[name] = (reply[name] * (number + 1))[:number]
        return reply

    return change


def _text(text: str) -> Content:
    def change(reply: dict[str, Any], rng: random.Random) -> dict[str, Any]:
        for choice in reply.get("choices", []):
            choice["text"], choice["message"] = text, {"role": "assistant", "content": text}
        return reply

    return change


def _logprob(value: float) -> Content:
    def change(reply: dict[str, Any], rng: random.Random) -> dict[str, Any]:
        return json.loads(json.dumps(reply).replace("-0.25", json.dumps(value)))

    return change


CONTENT: tuple[Lie, ...] = (
    *(Lie(f"{n} choices or vectors", _content(_choices(n)), n == 0) for n in (0, 1, 7)),
    *(
        Lie(f"text {text!r:.20}", _content(_text(text)))
        for text in ("\ud800\udc00\ud800", "", "\x00", "x" * 10**6, "\u202e")
    ),
    *(Lie(f"log-probabilities {value}", _content(_logprob(value))) for value in (float("nan"), float("-inf"), 7.0)),
    Lie("its caller's key as text", lambda handler, reply: handler.say(json.dumps(_text(handler.key())(reply, None)))),
)


def _body(data: bytes, **headers: str) -> Told:
    return lambda handler, _: handler.say(data, headers=headers)


def _status(status: int, data: bytes = b"{}", **headers: str) -> Told:
    return lambda handler, _: handler.say(data, status, headers)


def _raw(data: bytes) -> Told:
    def tell(handler: Handler, _: dict[str, Any]) -> None:
        handler.close_connection = True
        handler.wfile.write(data)

    return tell


def _cut(handler: Handler, reply: dict[str, Any]) -> None:
    data = json.dumps(reply).encode()
    handler.close_connection = True
    handler.say(data[: len(data) // 2], headers={"content-length": str(len(data))})


def _half(handler: Handler, reply: dict[str, Any]) -> None:
    data = json.dumps(reply).encode()
    handler.say(data[: len(data) // 2])


def _hang_up(handler: Handler, _: dict[str, Any]) -> None:
    handler.close_connection = True


def _drip(data: bytes) -> Told:
    """A byte every now and then, so that no pause is ever long."""

    def tell(handler: Handler, _: dict[str, Any]) -> None:
        handler.close_connection = True
        until = time.monotonic() + LONGEST
        handler.wfile.write(data)
        while time.monotonic() < until and not handler.server.over.wait(0.1):
            handler.wfile.write(b" ")

    return tell


def _silent(handler: Handler, _: dict[str, Any]) -> None:
    handler.close_connection = True
    handler.server.over.wait(LONGEST)


def _endless(handler: Handler, _: dict[str, Any]) -> None:
    handler.close_connection = True
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
    for _i in range(ENDLESS >> 20):
        handler.wfile.write(b" " * 2**20)


def _echo(status: int) -> Told:
    def tell(handler: Handler, _: dict[str, Any]) -> None:
        said = {"error": {"message": f"not allowed: {handler.key()}", "param": dict(handler.headers)}}
        handler.say(json.dumps(said), status, {"retry-after": "0", "x-echo": handler.key()})

    return tell


HEAD = b"HTTP/1.1 200 OK\r\n"
BOMB = gzip.compress(b" " * ENDLESS, compresslevel=1)
TRANSPORT: tuple[Lie, ...] = tuple(
    Lie(name, tells, passes=True)
    for name, tells in {
        "no answer at all": _hang_up,
        "a body that is cut off": _cut,
        "half a JSON": _half,
        "a drip of bytes": _drip(HEAD + b"connection: close\r\n\r\n{"),
        "a drip of headers": _drip(HEAD + b"x: "),
        "silence": _silent,
        "a body without end": _endless,
        "a compressed body without end": _body(BOMB, **{"content-encoding": "gzip"}),
        "gzip that is none": _body(b"{}", **{"content-encoding": "gzip"}),
        "no HTTP": _raw(b"SSH-2.0-OpenSSH_9.6\r\n"),
        "zero bytes": _raw(bytes(300)),
        "a header without end": _raw(HEAD + b"x: " + b"y" * 10**6),
        "a length that is none": _raw(HEAD + b"content-length: -5\r\n\r\n{}"),
        "chunks that are none": _raw(HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"),
        "status 999": _status(999),
        "status 204": _status(204, b""),
        "status 100": _raw(b"HTTP/1.1 100 Continue\r\n\r\n" * 3),
        "a redirection to itself": _status(302, b"", location="/v1/chat/completions"),
        **{f"is {data[:12]!r}": _body(data) for data in (
            b"", b"[]", b"null", b"3", b'"x"', b"{}", b"OK", b"\xff\xfe\x00\xd8", b'\xef\xbb\xbf{"choices": [1]}',
            b"NaN", b"[" * 10**5, b'{"choices": ' + b"9" * 5000 + b"}", b"<html>\r\n<h1>502</h1>\r\n</html>",
        )},
        **{f"busy, retry-after {after}": _status(429, b"{}", **{"retry-after": after})
           for after in ("inf", "nan", "-1", "1e999", "soon", "Fri, 31 Dec 9999 23:59:59 GMT", "9" * 400)},
        **{f"its caller's key with status {status}": _echo(status) for status in (200, 400, 401, 404, 429, 500)},
    }.items()
)  # fmt: skip


class Liar(LocalServer):
    """Tells :attr:`lie` to those requests for which :attr:`to` holds (method, number), and the truth to others."""

    path = "/v1"

    def __init__(self) -> None:
        super().__init__(Handler)
        self.guard, self.over = threading.Lock(), threading.Event()
        self.asked = {"GET": 0, "POST": 0}
        self.lie: Lie | None = None
        self.to: Callable[[str, int], bool] = lambda path, number: True
        self.told: dict[Any, Any] = {}

    def truth(self, way: Any, ask: Callable[[], Any]) -> Any:
        """What ``ask`` returns while the truth is told; each ``way`` asks once."""
        if way not in self.told:
            self.lies(None)
            self.told[way] = ask()
        return self.told[way]

    def lies(self, lie: Lie | None, to: Callable[[str, int], bool] = lambda path, number: True) -> None:
        """From now on; what was still told to an earlier client ends."""
        self.over.set()
        self.over = threading.Event()
        self.lie, self.to, self.asked = lie, to, {"GET": 0, "POST": 0}

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that has gone away


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Liar

    def log_message(self, *_: object) -> None: ...

    def key(self) -> str:
        return str(self.headers.get("authorization"))

    def do_GET(self) -> None:
        self._answer(listed())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._answer(right(self.path, body))

    def _answer(self, reply: dict[str, Any]) -> None:
        server = self.server
        with server.guard:
            number = server.asked[self.command]
            server.asked[self.command] += 1
            lie = server.lie if server.lie is not None and server.to(self.command, number) else None
        if lie is None:
            self.say(json.dumps(reply))
        else:
            lie.tells(self, reply)

    def say(self, text: str | bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        for name, value in {"content-length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)


TO: dict[str, Callable[[str, int], bool]] = {
    "every request": lambda method, number: True, "every question": lambda method, number: method == "POST",
    "the first question": lambda method, number: method == "POST" and number == 0,
    "one question in two": lambda method, number: method == "POST" and number % 2 == 1,
    "the list of models": lambda method, number: method == "GET",
}  # fmt: skip


def field(seed: int) -> Lie:
    """One place of each reply out of order."""
    return Lie(f"field {seed}", lambda handler, reply: handler.say(json.dumps(_changed(reply, seed)[1])))


def drawn(rng: random.Random) -> tuple[Lie, str]:
    """A lie and to what it is told, a key of :data:`TO`."""
    kind = rng.randrange(4)
    if kind == 0:
        lie = rng.choice(CONTENT)
    elif kind == 1:
        lie = rng.choice(TRANSPORT)
    else:
        lie = field(rng.randrange(10**9))
    return lie, rng.choice(sorted(TO))
