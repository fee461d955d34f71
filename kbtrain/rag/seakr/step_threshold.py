"""A threshold for a loop's own prompts: U of a sentence behind demonstrations is not U of a bare question's answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kbtrain.errors import UserError
from kbtrain.gates.seakr.engine import Thought
from kbtrain.rag.seakr.lockstep import Begin
from kbtrain.rag.seakr.thinking import Thinking
from kbtrain.records import Question


def first_thoughts(
    questions: Sequence[Question], begin: Begin, thinking: Thinking, at_once: int = 8
) -> Iterator[Thought]:
    """What a method thinks first (the first sentence, or the direct answer), before anything is searched for."""
    for start in range(0, len(questions), at_once):
        talks = [begin(question) for question in questions[start : start + at_once]]
        wishes = [next(talk) for talk in talks]
        asks = [ask for wish in wishes if isinstance(wish, list) for ask in wish]
        yield from (reply.thought for reply in thinking.think(asks))
        for talk in talks:
            talk.close()


def for_ratio(uncertainties: Sequence[float], ratio: float) -> float:
    """The threshold above which this share of the dev questions' first thoughts lies. Raises :class:`UserError`."""
    if not len(uncertainties):
        raise UserError("no dev question to choose the threshold on; name --threshold, or add dev questions")
    return float(np.quantile(np.asarray(uncertainties, dtype=np.float64), 1 - ratio))
