"""Share of stored answers that say nothing: empty ones, cut ones, thoughts alone. Above a fifth a sampling stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import get_args

from kbtrain.answers.thoughts import Silence, silence
from kbtrain.errors import UserError
from kbtrain.records import Sample

MOST_SILENT = 0.2  # share of answers
LEAST = 50  # answers from which on a share is looked at before all are drawn
_ADVICE: dict[Silence, str] = {
    "cut": "raise max_thought_tokens, or ask the model not to think (docs/howto/thinking.md)",
    "thought_only": "no answer follows the thoughts: ask the model not to think, or look at the stop strings",
    "empty": "look at the prompt, the chat template and the stop strings",
}


@dataclass
class SilentAnswers:
    """Number of answers so far, and of those that say nothing by kind."""

    n: int = 0
    kinds: Counter[Silence] = field(default_factory=Counter)

    def add(self, samples: Iterable[Sample]) -> None:
        """Count answers."""
        for sample in samples:
            self.n += 1
            if (kind := silence(sample)) is not None:
                self.kinds[kind] += 1

    def line(self) -> str:
        """The three shares, for people."""
        n = max(self.n, 1)
        empty, cut, thoughts = (self.kinds[kind] / n for kind in get_args(Silence))
        return f"{self.n} answers: {empty:.1%} empty, {cut:.1%} cut before they began, {thoughts:.1%} thoughts alone"

    def is_too_silent(self, least: int = 0) -> bool:
        """True if more than :data:`MOST_SILENT` of at least ``least`` answers say nothing."""
        return self.n >= max(least, 1) and self.kinds.total() > MOST_SILENT * self.n

    def advice(self) -> str:
        """Advice against the most frequent kind."""
        return _ADVICE[max(self.kinds, key=lambda kind: self.kinds[kind])]

    def check(self, place: str, least: int = 0) -> None:
        """Raise :class:`UserError` where too many say nothing. ``place``: file and run that hold them."""
        if self.is_too_silent(least):
            raise UserError(
                f"{place}: {self.line()}; {self.advice()}; then sample into a new run (sampling_run), or set "
                "allow_empty: true to continue"
            )
