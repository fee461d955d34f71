"""The hook for LiteLLM's proxy: in a real proxy, and as the proxy calls it, against a real server of a gate.

KBTRAIN_LITELLM_PYTHON names the Python of an environment with ``litellm[proxy]`` (``make test-adapters`` makes one).
"""

import ast
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from serve_support import KNOWN, NEEDS
from stub_upstream import StubUpstream
from support.servers import free_port

FILE = Path(__file__).parents[2] / "kbtrain" / "adapters" / "kbtrain_litellm.py"
PYTHON = os.environ.get("KBTRAIN_LITELLM_PYTHON")
KEY = "a-key-of-the-tests"


class Streaming(StubUpstream):
    """A stub whose stream is OpenAI's."""

    def part(self, i, body):
        choice = {"index": 0, "delta": {"content": "a"}, "finish_reason": "stop" if i == self.tokens - 1 else None}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "stub", "choices": [choice]}
        return f"data: {json.dumps(chunk)}\n\n".encode() + b"data: [DONE]\n\n" * (i == self.tokens - 1)


@pytest.fixture(scope="module")
def proxy(server, tmp_path_factory):
    """LiteLLM's proxy with the hook beside its configuration, two models and a stub as their upstream."""
    if PYTHON is None:
        pytest.skip("KBTRAIN_LITELLM_PYTHON is not set; run: make test-adapters")
    folder, port = tmp_path_factory.mktemp("litellm"), free_port()
    shutil.copy(FILE, folder)
    with Streaming() as upstream:
        models = [
            {
                "model_name": name,
                "litellm_params": {"model": f"openai/{name}", "api_base": upstream.url, "api_key": "x"},
            }
            for name in ("plain", "rag")
        ]
        settings = {"model_list": models, "litellm_settings": {"callbacks": ["kbtrain_litellm.gate"]}}
        (folder / "config.yaml").write_text(yaml.safe_dump(settings))
        env = {**os.environ, "KBTRAIN_URL": server.url, "KBTRAIN_KEY": KEY, "KBTRAIN_SEARCH_MODEL": "rag"}
        env |= {"LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "KBTRAIN_TIMEOUT_S": "30"}
        env |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False"}
        start = "from litellm import run_server; run_server()"
        command = [PYTHON, "-c", start, "--config", "config.yaml", "--host", "127.0.0.1", "--port", port]
        log = (folder / "log.txt").open("wb")
        running = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
        try:
            wait_for(port, running, folder / "log.txt")
            yield port, upstream
        finally:
            running.terminate()
            running.wait(30)


def wait_for(port, running, log, seconds=240):
    """Return once the proxy answers."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and running.poll() is None:
        try:
            if asked(port, "GET", "/health/liveliness")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(log.read_text()[-2000:])


def asked(port, method, path, body=None):
    """Status, headers and body of one request."""
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
    try:
        connection.request(method, path, body, {"content-type": "application/json"})
        reply = connection.getresponse()
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read()
    finally:
        connection.close()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("question, model", [(NEEDS, "rag"), (KNOWN, "plain")])
def test_a_real_proxy_takes_both_branches_and_says_so_in_its_headers(proxy, question, model, stream):
    port, upstream = proxy
    searching = {"tools": [{"type": "file_search", "vector_store_ids": ["v"]}]} if model == "plain" else {}
    body = {"model": "plain", "messages": [{"role": "user", "content": question}], "stream": stream, **searching}
    status, headers, answer = asked(port, "POST", "/v1/chat/completions", json.dumps(body))
    assert status == 200, answer
    assert upstream.body()["model"] == model and "tools" not in upstream.body()
    assert headers["x-kbtrain-retrieved"] == str(int(model == "rag"))
    assert (float(headers["x-kbtrain-score"]) > float(headers["x-kbtrain-threshold"])) is (model == "rag")
    assert "kbtrain" not in upstream.requests[-1][2].decode()


CALL = """
import asyncio, json, os, sys
import kbtrain_litellm
for case in json.load(sys.stdin):
    os.environ.update(case["settings"])
    gate = kbtrain_litellm.KbtrainGate()
    for name in case["settings"].keys() - {"KBTRAIN_URL"}:
        del os.environ[name]
    made = asyncio.run(gate.async_pre_call_hook(None, None, case["data"], case["call_type"]))
    said = gate.async_post_call_response_headers_hook(made or case["data"], None, None, request_headers={})
    print("made", json.dumps([made, asyncio.run(said)]))
"""
FUNCTION = {"type": "function", "function": {"name": "f"}}
GONE = {"KBTRAIN_URL": "http://127.0.0.1:9", "KBTRAIN_SEARCH_MODEL": "rag"}


def case(content, call_type="acompletion", settings=None, **fields):
    """A request to the hook, with the settings that it is made under."""
    data = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    return {"data": data, "call_type": call_type, "settings": settings or {}}


CASES = {
    "search": case(NEEDS, settings={"KBTRAIN_VECTOR_STORES": "a, b"}),
    "plain": case(
        KNOWN, vector_store_ids=["c"], tools=[FUNCTION, {"type": "file_search"}], tool_choice={"type": "file_search"}
    ),
    "no tools left": case(KNOWN, tools=[{"type": "file_search"}], tool_choice="auto"),
    "no chat": case(NEEDS, "aembedding"),
    "a picture": case([{"type": "image_url", "image_url": {"url": "data:"}}]),
    "no gate, leave": case(NEEDS, settings=GONE),
    "no gate, retrieve": case(KNOWN, settings={**GONE, "KBTRAIN_ON_FAILURE": "retrieve"}),
    "no gate, plain": case(NEEDS, settings={**GONE, "KBTRAIN_ON_FAILURE": "plain"}, vector_store_ids=["v"]),
}


@pytest.fixture(scope="module")
def hooked(server):
    """What the hook makes of each request, in one process with a real litellm, and its headers."""
    if PYTHON is None and find_spec("litellm") is None:
        pytest.skip("litellm is not installed; run: make test-adapters")
    env = {**os.environ, "KBTRAIN_KEY": KEY, "KBTRAIN_TIMEOUT_S": "60"}
    env |= {"PYTHONPATH": str(FILE.parent), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    cases = [{**one, "settings": {"KBTRAIN_URL": server.url, **one["settings"]}} for one in CASES.values()]
    command = [PYTHON or sys.executable, "-c", CALL]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    told = [line.removeprefix("made ") for line in done.stdout.splitlines() if line.startswith("made ")]
    return dict(zip(CASES, map(json.loads, told), strict=True))


def test_vector_stores_come_and_go(hooked):
    made, said = hooked["search"]
    assert made["vector_store_ids"] == ["a", "b"] and made["model"] == "m" and said["x-kbtrain-retrieved"] == "1"
    made, said = hooked["plain"]
    assert (
        not {"vector_store_ids", "tool_choice"} & set(made)
        and made["tools"] == [FUNCTION]
        and said["x-kbtrain-retrieved"] == "0"
    )
    assert not {"tools", "tool_choice"} & set(hooked["no tools left"][0])


def test_other_requests_pass_as_they_came(hooked):
    assert hooked["no chat"] == hooked["a picture"] == [None, None]


def test_without_a_decision_the_setting_holds(hooked):
    assert hooked["no gate, leave"] == [None, None]
    made, said = hooked["no gate, retrieve"]
    assert made["model"] == "rag" and said == {"x-kbtrain-retrieved": "1", "x-kbtrain-reason": "gate-failed"}
    made, _ = hooked["no gate, plain"]
    assert made["model"] == "m" and "vector_store_ids" not in made


def test_the_file_stands_alone():
    nodes = [node for node in ast.walk(ast.parse(FILE.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {(alias.name if isinstance(node, ast.Import) else node.module) for node in nodes for alias in node.names}
    assert {name.split(".")[0] for name in imported} - set(sys.stdlib_module_names) == {"litellm"}
