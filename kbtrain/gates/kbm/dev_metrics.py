"""How good a KBM's probabilities are on dev examples: log loss and AUROC per key."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kbtrain.prompts.kbm import Key
from kbtrain.records import GateExample
from kbtrain.training.data import Labels, labelled, target

_FLOOR = 1e-6  # a probability of exactly 0 or 1 would make the log loss infinite


def dev_metrics(
    examples: Sequence[GateExample], probabilities: Mapping[Key, Sequence[float]], labels: Labels
) -> dict[str, float]:
    """``loss`` and ``auroc`` (means over the keys) and each key's own, over the examples that have its label.

    The loss is the cross-entropy of p(True), in nats, against the target as trained (hard or soft); AUROC is always
    against the hard label, and left out where only one class is present.
    """
    from sklearn.metrics import roc_auc_score

    found: dict[str, float] = {}
    position = {e.id: i for i, e in enumerate(examples)}
    for key, column in probabilities.items():
        used = labelled(examples, key, labels)
        if used:
            losses = [_cross_entropy(column[position[e.id]], target(e, key, labels) or 0.0) for e in used]
            found[f"loss_{key}"] = math.fsum(losses) / len(losses)
        used = labelled(examples, key, "hard")
        truth = [bool(getattr(e, key)) for e in used]
        if len(set(truth)) == 2:
            found[f"auroc_{key}"] = float(roc_auc_score(truth, [column[position[e.id]] for e in used]))
    for name in ("loss", "auroc"):
        values = [value for key, value in found.items() if key.startswith(f"{name}_")]
        if values:
            found[name] = math.fsum(values) / len(values)
    return found


def _cross_entropy(p: float, truth: float) -> float:
    p = min(max(p, _FLOOR), 1 - _FLOOR)
    return -truth * math.log(p) - (1 - truth) * math.log(1 - p)
