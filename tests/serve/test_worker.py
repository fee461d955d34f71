"""The gate's thread: batches, bounds, failures that stay with whom they belong, and no work for clients that left."""

import asyncio
import threading

import pytest

from kbtrain.serve import worker
from kbtrain.serve.problem import Busy
from kbtrain.serve.worker import GateWorker


class Held:
    """Doubles numbers given as text, after ``open`` is set; notes its batches."""

    def __init__(self) -> None:
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


async def begun(held: Held) -> None:
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


def test_a_full_queue_refuses_and_asks_to_come_back():
    async def scenario(worker, held):
        first = asyncio.ensure_future(worker.score(["0"]))
        await begun(held)
        waiting = asyncio.ensure_future(worker.score([str(i) for i in range(8)]))
        await asyncio.sleep(0)
        with pytest.raises(Busy) as refused:
            await worker.score(["9"])
        held.open.set()
        await first
        return refused.value, await waiting

    (refused, found), _ = run(scenario)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert found == [2 * i for i in range(8)]


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
    monkeypatch.setattr(worker, "LINGER", 0.1)

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
