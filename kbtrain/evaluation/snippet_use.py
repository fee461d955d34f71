"""Augmented turns and their snippets: how often they are useful (RAGate, appendix B), and if confidence goes with them.

The paper asks people about 50 augmented turns (useful: 54 %). Here a turn's snippets are useful if a gold snippet is
among them, which is known where people named one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.dialogue.responses import AugmentedResponse, Verdicts
from kbtrain.evaluation.dialogue import Draws
from kbtrain.metrics.significance import Delta, cluster_counts, delta, wilson
from kbtrain.records import TurnExample

_LEAST = 3  # responses from which on a correlation is more than a line through two points


@dataclass(frozen=True)
class Usefulness:
    """Of one gate's augmented turns: ``judged`` name a gold snippet, ``useful`` of them read one (with Wilson's
    interval; None: nothing is judged). ``by`` a judge: of the turns that name none those that it judged, and found
    useful."""

    gate: str
    augmentation: str
    augmented: int
    judged: int
    useful: int
    share: float | None
    low: float | None
    high: float | None
    by: str = "gold snippets"


@dataclass(frozen=True)
class Correlation:
    """Spearman's rho of a response's confidence (least probability of its tokens) and its snippets' relevance.

    ``n`` responses; the 95 % interval draws dialogues. ``rho`` None: one of the two does not vary.
    """

    augmentation: str
    relevance: str
    n: int
    rho: Delta | None


def gold_usefulness(
    gate: str, augmentation: str, turns: Sequence[TurnExample], responses: Sequence[AugmentedResponse], chosen: Bools
) -> Usefulness:
    """``chosen``: the turns that the gate augments; ``made``: their augmented responses."""
    picked = [(t, r) for t, r, c in zip(turns, responses, chosen, strict=True) if c]
    judged = [(t, r) for t, r in picked if t.gold_snippets]
    return _usefulness(gate, augmentation, len(picked), [reads_gold(t, r) for t, r in judged], "gold snippets")


def judged_usefulness(
    gate: str,
    augmentation: str,
    turns: Sequence[TurnExample],
    responses: Sequence[AugmentedResponse],
    chosen: Bools,
    verdicts: Verdicts,
) -> Usefulness:
    """As :func:`gold_usefulness`, of turns without a gold snippet, by a judge's ``verdicts`` without abstentions."""
    picked = [(t, r) for t, r, c in zip(turns, responses, chosen, strict=True) if c]
    judged = [verdicts.get((t.id, r.augmentation)) for t, r in picked if not t.gold_snippets]
    return _usefulness(gate, augmentation, len(picked), [verdict for verdict in judged if verdict is not None], "judge")


def _usefulness(gate: str, augmentation: str, augmented: int, verdicts: Sequence[bool], by: str) -> Usefulness:
    if not verdicts:
        return Usefulness(gate, augmentation, augmented, 0, 0, None, None, None, by)
    n = sum(verdicts)
    low, high = wilson(n, len(verdicts))
    return Usefulness(gate, augmentation, augmented, len(verdicts), n, n / len(verdicts), low, high, by)


def reads_gold(turn: TurnExample, response: AugmentedResponse) -> bool:
    """True if a gold snippet of the turn is among those that its response read."""
    return bool(set(turn.gold_snippets) & set(response.snippets))


def agreement_with_gold(
    turns: Sequence[TurnExample], responses: Sequence[AugmentedResponse], verdicts: Verdicts
) -> dict[str, int]:
    """``n`` responses whose turns name gold snippets and which a judge judged; in ``agree`` of them it says what these
    say."""
    by_id = {turn.id: turn for turn in turns if turn.gold_snippets}
    pairs = [
        (verdicts.get((response.turn_id, response.augmentation)), reads_gold(by_id[response.turn_id], response))
        for response in responses
        if response.turn_id in by_id
    ]
    judged = [(verdict, gold) for verdict, gold in pairs if verdict is not None]
    return {"n": len(judged), "agree": sum(verdict == gold for verdict, gold in judged)}


def correlations(
    turns: Sequence[TurnExample],
    responses: Mapping[str, Sequence[AugmentedResponse]],
    scores: Mapping[str, Mapping[tuple[str, str], float]],
    draws: Draws,
) -> list[Correlation]:
    """Of each augmentation: with its ranker's score of the best snippet read, and with a gold snippet being read.

    ``scores``: by ranker, of (turn, snippet).
    """
    rows = []
    for name, read in responses.items():
        of = scores.get(name.rpartition("_")[0], {})
        by_score = [max((of[t.id, s] for s in r.snippets if (t.id, s) in of), default=None)
                    for t, r in zip(turns, read, strict=True)]  # fmt: skip
        gold = [float(bool(set(t.gold_snippets) & set(r.snippets))) if t.gold_snippets and r.snippets else None
                for t, r in zip(turns, read, strict=True)]  # fmt: skip
        for relevance, values in (("ranker's score", by_score), ("a gold snippet is read", gold)):
            rows.append(_correlation(name, relevance, turns, read, values, draws))
    return rows


def _correlation(
    name: str,
    relevance: str,
    turns: Sequence[TurnExample],
    responses: Sequence[AugmentedResponse],
    values: Sequence[float | None],
    draws: Draws,
) -> Correlation:
    from scipy.stats import rankdata  # a second to import

    rows = [
        (turn.dialogue_id, response.minimum_probability, value)
        for turn, response, value in zip(turns, responses, values, strict=True)
        if value is not None and response.minimum_probability is not None
    ]
    if len(rows) < _LEAST or len({row[1] for row in rows}) < 2 or len({row[2] for row in rows}) < 2:
        return Correlation(name, relevance, len(rows), None)
    confidence, relevant = (rankdata([row[i] for row in rows]) for i in (1, 2))
    weights = cluster_counts([row[0] for row in rows], draws.bootstrap, draws.seed)
    rho = _weighted(np.asarray(confidence, dtype=np.float64), np.asarray(relevant, dtype=np.float64), weights)
    return Correlation(name, relevance, len(rows), delta(float(rho[0]), rho[1:][np.isfinite(rho[1:])]))


def _weighted(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson's correlation of ranks under each row of ``weights``: (rows,); NaN where one of them does not vary."""
    total = weights.sum(axis=1)
    means = [weights @ values / total for values in (x, y)]
    covariance = weights @ (x * y) / total - means[0] * means[1]
    variances = [weights @ values**2 / total - mean**2 for values, mean in zip((x, y), means, strict=True)]
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation: Floats = covariance / np.sqrt(np.maximum(variances[0], 0.0) * np.maximum(variances[1], 0.0))
    return correlation
