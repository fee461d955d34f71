"""Thoughts that variants of a SeaKR pipeline share: each prompt is given to the model once, its reply kept on disk.

The deciding uncertainty is chosen where thoughts are read, so an ablation of the measure asks nothing twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from kbtrain.gates.handles import identity_of
from kbtrain.gates.seakr.engine import Thought
from kbtrain.io import jsonl
from kbtrain.io.provenance import MODEL_FILES, Records
from kbtrain.rag.seakr_lockstep import AnswerEngine, GenerationRequest, PromptEngine, Reply
from kbtrain.rag.seakr_run import SeakrPipelineConfig, open_thinking, run_settings
from kbtrain.rag.seakr_traces import FOLDER

# what a prompt and its thought depend on, the gate's own signal aside
KEY = ("base_model", "demonstrations", "titles", "max_new_tokens", "chain_tokens", "dtype", "rules", MODEL_FILES)


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
    """Thoughts of one model with one set of settings, the deciding signal aside; a context manager.

    File and engine are opened with the first request. ``n_asked`` counts requests, ``n_thought`` those that the model
    saw.
    """

    def __init__(self, path: Path, open_engine: Callable[[], PromptEngine]) -> None:
        self.n_asked = self.n_thought = 0
        self._path = path
        self._open_engine = open_engine
        self._opened: tuple[PromptEngine, Records] | None = None
        self._thoughts: dict[str, KeptThought] = {}  # by prompt

    def deciding(self, signal: str) -> AnswerEngine:
        """An engine with these thoughts, whose uncertainty is that of ``signal``."""
        return Deciding(self.think_once, signal)

    def think_once(self, requests: Sequence[GenerationRequest]) -> list[KeptThought]:
        """One for each request, in their order. Raises as :meth:`PromptEngine.think`; nothing is kept then."""
        engine, file = self._opened = self._opened or self._open()
        begin = time.perf_counter()
        by_request = {request: engine.fit(request) for request in dict.fromkeys(requests)}
        fitted = [by_request[request] for request in requests]
        fitting = time.perf_counter() - begin
        prompts = [_hash(request, ids) for request, (ids, _) in zip(requests, fitted, strict=True)]
        new = {prompt: place for place, prompt in enumerate(prompts) if prompt not in self._thoughts}
        if new:
            begin, places = time.perf_counter(), new.values()
            replies = engine.think([requests[place] for place in places], [fitted[place] for place in places])
            seconds = fitting / len(requests) + (time.perf_counter() - begin) / len(new)
            for prompt, reply in zip(new, replies, strict=True):
                thought = replace(reply.thought, uncertainty=0.0)
                self._thoughts[prompt] = KeptThought(prompt, thought, reply.cut, seconds)
            file.add(*(self._thoughts[prompt] for prompt in new))
        self.n_asked += len(requests)
        self.n_thought += len(new)
        return [self._thoughts[prompt] for prompt in prompts]

    def _open(self) -> tuple[PromptEngine, Records]:
        file = Records(self._path, {}, growing=True)  # the file's name is a digest of its settings
        self._thoughts = {thought.prompt: thought for thought in jsonl.read(KeptThought, self._path)}
        return self._open_engine(), file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._opened:
            self._opened[1].close()


def shared_thoughts(config: SeakrPipelineConfig) -> SharedThoughts:
    """Thoughts under RUN/methods for all variants of a pipeline that differ in other settings than the prompts' own."""
    settings = run_settings(config)
    key = {name: settings[name] for name in KEY if name in settings}
    key["settings"] = {name: value for name, value in settings["settings"].items() if name != "signal"}
    path = config.run / FOLDER / "thoughts" / f"{config.method}_{identity_of(json.dumps(key, sort_keys=True))}.jsonl"
    return SharedThoughts(path, lambda: open_thinking(config))


def _hash(request: GenerationRequest, ids: Sequence[int]) -> str:
    return hashlib.sha256(repr((request.kind, request.id, list(ids))).encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Deciding:
    """An :class:`AnswerEngine`: thoughts that ``think_once`` gives, with the uncertainty of ``signal``."""

    think_once: Callable[[Sequence[GenerationRequest]], list[KeptThought]]
    signal: str

    def think(self, requests: Sequence[GenerationRequest]) -> list[Reply]:
        return [self._reply(thought) for thought in self.think_once(requests)]

    def _reply(self, stored: KeptThought) -> Reply:
        uncertainty = stored.thought.signals.get(self.signal, math.nan)  # a chain has no signals
        return Reply(replace(stored.thought, uncertainty=uncertainty), stored.cut, stored.seconds)
