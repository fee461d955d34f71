"""Uncertainty from the sampled texts alone: how many different answers, and how unlike each other."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kbtrain.answers.grading import normalise

Floats = NDArray[np.float64]


def answer_groups(texts: Sequence[str]) -> int:
    """How many different answers there are, after the normalisation by which answers are graded."""
    return len({normalise(text) for text in texts})


def lexical_disagreement(texts: Sequence[str]) -> float:
    """1 - mean ROUGE-L (F1) of all pairs; 0 for a single text."""
    k = len(texts)
    if k < 2:
        return 0.0
    return 1.0 - float(similarities(texts).sum() - k) / (k * (k - 1))


def laplacian_sum(texts: Sequence[str]) -> float:
    """Sum of max(0, 1 - eigenvalue) of I - D^-1/2 W D^-1/2, W the pairwise ROUGE-L: 1 for k equal texts, k for k
    texts without a word in common."""
    w = similarities(texts)
    scale = 1.0 / np.sqrt(w.sum(axis=1))
    eigenvalues = np.linalg.eigvalsh(w * scale[:, None] * scale[None, :])  # = 1 - those of the Laplacian
    return float(np.maximum(eigenvalues, 0.0).sum())


def similarities(texts: Sequence[str]) -> Floats:
    """(k, k) ROUGE-L F1 of the normalised texts; a text is 1 like itself, also an empty one."""
    keys = [normalise(text) for text in texts]
    distinct = list(Counter(keys))  # answers repeat: each pair of different ones is compared once
    table = np.eye(len(distinct))
    for i, first in enumerate(distinct):
        for j in range(i):
            table[i, j] = table[j, i] = _rouge_l(first, distinct[j])
    position = {key: i for i, key in enumerate(distinct)}
    at = [position[key] for key in keys]
    return table[np.ix_(at, at)]


def _rouge_l(first: str, second: str) -> float:
    return float(_scorer().score(first, second)["rougeL"].fmeasure) if first and second else 0.0


class _Words:
    """Splits at spaces: texts are normalised, and rouge-score's own tokenizer drops all but a-z and 0-9."""

    def tokenize(self, text: str) -> list[str]:
        return text.split()


@functools.cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=_Words())
