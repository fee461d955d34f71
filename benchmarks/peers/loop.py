"""How the driver and its peers talk: one JSON request a line on stdin, one JSON reply a line on stdout.

Each peer is its own process, so that memory and threads do not mix. Standard library only: a peer may live in an
environment that has nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TypedDict


class Job(TypedDict):
    """Questions to answer. ``questions`` (JSON) and ``evidence`` are what ``prompts`` (token ids) were made from."""

    questions: list[str]
    evidence: list[str | None]
    prompts: list[list[int]]
    n: int
    max_new_tokens: int
    natural_stops: bool


class Answered(TypedDict):
    """``seconds`` of work, and the tokens that were generated, end tokens included."""

    seconds: float
    n_prompt_tokens: int
    n_answers: int
    n_tokens: int


def serve(load: Callable[..., Callable[..., object]]) -> None:
    """Load with the command line's arguments, then answer requests until stdin closes.

    What libraries print goes to stderr, the peer's log.
    """
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answer = load(*sys.argv[1:])
    replies.write("{}\n")  # ready
    for line in sys.stdin:
        replies.write(json.dumps(answer(json.loads(line))) + "\n")
