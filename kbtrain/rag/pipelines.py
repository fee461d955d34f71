"""Whole methods by name, and what their finished traces say beside gates that only choose between stored answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from kbtrain import jsonl
from kbtrain.rag.seakr.lockstep import Begin
from kbtrain.rag.seakr.loops import multi_hop, single_hop
from kbtrain.rag.seakr.self_aware import SelfAwareSettings, Talk
from kbtrain.rag.seakr.trace import Trace
from kbtrain.records import Question

Method = Literal["single_hop", "multi_hop"]
METHODS: tuple[Method, ...] = get_args(Method)
FOLDER = "methods"  # of a run folder: one <name>.jsonl of traces for each method that was run
_BEGIN: dict[Method, Callable[[Question, SelfAwareSettings], Talk]] = {"single_hop": single_hop, "multi_hop": multi_hop}


def beginner(method: Method, settings: SelfAwareSettings) -> Begin:
    """What starts a question's talk."""
    return lambda question: _BEGIN[method](question, settings)


@dataclass(frozen=True)
class MethodTraces:
    """The traces of one method, as they stand in the run folder."""

    name: str
    path: Path
    traces: tuple[Trace, ...]


def stored_methods(run: Path) -> list[MethodTraces]:
    """All methods that were run on a run folder, by name; none if there are none."""
    return [MethodTraces(path.stem, path, tuple(jsonl.read(Trace, path))) for path in _files(run)]


def _files(run: Path) -> Iterable[Path]:
    return sorted((run / FOLDER).glob("*.jsonl"))
