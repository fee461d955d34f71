"""Pipelines (SeaKR's loops) by name, and the traces that a run folder holds of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kbtrain.io import jsonl
from kbtrain.rag.seakr.lockstep import Begin
from kbtrain.rag.seakr.loops import multi_hop, single_hop
from kbtrain.rag.seakr.self_aware import QuestionCoroutine, SelfAwareSettings
from kbtrain.rag.seakr.trace import Trace
from kbtrain.records import Question

Method = Literal["single_hop", "multi_hop"]
FOLDER = "methods"  # of a run folder: one <name>.jsonl of traces for each pipeline that was run
_BEGIN: dict[Method, Callable[[Question, SelfAwareSettings], QuestionCoroutine]] = {
    "single_hop": single_hop,
    "multi_hop": multi_hop,
}


def beginner(method: Method, settings: SelfAwareSettings) -> Begin:
    """A function that starts the coroutine of a question."""
    return lambda question: _BEGIN[method](question, settings)


@dataclass(frozen=True)
class PipelineTraces:
    """The traces of one pipeline in a run folder."""

    name: str
    path: Path
    traces: tuple[Trace, ...]


def stored_pipelines(run: Path) -> list[PipelineTraces]:
    """All pipelines with traces in a run folder, by name."""
    paths = sorted((run / FOLDER).glob("*.jsonl"))
    return [PipelineTraces(path.stem, path, tuple(jsonl.read(Trace, path))) for path in paths]
