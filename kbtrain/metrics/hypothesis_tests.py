"""Exact tests between gates, and the correction for asking many questions of one data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class McNemar:
    """Questions that only the first of two gates answers right, those that only the second does, and the p-value.

    ``p_holm`` is the p-value after Holm's correction over the family it was tested in.
    """

    only_first: int
    only_second: int
    p: float
    p_holm: float | None = None


def mcnemar(first: Floats, second: Floats) -> McNemar | None:
    """Exact two-sided McNemar test (McNemar 1947) of two gates' correctness on the same questions.

    None unless every value is 0 or 1: expected accuracies and random decisions have no pairs to count.
    """
    from scipy.stats import binomtest

    if not np.isin(np.concatenate([first, second]), (0.0, 1.0)).all():
        return None
    only_first, only_second = int((first > second).sum()), int((second > first).sum())
    n = only_first + only_second
    return McNemar(only_first, only_second, float(binomtest(only_first, n, 0.5).pvalue) if n else 1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values (Holm 1979), in the order given: below alpha = rejected, with the chance of
    any false rejection in the family at most alpha, however the tests depend on each other."""
    if not p_values:
        return []
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    stepped = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(stepped, 1.0)
    return [float(p) for p in adjusted]


def permutation_p(observed: float, drawn: Floats) -> float:
    """Share of random gates at least as accurate as the observed one, itself counted among them, so never 0.

    ``drawn`` are accuracies of random gates with as many searches (``significance.random_gates``): a valid one-sided
    p-value for "the gate's choice of questions is no better than chance" (Phipson and Smyth 2010).
    """
    return float((1 + np.count_nonzero(drawn >= observed - 1e-12)) / (1 + len(drawn)))
