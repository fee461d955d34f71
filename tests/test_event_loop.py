"""Coroutines run from plain functions, in a script and inside a loop that runs, as a notebook has one."""

import asyncio
import threading

import pytest

from kbtrain.runtime.event_loop import EventLoop, run


async def where():
    await asyncio.sleep(0)
    return threading.current_thread().name, id(asyncio.get_running_loop())


def calls():
    """Thread of the loop, and whether it was one loop throughout."""
    with EventLoop() as loop:
        task = loop.create_task(where())
        first, second = loop.run(where()), loop.run(asyncio.wait_for(task, 5))
        return first[0], first == second


def test_outside_of_a_loop_it_runs_in_the_callers_thread():
    assert calls() == (threading.current_thread().name, True)
    assert run(where())[0] == threading.current_thread().name


def test_inside_a_running_loop_it_runs_in_another_thread_and_leaves_the_loop_as_it_was():
    async def notebook():
        before, policy = asyncio.get_running_loop(), asyncio.get_event_loop_policy()
        assert policy.get_event_loop() is before
        found = calls()
        assert policy.get_event_loop() is before  # what code behind the notebook's cell gets
        assert asyncio.get_running_loop() is asyncio.get_event_loop() is before
        assert run(where())[0] != threading.current_thread().name
        return found

    name, one = asyncio.run(notebook())
    assert name.startswith("event-loop") and one


def test_an_error_is_the_callers_inside_a_loop_too():
    async def fails():
        raise KeyError("told")

    async def notebook():
        run(fails())

    for ask in (lambda: run(fails()), lambda: asyncio.run(notebook())):
        with pytest.raises(KeyError, match="told"):
            ask()
