"""Metrics of classifying gates on dev, on dialogue turns (RAGate, table 2) and over training seeds, with intervals.

Turns of one dialogue are alike, so whole dialogues are drawn; all gates see the same draws, so that differences between
them are paired. A mean over seeds has two sources of variance: the questions and the training seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.metrics.registry import METRICS, MetricInput, classify, log_loss
from kbtrain.metrics.significance import Delta, cluster_counts, format_delta, interval
from kbtrain.metrics.thresholds import Dev, ThresholdChoice, choose
from kbtrain.records import GateExample, TurnExample


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
        intervals = {metric: interval(mean) for metric, mean in means.items() if not np.isnan(mean[0])}
        spread = {m: float(np.std(v, ddof=1)) if len(v) > 1 else None for m, v in by_seed.items()}
        retrieved = float(np.mean([(run.scores > run.threshold).mean() for run in runs]))
        gate_turns.append(GateTurns(gate, intervals, by_seed, spread, [run.threshold for run in runs], retrieved))
        drawn[gate] = means
    return gate_turns, drawn


def compare(draws: Mapping[str, Mapping[str, Floats]], better: str, metrics: Sequence[str]) -> list[GateDifference]:
    """One gate against all others."""
    rows = []
    for than in draws:
        for metric in metrics if than != better else ():
            values = draws[better][metric] - draws[than][metric]
            rows.append(GateDifference(better, than, metric, interval(values)))
    return rows


def best_f1_threshold(need: Sequence[float], scores: Sequence[float]) -> ThresholdChoice:
    """Threshold of best F1 of "retrieval needed" on dev; of equals, the one with the fewest retrievals."""
    truth = np.asarray(need) > 0.5
    nothing = np.zeros(len(truth))
    return choose("best_f1", Dev(np.asarray(scores, dtype=float), nothing, nothing, truth.astype(float)))


def classifier_metrics(
    need: Sequence[float], scores: Sequence[float], taught: Sequence[float] | None = None
) -> dict[str, float]:
    """``loss`` (nats; only of scores in [0, 1]), ``auroc``, ``average_precision``, ``f1`` at the best threshold.

    ``taught``: soft labels for the loss; None: ``need``.

    ``f1`` is for choosing between checkpoints on dev; it does not estimate F1 elsewhere.
    """
    values = np.asarray(scores, dtype=float)
    classes = classify("needed", np.asarray(need) > 0.5, values, values > best_f1_threshold(need, scores).value)
    figures = {"auroc": classes.auroc, "average_precision": classes.average_precision, "f1": classes.f1}
    if ((values >= 0) & (values <= 1)).all():  # a score that is not a probability has no log loss
        figures = {"loss": log_loss(need if taught is None else taught, scores), **figures}
    return {name: value for name, value in figures.items() if value is not None}


def intervals_of_examples(
    examples: Sequence[GateExample | TurnExample], need: Sequence[float], scores: Sequence[float], threshold: float
) -> str:
    """Figures of RAGate's table 2 at a threshold, as a Markdown table; whole dialogues, or questions, are resampled.

    Where dev has one label only, ranking metrics are missing.
    """
    run = SeedScores(np.asarray(scores, dtype=np.float64), threshold)
    truth = np.asarray(need) > 0.5
    groups = [example.dialogue_id if isinstance(example, TurnExample) else example.id for example in examples]
    gates, _ = classify_turns(truth, groups, {"gate": [run]})
    return "| | |\n|---|---|\n" + "\n".join(f"| {k} | {format_delta(v)} |" for k, v in gates[0].metrics.items())
