"""Resources that run out: descriptors, room for requests, the disk, the gate's thread."""

import asyncio
import errno
import json
import logging
import re
import resource
import signal
import socket
import threading
import time

import pytest
from serve_support import KNOWN, serving
from stub_upstream import StubUpstream
from support.files import full_disk
from support.scripts import start
from support.servers import wait_until

from kbtrain.report.traffic import read_log
from kbtrain.serve import decide, service
from kbtrain.serve.decide import GateWorker
from kbtrain.serve.decision_log import DecisionLog
from kbtrain.serve.problem import Busy
from kbtrain.serve.server import OncePerSecond, raise_open_files


class CountingUpstream(StubUpstream):
    """Counts the times that its models are asked for, and answers when ``release`` is set."""

    def __init__(self):
        super().__init__()
        self.listed, self.release = 0, threading.Event()
        self.release.set()

    async def _request(self, reader, writer):
        import asyncio

        line = await reader.readuntil(b"\r\n\r\n")
        assert line.startswith(b"GET ")
        self.listed += 1
        while not self.release.is_set():
            await asyncio.sleep(0.005)
        self._whole(writer, 200, json.dumps({"object": "list", "data": []}))
        return True


def test_readiness_asks_the_upstream_once_for_all_and_takes_no_room(gate, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "FRESH", 3600.0)
    (tmp_path / "keys.txt").write_text("a-key-of-sixteen-characters\n")
    key = {"authorization": "Bearer a-key-of-sixteen-characters"}
    with CountingUpstream() as stub:
        stub.release.clear()
        settings = {"upstream": stub.url, "keys": tmp_path / "keys.txt", "max_inflight": 4}
        with serving(gate, **settings) as server:
            seen = []
            callers = [threading.Thread(target=lambda: seen.append(server.get("/ready").status)) for _ in range(20)]
            for caller in callers:
                caller.start()
            wait_until(lambda: stub.listed)
            holder = server.ask("POST", "/v1/gate", {"questions": [KNOWN]}, key)  # the 20 are still under way
            stub.release.set()
            for caller in callers:
                caller.join()
    assert holder.status == 200
    assert seen == [200] * 20 and stub.listed == 1


class Panic(BaseException):
    """As the error of a panic in a library that is written in Rust."""


@pytest.mark.parametrize("error", [Panic("the words of a client"), StopIteration(), SystemExit(3)])
def test_the_gate_s_thread_survives_whatever_is_raised_in_it(gate, error, caplog, monkeypatch):
    with serving(gate) as server:
        loaded = server.service.decider.loaded.gate
        with monkeypatch.context() as patched:
            patched.setattr(loaded, "score_all", lambda inputs: (_ for _ in ()).throw(error), raising=False)
            reply = server.post("/v1/gate", {"questions": [KNOWN]})
            assert (reply.status, reply.json["error"]["code"]) == (502, "gate_failed")
        assert server.post("/v1/gate", {"questions": [KNOWN]}).status == 200
        assert server.get("/ready").status == 200
    assert "the words of a client" not in caplog.text


def test_a_server_whose_gate_has_ended_is_not_ready(gate):
    with serving(gate) as server:
        server.service.decider.worker.close()
        reply = server.get("/ready")
        assert (reply.status, reply.json["error"]["code"]) == (503, "gate_stopped")


def test_a_panic_in_a_handler_is_a_500_without_a_traceback_of_the_server(gate, caplog, monkeypatch):
    from kbtrain.serve import app

    words = "the words of a client"

    def panic(*_):
        raise Panic(words)

    monkeypatch.setattr(app, "_inputs", panic)
    with serving(gate) as server:
        assert server.post("/v1/gate", {"questions": [KNOWN]}).status == 500
    assert "Panic" in caplog.text and "words of a client" not in caplog.text
    assert not any(record.exc_info for record in caplog.records)


def test_after_a_full_disk_the_log_goes_on_behind_a_whole_line(tmp_path, caplog):
    path, lost = tmp_path / "log.jsonl", []
    log = DecisionLog(path, 100, 2, lambda: lost.append(1))
    with full_disk(1000):
        for i in range(30):
            log.write({"i": i, "pad": "x" * 50}, None, False)
        wait_until(lambda: lost and not log._waiting.qsize())
        time.sleep(0.05)  # the last line is taken from the queue before it is written
    log.write({"i": 30}, None, False)
    log.close()
    rows = [row["i"] for row in read_log(path)]
    assert rows == [*range(30 - len(lost)), 30]
    assert f"written again; {len(lost)} decisions are lost" in caplog.text


def test_lost_decisions_are_a_metric(gate, tmp_path):
    with serving(gate, log=tmp_path / "log.jsonl") as server, full_disk(1500):
        server.post("/v1/gate", {"questions": [KNOWN] * 20})
        log = tmp_path / "log.jsonl"
        wait_until(lambda: server.metric("kbtrain_log_lost_total") + len(log.read_bytes().splitlines()) >= 20)
        assert server.metric("kbtrain_log_lost_total") > 10
    assert (tmp_path / "log.jsonl").read_bytes().endswith(b"}\n")


def test_a_log_s_message_is_written_once_a_second_and_the_next_says_how_many_were_not():
    limit = OncePerSecond()

    def record(text, *args, created):
        made = logging.LogRecord("kbtrain.serve", logging.WARNING, "f", 1, text, args, None)
        made.created = created
        return made

    times = [0.0, 0.1, 0.9, 1.1, 1.2]
    passed = [
        (made.getMessage(), shown)
        for i, at in enumerate(times)
        for made in [record("upstream: try %d", i, created=at)]
        for shown in [limit.filter(made)]
        if shown
    ]
    assert passed == [("upstream: try 0", True), ("upstream: try 3 (2 more since)", True)]
    assert limit.filter(record("another: %d", 1, created=1.2))
    # two warnings of one moment, both passed as values
    assert limit.filter(record("%s", "the scores have moved", created=1.2))
    assert limit.filter(record("%s", "the questions have moved", created=1.2))
    assert not limit.filter(record("%s", "the questions have moved", created=1.3))


def test_the_soft_limit_of_open_files_is_raised():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        assert raise_open_files() == min(hard, 65_536) == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


FEW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
from kbtrain.cli import main
from kbtrain.serve import server
server.raise_open_files = lambda: 10**6  # as where the upstream and the search hold the descriptors
raise SystemExit(main(["serve", *sys.argv[1:]]))
"""


def test_used_up_descriptors_are_a_line_a_second_and_the_server_comes_back(gate, tmp_path):
    (tmp_path / "few.py").write_text(FEW)
    script = start(str(tmp_path / "few.py"), gate, "port=0", "search=none")
    try:
        while not (said := re.search(r"answers at http://127\.0\.0\.1:(\d+)", script.stderr)):
            assert script.poll() is None
            time.sleep(0.05)
        port, before = int(said[1]), len(script.stderr.splitlines())
        idle = [_connect(port) for _ in range(200)]
        began = time.monotonic()
        time.sleep(1.5)
        for client in idle:
            client.close()
        assert _health(port)
        seconds = time.monotonic() - began
    finally:
        script.send_signal(signal.SIGTERM)
        script.wait(30)
    lines = script.stderr.splitlines()
    assert any("no file descriptor is left" in line for line in lines)
    assert len(lines) - before <= 2 * (seconds + 1), lines[:20]
    assert not any("Traceback" in line for line in lines)


def _connect(port):
    client = socket.socket()
    client.setblocking(False)
    try:
        client.connect(("127.0.0.1", port))
    except BlockingIOError as error:
        assert error.errno == errno.EINPROGRESS
    return client


def _health(port):
    for _ in range(100):
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as client:
                client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                if client.recv(100).startswith(b"HTTP/1.1 200"):
                    return True
        except OSError:
            pass
        time.sleep(0.1)
    return False


def test_a_connection_beyond_the_limit_gets_a_503(gate, monkeypatch):
    from kbtrain.serve import server as module

    monkeypatch.setattr(module, "raise_open_files", lambda: 8)
    with serving(gate) as server:
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(4)]
        held[-1].sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert held[-1].recv(100).startswith(b"HTTP/1.1 200")
        with socket.create_connection(("127.0.0.1", server.port)) as fifth:
            assert fifth.recv(100).startswith(b"HTTP/1.1 503")
        for client in held:
            client.close()
        assert _health(server.port)


# The gate's thread: batches, bounds, failures that stay with whom they belong, and no work for clients that left


class Held:
    """Doubles numbers given as text, after ``open`` is set; notes its batches."""

    def __init__(self):
        self.open = threading.Event()
        self.begun = threading.Event()
        self.batches: list[list[str]] = []

    def __call__(self, values):
        self.batches.append(list(values))
        self.begun.set()
        assert self.open.wait(30)
        if any(value == "bad" for value in values):
            raise ValueError("bad input")
        return [2 * int(value) for value in values]


def run(scenario, most=4, room=8):
    held = Held()
    worker = GateWorker(held, most, 0.0, room)
    try:
        return asyncio.run(scenario(worker, held)), held.batches
    finally:
        held.open.set()
        worker.close()


async def begun(held):
    """The worker is at its first batch; what comes now waits."""
    assert await asyncio.to_thread(held.begun.wait, 30)


def test_what_waits_while_a_batch_is_scored_is_the_next_batch():
    async def scenario(worker, held):
        first = asyncio.ensure_future(worker.score(["0"]))
        await begun(held)
        rest = [asyncio.ensure_future(worker.score([str(i)])) for i in range(1, 7)]
        await asyncio.sleep(0)
        held.open.set()
        return [await first] + [await one for one in rest]

    found, batches = run(scenario)
    assert found == [[2 * i] for i in range(7)]
    assert batches == [["0"], ["1", "2", "3", "4"], ["5", "6"]]


def test_one_bad_input_fails_alone():
    async def scenario(worker, held):
        held.open.set()
        return await asyncio.gather(*(worker.score([v]) for v in ("1", "bad", "3")), return_exceptions=True)

    found, _ = run(scenario)
    assert found[0] == [2] and found[2] == [6]
    assert isinstance(found[1], ValueError)


def test_the_question_of_a_client_that_left_is_not_scored():
    async def scenario(worker, held):
        first = asyncio.ensure_future(worker.score(["0"]))
        await begun(held)
        left, stays = (asyncio.ensure_future(worker.score([v])) for v in ("1", "2"))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        held.open.set()
        return await first, await stays

    found, batches = run(scenario)
    assert found == ([0], [4])
    assert batches == [["0"], ["2"]]


def test_whoever_waits_at_the_end_is_told():
    async def scenario(worker, held):
        first = asyncio.ensure_future(worker.score(["0"]))
        await begun(held)
        waiting = asyncio.ensure_future(worker.score(["1"]))
        await asyncio.sleep(0)
        closing = asyncio.ensure_future(asyncio.to_thread(worker.close))
        while not worker._closed:
            await asyncio.sleep(0.001)
        held.open.set()
        await closing
        return await asyncio.gather(first, waiting, return_exceptions=True)

    (first, waiting), _ = run(scenario)
    assert first == [0]
    assert isinstance(waiting, Busy)


def test_a_batch_that_never_ends_does_not_keep_the_process(monkeypatch):
    monkeypatch.setattr(decide, "LINGER", 0.1)

    async def scenario(made, held):
        asked = asyncio.ensure_future(made.score(["0"]))
        await begun(held)
        closing = threading.Thread(target=made.close, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, 10)
        left = closing.is_alive()
        asked.cancel()
        return left

    assert run(scenario)[0] is False


def test_a_gate_that_waits_for_a_server_has_several_batches_under_way():
    both = threading.Barrier(2, timeout=30)  # a batch is done once the other one has begun

    def score(values):
        both.wait()
        return [2 * int(value) for value in values]

    async def scenario():
        return await asyncio.gather(worker.score(["1"]), worker.score(["2"]))

    worker = GateWorker(score, 1, 0.0, 8, threads=2)
    try:
        assert asyncio.run(scenario()) == [[2], [4]] and worker.alive
    finally:
        worker.close()
    assert not worker.alive


def test_a_batch_waits_for_others_where_an_input_takes_longer_than_the_wait():
    batches = []

    def score(values):
        batches.append(values)
        time.sleep(max(values))
        return values

    async def scenario(*values):
        asked = []
        for value in values:
            asked.append(asyncio.ensure_future(worker.score([value])))
            await asyncio.sleep(0.01)
        return [await one for one in asked]

    worker = GateWorker(score, 8, 5.0, 8, deadline=4.0)  # a wait would end in the deadline
    try:
        assert [asyncio.run(scenario(0.0)) for _ in range(2)] == [[[0.0]]] * 2
    finally:
        worker.close()
    batches.clear()
    worker = GateWorker(score, 8, 0.5, 8)
    try:
        assert asyncio.run(scenario(0.6)) == [[0.6]]
        assert asyncio.run(scenario(0.1, 0.2)) == [[0.1], [0.2]]
    finally:
        worker.close()
    assert batches == [[0.6], [0.1, 0.2]]
