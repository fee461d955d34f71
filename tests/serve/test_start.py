"""The start of ``kbtrain serve``: what it says is so when it says it."""

import gc
import re
import socket
import sys
import weakref

import pytest
from support.long_questions import long_question_gate

from kbtrain.serve.config import ServeConfig
from kbtrain.serve.server import run, set_aside


class Reached(Exception):
    """The address could be connected to."""


def test_the_address_is_said_when_it_can_be_reached(tmp_path):
    gate = long_question_gate(tmp_path / "gate")

    def say(line):
        if address := re.search(r" answers at http://127\.0\.0\.1:(\d+)/v1$", line):
            socket.create_connection(("127.0.0.1", int(address[1])), 10).close()
            raise Reached

    interval = sys.getswitchinterval()
    try:
        with pytest.raises(Reached):
            run(ServeConfig(gate=gate, port=0, search="none"), say)
        assert gc.get_freeze_count() > 0  # no request waits while Python looks for garbage among the gate's parts
    finally:
        sys.setswitchinterval(interval)
        gc.unfreeze()


def test_what_a_gate_before_left_in_circles_is_collected():
    class Part:
        pass

    try:
        part = Part()
        part.itself = part
        there = weakref.ref(part)
        set_aside()
        del part
        gc.collect()
        assert there() is not None, "collections do not look at what was set aside"
        set_aside()
        assert there() is None
    finally:
        gc.unfreeze()
