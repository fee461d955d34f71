"""``kbtrain serve`` in the campaign: started, asked on each of its ways, asked again by a sound upstream, and stopped.

Whoever asks takes any reply of a proxied server, cut off or without end; what counts is that the gateway itself stays
whole: it ends nothing by an error of its own, answers each request, and goes on when the upstream is sound again.
"""

from __future__ import annotations

import http.client
import json
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from support import scripts

MESSAGES = [{"role": "user", "content": "What is the capital of train place 1?"}]
CHAT = {"model": "tiny", "messages": MESSAGES}
REQUESTS: tuple[tuple[str, str, Any], ...] = (
    ("POST", "/v1/gate", {"questions": ["What is the capital of train place 1?", "Who wrote book 3?"]}),
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", {**CHAT, "stream": True}),
    ("POST", "/v1/completions", {"model": "tiny", "prompt": "What is the capital of train place 1?"}),
    ("GET", "/v1/models", None),
    ("GET", "/ready", None),
    ("GET", "/metrics", None),
)
ADDRESS = re.compile(r" answers at http://127\.0\.0\.1:(\d+)/v1$", re.MULTILINE)
PATIENCE = 120.0  # seconds for the gateway's own work on a busy machine
LONGEST = 8.0  # seconds that a reply without end is read


def served(
    argv: Sequence[str], here: Path, env: Mapping[str, str], recover: Callable[[], bool], timeout: float
) -> scripts.Done[str]:
    """Run ``kbtrain serve`` from its start to SIGTERM; decisions are kept in ``served.json`` of its folder.

    ``recover`` makes the upstream sound; True if it was not, so that a chat must pass then.
    """
    started = scripts.start("-m", "kbtrain.cli", *argv, cwd=here, env=env)
    until = time.monotonic() + timeout
    while not (address := ADDRESS.search(started.stdout + started.stderr)):
        if started.poll() is not None:
            return scripts.Done(started.args, started.wait(), started.stdout, started.stderr)
        if time.monotonic() > until:
            started.kill()
            raise AssertionError("hangs before it listens")
        time.sleep(0.02)
    wrong = _asked(int(address[1]), here, recover, started)
    started.send_signal(signal.SIGTERM)
    code = started.wait(timeout)
    ended = [] if code in (0, -signal.SIGTERM) else [f"ends with {code} at SIGTERM"]
    logged = [line for line in started.stderr.splitlines() if " ERROR " in line][:1]
    problems = [*wrong, *ended, *logged]
    return scripts.Done(started.args, 1 if problems else 0, started.stdout, started.stderr + "\n".join(problems))


def _asked(port: int, here: Path, recover: Callable[[], bool], started: scripts.Script) -> list[str]:
    wrong = []
    for method, path, body in REQUESTS:
        status, data, problem = ask(port, method, path, body)
        if problem:
            wrong.append(f"{method} {path}: {problem}")
        if path == "/v1/gate" and status == 200:
            made = json.loads(data)["decisions"]
            (here / "served.json").write_text(json.dumps(made), encoding="utf-8")
        if started.poll() is not None:
            return [*wrong, f"gone after {method} {path}"]
    if recover():
        status, _, problem = ask(port, "POST", "/v1/chat/completions", CHAT)
        if problem or status != 200:
            wrong.append(f"a sound upstream's answer does not come back: {problem or status}")
    return wrong


def ask(port: int, method: str, path: str, body: Any) -> tuple[int, bytes, str | None]:
    """Status, what came of the body, and what is wrong with the reply. A body is read for some seconds alone."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        sent = None if body is None else json.dumps(body).encode()
        connection.request(method, path, sent, {"content-type": "application/json"})
        reply = connection.getresponse()
        until, data = time.monotonic() + LONGEST, b""
        own = b"internal" if reply.status == 500 else None
        while time.monotonic() < until and (chunk := reply.read1(1 << 20)):
            data = data[: 1 << 20] + chunk
        if own and own in data:
            return reply.status, data, f"500: {data[:200]!r}"
        return reply.status, data, None
    except TimeoutError:
        return 0, b"", "no answer"
    except (OSError, http.client.HTTPException) as error:  # an upstream's reply cut off is cut off here, too
        return 0, b"", None if isinstance(error, http.client.IncompleteRead) else repr(error)
    finally:
        connection.close()
