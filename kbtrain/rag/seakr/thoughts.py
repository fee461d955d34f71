"""Thoughts of an ablation, on disk: most prompts of its variants are the same, and the model is asked each one once.

A prompt of the same name draws the same samples, and every signal is measured on them. So a variant that decides by
another signal, or tries more documents, asks the model only what no variant before it has asked.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, TextIO

from kbtrain.gates.seakr.engine import Thought
from kbtrain.io import jsonl
from kbtrain.io.files import append, cut_torn_line, path_exists
from kbtrain.rag.seakr.self_aware import AnswerEngine, GenerationRequest, PromptEngine, Reply


class Thoughts(Protocol):
    """A pipeline's source of thoughts."""

    def deciding(self, signal: str) -> AnswerEngine:
        """An engine whose uncertainty is that of ``signal``."""


@dataclass(frozen=True)
class KeptThought:
    """One line. ``prompt``: hash of a request's kind, name and token ids; ``cut`` as in :class:`Reply`; ``seconds``:
    what it took, its share of its batch. The uncertainty of ``thought`` is left 0: its reader names the signal.
    """

    prompt: str
    thought: Thought
    cut: int
    seconds: float


class SharedThoughts(contextlib.AbstractContextManager["SharedThoughts"]):
    """Thoughts of one model with one set of settings, the deciding signal aside: what ``path`` holds is not thought
    again, and what is thought is appended to it. A context manager.

    File and engine are opened with the first request. ``n_asked`` counts requests, ``n_thought`` those that the model
    saw.
    """

    def __init__(self, path: Path, open_engine: Callable[[], PromptEngine]) -> None:
        self.n_asked = self.n_thought = 0
        self._path = path
        self._open_engine = open_engine
        self._opened: tuple[PromptEngine, TextIO] | None = None
        self._lines: dict[str, str] = {}  # by prompt: as text, which takes less memory than the objects

    def deciding(self, signal: str) -> AnswerEngine:
        """An engine with these thoughts, whose uncertainty is that of ``signal``."""
        return Deciding(self.think_once, signal)

    def think_once(self, requests: Sequence[GenerationRequest]) -> list[KeptThought]:
        """One for each request, in their order. Raises as :meth:`PromptEngine.think`; nothing is kept then."""
        engine, file = self._opened = self._opened or self._open()
        begin = time.perf_counter()
        once = {
            request: engine.fit(request) for request in dict.fromkeys(requests)
        }  # what several variants ask at once
        fitted = [once[request] for request in requests]
        fitting = time.perf_counter() - begin
        prompts = [_hash(request, ids) for request, (ids, _) in zip(requests, fitted, strict=True)]
        new = {prompt: place for place, prompt in enumerate(prompts) if prompt not in self._lines}
        if new:
            begin, places = time.perf_counter(), new.values()
            replies = engine.think_fitted([requests[place] for place in places], [fitted[place] for place in places])
            thinking = time.perf_counter() - begin
            lines = _lines(list(new), replies, fitting / len(requests) + thinking / len(new))
            append(file, "".join(lines.values()))
            self._lines |= lines
        self.n_asked += len(requests)
        self.n_thought += len(new)
        return [jsonl.parse(KeptThought, self._lines[prompt], self._path, 0) for prompt in prompts]

    def _open(self) -> tuple[PromptEngine, TextIO]:
        engine, path = self._open_engine(), self._path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path_exists(path):
            cut_torn_line(path)  # what was being written when the process was killed
            for number, line in jsonl.lines(path):
                self._lines[jsonl.parse(KeptThought, line, path, number).prompt] = line
        return engine, open(path, "a", encoding="utf-8")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._opened:
            self._opened[1].close()


def _lines(prompts: Sequence[str], replies: Sequence[Reply], seconds: float) -> dict[str, str]:
    thoughts = [replace(reply.thought, uncertainty=0.0) for reply in replies]
    return {
        prompt: jsonl.dump(KeptThought(prompt, thought, reply.cut, seconds)) + "\n"
        for prompt, thought, reply in zip(prompts, thoughts, replies, strict=True)
    }


def _hash(request: GenerationRequest, ids: Sequence[int]) -> str:
    return hashlib.sha256(repr((request.kind, request.id, list(ids))).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Deciding:
    """An :class:`AnswerEngine`: thoughts that ``kept`` gives, with the uncertainty of ``signal``."""

    kept: Callable[[Sequence[GenerationRequest]], list[KeptThought]]
    signal: str

    def think(self, requests: Sequence[GenerationRequest]) -> list[Reply]:
        return [self._reply(one) for one in self.kept(requests)]

    def _reply(self, one: KeptThought) -> Reply:
        uncertainty = one.thought.signals.get(self.signal, math.nan)  # a chain has no signals
        return Reply(replace(one.thought, uncertainty=uncertainty), one.cut, one.seconds)
