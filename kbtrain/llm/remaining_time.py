"""Remaining time of a sampling, by the tokens that are left to read and to draw.

The share of finished questions says little: batches come longest first, and questions of a split may have the greedy
answer alone.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from kbtrain.llm.base import AnswerRequest
from kbtrain.llm.forecast import tokens_of
from kbtrain.records import SampleSet

_PRIOR = 3.0  # batches of one kind cannot tell the three causes apart: equal shares weigh as many batches


class RemainingTime:
    """Seconds that the rest of a sampling takes, from the batches so far.

    Seconds of a batch = a * tokens read + b * tokens drawn + c * prompts, with a, b and c not below 0, fitted to all
    batches by least squares. Tokens of a prompt are estimated from its bytes; tokens of an answer that is left are the
    mean under its condition so far. The first batches are no measure of the rest, so nothing is known before the
    second batch and a twentieth of the prompts. A batch that takes longer than the mean raises the estimate.
    """

    def __init__(self, requests: Iterable[AnswerRequest], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._left: dict[tuple[str, str], float] = {}  # tokens of each prompt that is left
        self._to_read = 0.0
        self._to_draw: Counter[str] = Counter()  # answers that are left, by condition
        self._drawn: Counter[str] = Counter()  # tokens so far, by condition
        self._finished: Counter[str] = Counter()  # answers so far, by condition
        self._batches: list[tuple[float, float, float, float]] = []  # tokens read and drawn, prompts, seconds
        for request in requests:
            tokens = tokens_of(request.question.text) + tokens_of(request.evidence or "")
            self._left[request.question.id, request.condition] = tokens
            self._to_read += tokens
            self._to_draw[request.condition] += request.n + request.greedy
        self._prompts = len(self._left)

    def start(self) -> None:
        """Begin to measure: the time before, such as opening the model, belongs to no batch."""
        self._since = self._clock()

    def add(self, sets: Sequence[SampleSet]) -> None:
        """Count a finished batch; its seconds are those since the last one."""
        now, read, drawn = self._clock(), 0.0, 0
        for sample_set in sets:
            answers = sample_set.answers()
            tokens = sum(answer.n_tokens for answer in answers)
            read, drawn = read + self._left.pop((sample_set.question_id, sample_set.condition), 0.0), drawn + tokens
            self._drawn[sample_set.condition] += tokens
            self._finished[sample_set.condition] += len(answers)
            self._to_draw[sample_set.condition] -= len(answers)
        self._to_read -= read
        self._batches.append((read, drawn, len(sets), 0.0 if self._since is None else now - self._since))
        self._since = now

    def seconds(self) -> float | None:
        """Seconds left; None as long as too little is finished."""
        finished = sum(self._finished.values())
        if len(self._batches) < 2 or 20 * (self._prompts - len(self._left)) < self._prompts:
            return None
        overall = sum(self._drawn.values()) / finished
        drawn = sum(
            n * (self._drawn[c] / self._finished[c] if self._finished[c] else overall) for c, n in self._to_draw.items()
        )
        left = (self._to_read, drawn, len(self._left))
        return self._slowed(sum(max(0.0, amount) * rate for amount, rate in zip(left, self._rates(), strict=True)))

    def _slowed(self, seconds: float) -> float:
        """The estimate at the last batch, counted down from there, and raised where the batch takes longer."""
        measured = sum(batch[3] for batch in self._batches)
        mean = measured / len(self._batches)
        since = 0.0 if self._since is None else self._clock() - self._since
        if since <= mean or not seconds or not measured:
            return max(0.0, seconds - since)
        return max(0.0, seconds * (measured + since) / (measured + mean) - mean)

    def _rates(self) -> list[float]:
        """Seconds of a token read, of a token drawn, and of a prompt."""
        import numpy as np
        from scipy.optimize import nnls

        table = np.array(self._batches)
        causes, seconds = table[:, :3], table[:, 3]
        scale = causes.mean(axis=0)
        scale[scale == 0] = 1.0
        weight = np.sqrt(_PRIOR)
        rows = np.vstack([causes / scale, weight * np.eye(3)])
        shares, _ = nnls(rows, np.concatenate([seconds, weight * np.full(3, seconds.mean() / 3)]))
        rates: list[float] = (shares / scale).tolist()
        return rates
