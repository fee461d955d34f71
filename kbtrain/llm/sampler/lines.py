"""Answers that begin alike are computed once: rows with the same tokens so far share one line of the model's batch.

What comes next depends on the tokens alone, so such rows draw from one distribution, each with its own uniform number.
A model that knows the answer says the same thirty times; even one that does not begins in few ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kbtrain.llm.sampler.decoders import CopiedPrefixDecoder, SharedPrefixDecoder

LEAVE = 0.9  # lines that no row follows leave the batch once they are a tenth of it: leaving copies the others


class Follower(Protocol):
    """A row: its tokens so far, the newest of which was drawn from the logits of ``line``."""

    tokens: list[int]
    line: int


class Lines:
    """Which lines there are; each row knows its own. ``newest`` holds the token to feed for each line."""

    def __init__(self, rows: Sequence[Follower]) -> None:
        """From the first drawn tokens, when a row's line is still its question's prompt. Sets the rows' lines."""
        starts = list(dict.fromkeys((row.line, row.tokens[-1]) for row in rows))
        self.questions = [question for question, _ in starts]
        self.newest = [token for _, token in starts]
        self._most = len(rows)
        _follow(rows, {start: line for line, start in enumerate(starts)})

    def grow(self, rows: Sequence[Follower], decoder: SharedPrefixDecoder | CopiedPrefixDecoder) -> None:
        """Follow the tokens just drawn: the first one of a line stays in it, others go on in copies of the line."""
        steps = list(dict.fromkeys((row.line, row.tokens[-1]) for row in rows))
        place = self._places(steps, decoder)
        first = dict(reversed(steps))  # of each line, the token that stays
        line_of, copied = {}, []
        for line, token in steps:
            if first[line] == token:
                self.newest[place[line]] = token
                line_of[line, token] = place[line]
            else:
                line_of[line, token] = len(self.newest)
                self.newest.append(token)
                copied.append(place[line])
        if copied:
            decoder.branch(copied)
        _follow(rows, line_of)

    def _places(
        self, steps: Sequence[tuple[int, int]], decoder: SharedPrefixDecoder | CopiedPrefixDecoder
    ) -> dict[int, int]:
        """Where each line that goes on stands, after lines that no row follows have left if that pays or must be."""
        live = sorted({line for line, _ in steps})
        count = len(self.newest)
        if len(live) > LEAVE * count and count + len(steps) - len(live) <= self._most:
            return {line: line for line in live}
        decoder.keep(live)
        self.newest = [self.newest[line] for line in live]
        return {line: i for i, line in enumerate(live)}


def _follow(rows: Sequence[Follower], line_of: dict[tuple[int, int], int]) -> None:
    for row in rows:
        row.line = line_of[row.line, row.tokens[-1]]
