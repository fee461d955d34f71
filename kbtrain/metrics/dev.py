"""Dev figures of a classifying gate: loss, ranking metrics, the threshold of best F1, and a table with intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kbtrain.metrics.classification import classify, log_loss
from kbtrain.metrics.significance import Delta
from kbtrain.metrics.thresholds import Dev, ThresholdChoice, choose
from kbtrain.metrics.turns import SeedScores, classify_turns
from kbtrain.records import GateExample, TurnExample


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


def format_delta(value: Delta) -> str:
    """``0.8140 [0.7712, 0.8521]``."""
    return f"{value.mean:.4f} [{value.low:.4f}, {value.high:.4f}]"
