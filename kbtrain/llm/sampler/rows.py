"""Prompts of a batch, and the answers to them while they are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kbtrain.llm.sampler.draw import UniformRow
from kbtrain.records import Condition, Finish, Sample


@dataclass(frozen=True)
class PromptRows:
    """One prompt and the sample indices to draw for it (``GREEDY`` = -1 for the most probable tokens)."""

    question_id: str
    condition: Condition
    ids: tuple[int, ...]
    indices: tuple[int, ...]


@dataclass(eq=False)
class Row:
    """One answer while it is drawn. ``feed``: token ids still to be fed, one a step; empty: the row is done.

    ``place``: of its prompt in the batch. ``opened``: the prompt has opened a thought. ``notes``: what each observer
    has read. ``sample``: the answer, once the batch is drawn.
    """

    place: int
    prompt: PromptRows
    index: int
    uniforms: UniformRow
    sequence: int = 0  # of the logits from which its next token is drawn: at first, its prompt's
    tokens: list[int] = field(default_factory=list)
    logprob: float = 0.0
    finish: Finish | None = None
    feed: list[int] = field(default_factory=list)
    fed: int = 0  # tokens behind the prompt
    opened: bool = False
    notes: dict[Any, Any] = field(default_factory=dict)
    sample: Sample | None = None
