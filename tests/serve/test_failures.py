"""Whatever fails behind the server, the client gets an answer or a clear error; whoever leaves stops the work."""

import asyncio
import json
import os
import re
import signal
import socket
import sys
import threading

import pytest
from model_server import EmbeddingServer
from serve_support import KNOWN, NEEDS, chat, serving
from stub_upstream import StubUpstream
from support.http_server import LocalServer
from support.scripts import run, start
from support.servers import free_port, wait_until

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.search import Search, open_search
from kbtrain.serve.server import reload

PATIENCE = 30  # seconds until a test gives up; nothing is asserted about time


@pytest.fixture
def stub():
    with StubUpstream() as running:
        yield running


def ask(server, text, **more):
    reply = server.post("/v1/chat/completions", chat(text, **more))
    return reply, reply.headers.get("x-kbtrain-reason"), reply.headers.get("x-kbtrain-retrieved")


class Broken:
    """Breaks a service's gate: raises, or waits for ``release``."""

    def __init__(self, server, error=None):
        self.release, self.begun = threading.Event(), threading.Event()
        gate = server.service.decider.loaded.gate

        def score(inputs):
            self.begun.set()
            if error is not None:
                raise error
            assert self.release.wait(PATIENCE)
            return type(gate).score_examples(gate, gate.examples(inputs))

        gate.score_all = lambda inputs: {gate.name: score(inputs)}


@pytest.mark.parametrize(
    ("policy", "status", "retrieved"), [("retrieve", 200, "1"), ("plain", 200, "0"), ("error", 502, "0")]
)
def test_a_gate_that_fails(gate, stub, policy, status, retrieved):
    with serving(gate, upstream=stub.url, search="serve_support:echo", on_gate_failure=policy) as server:
        Broken(server, ArithmeticError("no number"))
        reply, reason, found = ask(server, "What is the capital of France?")
        assert (reply.status, reason, found) == (status, "gate-failed", retrieved)
        assert server.post("/v1/gate", {"questions": [NEEDS]}).json["error"]["code"] == "gate_failed"
        name = server.service.decider.loaded.name
        decision = "search" if policy == "retrieve" else "plain"
        labels = f'decision="{decision}",gate="{name}",reason="gate-failed"'
        assert server.metric(f"kbtrain_decisions_total{{{labels}}}") == 1


def test_a_gate_s_failure_is_said_where_nothing_is_searched(gate, stub):
    with serving(gate, upstream=stub.url, search="none") as server:
        Broken(server, ArithmeticError("no number"))
        reply, reason, retrieved = ask(server, NEEDS)
    assert (reply.status, reason, retrieved) == (200, "gate-failed", "0")


def test_a_gate_slower_than_its_deadline_counts_as_failed(gate, stub):
    with serving(gate, upstream=stub.url, gate_deadline_s=0.05, on_gate_failure="plain") as server:
        broken = Broken(server)
        reply, reason, _ = ask(server, NEEDS)
        assert (reply.status, reason) == (200, "gate-failed")
        slow = server.post("/v1/gate", {"questions": [NEEDS, NEEDS]})
        assert slow.status == 504 and "decided 0 of 2 within 0.05 s" in slow.error and "decisions" not in slow.json
        broken.release.set()


def test_a_batch_that_the_deadline_overtakes_says_how_many_it_decided(gate, stub, tmp_path):
    log = tmp_path / "log.jsonl"
    with serving(gate, upstream=stub.url, gate_deadline_s=2, batch=2, log=log) as server:
        opened, release = server.service.decider.loaded.gate, threading.Event()

        def score(inputs):  # the third batch never ends
            if NEEDS in inputs:
                release.wait(PATIENCE)
            return {opened.name: [0.75] * len(inputs)}

        opened.score_all = score
        questions = [f"Book {i} tickets" for i in range(4)]
        slow = server.post("/v1/gate", {"questions": [*questions, NEEDS, "Book 9 tickets"]})
        release.set()
        assert slow.status == 504 and "the gate decided 4 of 6 within 2 s; send fewer at once" in slow.error
        assert [d["question"] for d in slow.json["decisions"]] == questions
        assert {d["retrieve"] for d in slow.json["decisions"]} == {True}
    assert len(log.read_text().splitlines()) == 4


def test_a_slow_gate_is_asked_in_smaller_batches_so_that_its_deadline_holds(gate):
    import time

    with serving(gate, gate_deadline_s=2, batch=32) as server:
        opened, sizes = server.service.decider.loaded.gate, []

        def score(inputs):
            sizes.append(len(inputs))
            time.sleep(0.4 * len(inputs))
            return {opened.name: [0.75] * len(inputs)}

        opened.score_all = score
        server.post("/v1/gate", {"questions": [KNOWN]})
        slow = server.post("/v1/gate", {"questions": [KNOWN] * 8})  # 3.2 s of work
        assert slow.status == 504 and len(slow.json["decisions"]) >= 2
        assert max(sizes) <= 2  # half of the deadline


def decisions(server):
    """Reason -> number of decisions, by the metrics."""
    shown = server.get("/metrics").body.decode()
    found = re.findall(r"^kbtrain_decisions_total\{.*reason=\"(.*)\"\} (.*)$", shown, re.MULTILINE)
    return {reason: float(n) for reason, n in found}


def test_a_full_queue_is_a_503_that_says_when_to_come_back(gate, stub):
    with serving(gate, upstream=stub.url, queue=1, batch=1) as server:
        broken = Broken(server)
        replies = []
        threads = [threading.Thread(target=lambda: replies.append(ask(server, NEEDS)[0])) for _ in range(6)]
        threads[0].start()
        assert broken.begun.wait(PATIENCE)  # the first has left the queue
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: len(replies) >= 4)  # one is scored, one waits
        broken.release.set()
        for thread in threads:
            thread.join()
        decided = decisions(server)
        while sum(decided.values()) < 2:  # an answer is counted behind it, a refusal before
            decided = decisions(server)
    refused = [reply for reply in replies if reply.status == 503]
    assert len(refused) == 4 and {reply.headers["retry-after"] for reply in refused} == {"1"}
    assert [reply.status for reply in replies].count(200) == 2
    assert sum(decided.values()) == 2 and all(decided)


HANGS = """
import asyncio, threading
from kbtrain.serve.search import thread_search

async def ask():
    search = thread_search("hangs", lambda query, k: threading.Event().wait(), 1)
    try:
        async with asyncio.timeout(0.2):
            await search.find("q", 1)
    except TimeoutError:
        print("slow", flush=True)
    await search.close()

asyncio.run(ask())
"""


def test_a_search_that_never_comes_back_does_not_keep_the_process(tmp_path):
    (tmp_path / "hangs.py").write_text(HANGS)
    done = run(str(tmp_path / "hangs.py"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "slow\n", "")


@pytest.mark.parametrize(
    ("name", "problem"),
    [(":f", "cannot be imported"), (".m:f", "cannot be imported"), ("json:__doc__", "is not a function")],
)
def test_what_is_no_function_to_search_with_is_one_line(gate, name, problem):
    config = build(ServeConfig, None, {"gate": gate, "model": "m", "search": name})
    with pytest.raises(UserError, match=f"key 'search': {re.escape(name)}: {problem}"):
        open_search(config)


class SearchService(LocalServer):
    """Answers by the last word of the query."""

    def reply(self, asked):
        word = asked.path.rpartition("%20")[2].partition("&")[0]
        if word == "hangs":
            threading.Event().wait(5)
        rows = [] if word == "nothing" else [{"name": "m", "head": "Museum", "body": "The museum opens at nine."}]
        replies = {"broken": (200, "<html>"), "nolist": (200, {"found": 3}), "down": (503, "")}
        return replies.get(word, (200, {"found": {"rows": rows}}))


@pytest.fixture(scope="module")
def service():
    with SearchService() as server:
        yield f"{server.url}/find?q={{query}}&n={{k}}"


MAPPING = {"results": "found.rows", "id": "name", "title": "head", "text": "body"}


FOUND = {
    "museum": ("above-threshold", "1"), "nothing": ("no-passages", "0"), "down": ("search-failed", "0"),
    "broken": ("search-failed", "0"), "nolist": ("search-failed", "0"), "hangs": ("search-slow", "0"),
}  # fmt: skip


def test_search_by_http_with_a_mapping_of_fields(gate, stub, service):
    settings = {"search": service, "search_mapping": MAPPING, "search_deadline_s": 0.5, "threshold": 0.0}
    with serving(gate, upstream=stub.url, **settings) as server:
        for word, expected in FOUND.items():
            reply, *found = ask(server, f"Tell me about the {word}")
            assert (reply.status, tuple(found)) == (200, expected)
            assert ("opens at nine" in stub.body()["messages"][0]["content"]) == (expected[1] == "1")


def test_a_search_that_fails_may_be_an_error(gate, stub, service):
    settings = {"search": service, "search_mapping": MAPPING, "on_search_failure": "error", "threshold": 0.0}
    with serving(gate, upstream=stub.url, **settings) as server:
        reply, reason, _ = ask(server, "Tell me about the down")
    assert (reply.status, reason) == (502, "search-failed")
    assert stub.requests == []


def test_functions_as_search(gate, stub, tmp_path, monkeypatch):
    (tmp_path / "my_search.py").write_text(
        "def plain(query, k):\n    return ['about ' + query]\n"
        "async def later(query, k):\n    return [{'text': 'later ' + query, 'id': 7}] * 9\n"
        "def wrong(query, k):\n    return 3\n"
        "def fails(query, k):\n    raise OSError('secret path')\n"
    )
    monkeypatch.chdir(tmp_path)
    expected = {"plain": f"about {NEEDS}", "later": f"later {NEEDS}", "wrong": None, "fails": None}
    for name, text in expected.items():
        with serving(gate, upstream=stub.url, search=f"my_search:{name}", k=2) as server:
            reply, reason, _ = ask(server, NEEDS)
        content = stub.body()["messages"][0]["content"]
        assert reply.status == 200
        assert (text or NEEDS) in content and (reason == "search-failed") == (text is None)
    sys.modules.pop("my_search")


@pytest.fixture(scope="module")
def vectors_folder(tmp_path_factory):
    """An index of three passages, and the server that embedded them."""
    from kbtrain.io import jsonl
    from kbtrain.records import Passage
    from kbtrain.retrieval.vectors import Embeddings, VectorBuild

    folder = tmp_path_factory.mktemp("run")
    texts = {"m": "The museum opens at nine", "t": "The theatre opens at ten", "z": "The zoo is closed"}
    jsonl.write(folder / "passages.jsonl", [Passage(name, name.upper(), text) for name, text in texts.items()])
    with EmbeddingServer() as server:
        of = Embeddings(server_url=server.url, server_model="words")
        assert list(VectorBuild(folder / "passages.jsonl", folder / "vectors", of).batches(8)) == [0, 3]
        yield folder / "vectors", server


def test_search_in_a_vector_store_and_without_its_server_of_embeddings(gate, stub, vectors_folder):
    folder, embeddings = vectors_folder
    with serving(gate, upstream=stub.url, search=str(folder), k=1, threshold=0.0) as server:
        reply, reason, found = ask(server, "museum")
        assert (reply.status, reason, found) == (200, "above-threshold", "1")
        assert "opens at nine" in stub.body()["messages"][0]["content"]
        embeddings.fail = [500, 500]
        reply, reason, found = ask(server, "zoo")
        assert (reply.status, reason, found) == (200, "search-failed", "0")
        assert "closed" not in stub.body()["messages"][0]["content"]
        reply, reason, _ = ask(server, "zoo")
        assert reason == "above-threshold" and "closed" in stub.body()["messages"][0]["content"]


class Slow(Search):
    """A search that waits and notes if its wait was cancelled."""

    def __init__(self):
        super().__init__("slow", self._find)
        self.begun, self.cancelled = threading.Event(), threading.Event()

    async def _find(self, query, k):
        self.begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return ()


def leave(server, begun, until=b"", **more):
    """Send a request, wait until ``begun`` and until the answer holds ``until``, close the connection."""
    data = json.dumps(chat(NEEDS, **more)).encode()
    client = socket.create_connection(("127.0.0.1", server.port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    assert begun.wait(PATIENCE)
    seen = b""
    while until not in seen:  # status and headers may come before the first token
        part = client.recv(65_536)
        assert part
        seen += part
    client.close()


def left_at(server, moment):
    """Wait until the server has counted a client that left at that moment."""
    for _ in range(PATIENCE * 100):
        if server.metric(f'kbtrain_client_left_total{{moment="{moment}"}}') == 1:
            return True
        threading.Event().wait(0.01)
    return False


def test_a_client_that_leaves_while_the_gate_decides_reaches_neither_search_nor_upstream(gate, stub):
    with serving(gate, upstream=stub.url, search="serve_support:echo") as server:
        broken = Broken(server)
        leave(server, broken.begun)
        assert left_at(server, "gate")
        broken.release.set()
        assert server.get("/health").status == 200
    assert stub.requests == []


def test_a_client_that_leaves_while_the_search_runs_ends_it(gate, stub):
    with serving(gate, upstream=stub.url, search_deadline_s=600) as server:
        slow = server.service.search = Slow()
        leave(server, slow.begun)
        assert slow.cancelled.wait(PATIENCE) and left_at(server, "search")
    assert stub.requests == []


@pytest.mark.parametrize(
    ("hold", "until", "moment"),
    [("first", b"", "first-token"), ("head", b"\r\n\r\n", "first-token"), ("stream", b'"i": 0', "stream")],
)
def test_a_client_that_leaves_later_ends_the_upstream_s_work(gate, stub, tmp_path, hold, until, moment):
    stub.hold = hold
    log = tmp_path / "log.jsonl"
    with serving(gate, upstream=stub.url, log=log) as server:
        leave(server, stub.begun, until, stream=hold != "first")
        assert stub.gone.wait(PATIENCE) and left_at(server, moment)
    assert json.loads(log.read_text())["outcome"] == f"client-left-at-{moment}"


def test_a_reload_puts_the_new_gate_in_place_without_a_dropped_request(tmp_path, stub):
    from serve_support import probe_folder

    from kbtrain.gate.card import CARD

    folder = probe_folder(tmp_path / "probe")
    with serving(folder, upstream=stub.url) as server:
        before, statuses, stop = server.service.decider.loaded.name, [], threading.Event()

        def client():
            while not stop.is_set():
                statuses.append(ask(server, NEEDS)[0].status)

        thread = threading.Thread(target=client)
        thread.start()
        card = json.loads((folder / CARD).read_text())
        (folder / CARD).write_text("{")
        reload(server.service)  # broken: the old one goes on
        wait_until(lambda: server.metric('kbtrain_reloads_total{result="failed"}') == 1)
        assert server.service.decider.loaded.name == before
        card["thresholds"]["encoder_probe"]["threshold"] = 0.99
        (folder / CARD).write_text(json.dumps({**card, "seed": 5}))
        server.service.decider.reload()
        found = server.post("/v1/gate", {"questions": [NEEDS]}).json
        stop.set()
        thread.join()
    assert found["gate"] != before and found["decisions"][0]["threshold"] == 0.99
    assert set(statuses) == {200}


def test_killed_under_load_leaves_no_torn_line_and_starts_again_until_a_signal_ends_it(gate, tmp_path, stub):
    from kbtrain.report.traffic import read_log

    log, port = tmp_path / "log.jsonl", free_port()
    command = ["kbtrain/cli.py", "serve", gate, f"port={port}", f"upstream={stub.url}", "search=none", f"log={log}"]
    script = start(*command)
    wait_for(port, script)
    statuses, stop = [], threading.Event()

    def client():
        import http.client

        while not stop.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
            try:
                connection.request("POST", "/v1/chat/completions", json.dumps(chat(KNOWN, stream=True)))
                statuses.append(connection.getresponse().status)
            except (OSError, http.client.HTTPException):
                return
            finally:
                connection.close()

    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(statuses) >= 40)
    script.send_signal(signal.SIGKILL)
    script.wait(PATIENCE)  # else its socket may answer for the next one, which no signal must reach before it listens
    stop.set()
    for thread in threads:
        thread.join()
    assert set(statuses) == {200} and len(list(read_log(log))) >= 15
    script = start(*command)
    wait_for(port, script)
    os.kill(script.pid, signal.SIGHUP)
    while "reload" not in script.stderr:
        assert script.poll() is None
        threading.Event().wait(0.05)
    script.send_signal(signal.SIGTERM)
    script.wait(PATIENCE)
    assert script.poll() == 0  # else it was gone before the log was written out
    assert "is in place" in script.stderr and "Traceback" not in script.stderr


def wait_for(port, script):
    for _ in range(100 * PATIENCE):
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            assert script.poll() is None, script.stderr
            threading.Event().wait(0.05)
    raise AssertionError(script.stderr)
