"""Metrics of gates on dialogue turns (RAGate, table 2), and summaries over training seeds, with bootstrap intervals.

Turns of one dialogue are alike, so whole dialogues are drawn; all gates see the same draws, so that differences between
them are paired. A mean over seeds has two sources of variance: the questions and the training seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.metrics.registry import METRICS, MetricInput
from kbtrain.metrics.significance import Delta, cluster_counts, delta, resampled_means


@dataclass(frozen=True)
class SeedScores:
    """Test scores of a gate trained with one seed, and the threshold chosen on dev (retrieve if above)."""

    scores: Floats
    threshold: float


@dataclass(frozen=True)
class GateTurns:
    """One gate: for each metric its mean over seeds with a 95 % interval over dialogues, and each seed's value.

    ``spread`` is the standard deviation over seeds (n - 1; None for one seed); ``retrieved`` the mean share of turns.
    """

    gate: str
    metrics: dict[str, Delta]
    by_seed: dict[str, list[float]]
    spread: dict[str, float | None]
    thresholds: list[float]
    retrieved: float


@dataclass(frozen=True)
class GateDifference:
    """``better`` minus ``than`` in one metric, means over seeds, paired over dialogues."""

    better: str
    than: str
    metric: str
    difference: Delta


def weighted_metrics(truth: Bools, run: SeedScores, weights: Floats) -> dict[str, Floats]:
    """Each of :data:`~kbtrain.metrics.registry.METRICS` for each row of ``weights``."""
    decided = MetricInput(truth, run.scores, run.scores > run.threshold, weights)
    return {name: metric.fill(decided) for name, metric in METRICS.items()}


def classify_turns(
    truth: Bools, dialogues: Sequence[str], gates: Mapping[str, Sequence[SeedScores]], draws: int = 2000, seed: int = 0
) -> tuple[list[GateTurns], dict[str, dict[str, Floats]]]:
    """Each gate's figures; and for :func:`compare` each gate's metrics in every draw, means over its seeds.

    A metric that is not defined is skipped: AUROC of turns with one label, average precision without a positive.
    """
    weights = cluster_counts(dialogues, draws, seed)
    gate_turns, drawn = [], {}
    for gate, runs in gates.items():
        by_run = [weighted_metrics(truth, run, weights) for run in runs]
        means = {metric: np.mean([values[metric] for values in by_run], axis=0) for metric in METRICS}
        by_seed = {metric: [float(values[metric][0]) for values in by_run] for metric in METRICS}
        gate_turns.append(
            GateTurns(
                gate,
                {metric: delta(mean[0], _defined(mean[1:])) for metric, mean in means.items() if not np.isnan(mean[0])},
                by_seed,
                {m: float(np.std(v, ddof=1)) if len(v) > 1 else None for m, v in by_seed.items()},
                [run.threshold for run in runs],
                float(np.mean([(run.scores > run.threshold).mean() for run in runs])),
            )
        )
        drawn[gate] = means
    return gate_turns, drawn


def compare(draws: Mapping[str, Mapping[str, Floats]], better: str, metrics: Sequence[str]) -> list[GateDifference]:
    """One gate against all others."""
    rows = []
    for than in draws:
        for metric in metrics if than != better else ():
            values = draws[better][metric] - draws[than][metric]
            rows.append(GateDifference(better, than, metric, delta(values[0], _defined(values[1:]))))
    return rows


def _defined(values: Floats) -> Floats:
    """Draws without a positive turn have no AUROC."""
    return values[~np.isnan(values)]


@dataclass(frozen=True)
class SeedSummary:
    """A figure that is a mean over questions, measured for several seeds on the same questions.

    ``by_seed``: its value for each; ``spread``: their standard deviation (n - 1; None for one seed); ``questions``:
    95 % interval of the mean over seeds if only the questions were redrawn; ``both``: if the seeds were, too.
    """

    mean: float
    by_seed: list[float]
    spread: float | None
    questions: Delta
    both: Delta


Figure = Callable[[Floats], Floats]  # means of a seed's columns (..., k) -> the figure (...)


def gain_over_random(means: Floats) -> Floats:
    """Accuracy beyond a random gate of the same ratio, from means of (correct, llm, rag, retrieved)."""
    correct, llm, rag, ratio = (means[..., i] for i in range(4))
    gain: Floats = correct - (1 - ratio) * llm - ratio * rag
    return gain


def summarise_seeds(
    values: Sequence[Floats],
    draws: int,
    seed: int = 0,
    figure: Figure | None = None,
    clusters: Sequence[str] | None = None,
) -> SeedSummary:
    """``values[s][i]``: the figure of question i under seed s, e.g. correctness, or a difference to another gate.

    ``figure``: for one that is not a mean over questions; ``values[s]`` are then columns (n, k), and it is made from
    their means in each draw, since a fixed part (a ratio, chance) would count as known. ``clusters``: of each
    question; whole clusters are drawn then.

    The second bootstrap draws seeds with replacement, and questions for all of them alike: seeds share their test
    questions, so the two are crossed, not nested. With few seeds it is too narrow by about sqrt((s - 1) / s).
    """
    table = np.concatenate([value.reshape(len(value), -1) for value in values], axis=1)

    def of_seeds(column_means: Floats) -> Floats:
        """Means of all columns (..., s k) -> each seed's figure (..., s)."""
        by_seed = column_means.reshape(*column_means.shape[:-1], len(values), -1)
        return by_seed[..., 0] if figure is None else figure(by_seed)

    drawn = of_seeds(resampled_means(table, draws, seed, clusters))
    picked = np.random.default_rng([seed, 1]).integers(len(values), size=(draws, len(values)))
    crossed = np.take_along_axis(drawn, picked, axis=1).mean(axis=1)
    means = of_seeds(table.mean(axis=0))
    return SeedSummary(
        mean=float(means.mean()),
        by_seed=[float(mean) for mean in means],
        spread=float(means.std(ddof=1)) if len(means) > 1 else None,
        questions=delta(float(means.mean()), drawn.mean(axis=1)),
        both=delta(float(means.mean()), crossed),
    )
