"""Uncertainty signals from the same samples, by name: SeaKR's beside those that need the sampled texts alone.

All are turned so that higher = more uncertain = retrieval more needed; :data:`SIGNALS` holds each one's unit and
source.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kbtrain.answers.grading import is_empty, normalise
from kbtrain.arrays import Floats
from kbtrain.gates.seakr import uncertainty as seakr

if TYPE_CHECKING:
    from kbtrain.llm.sampler.state_sampler import AnswerWithStates


def answer_groups(texts: Sequence[str]) -> int:
    """Number of distinct answers, after the normalisation by which answers are graded."""
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


Answers = Sequence["AnswerWithStates"]


@dataclass(frozen=True)
class Signal:
    """``compute(samples, alpha)`` gives one number of a question's sampled answers (the greedy one is none of them)."""

    compute: Callable[[Answers, float], float]
    unit: str
    source: str


def mlp_states(samples: Answers) -> Floats:
    """(k, d): MLP output at each sample's forced end token."""
    return np.stack([answer.mlp for answer in samples]).astype(np.float64)


def residual_states(samples: Answers) -> Floats:
    """(k, d): residual stream behind the same layer."""
    return np.stack([answer.residual for answer in samples]).astype(np.float64)


def _texts(samples: Answers) -> list[str]:
    return [answer.sample.text for answer in samples]


SIGNALS: dict[str, Signal] = {
    "seakr": Signal(
        lambda s, alpha: seakr.uncertainty(mlp_states(s), alpha),
        "nats per sample, from the model's floor to its ceiling",
        "SeaKR, section 3.1: ln det(G + alpha I) / k of the middle MLP's output",
    ),
    "seakr_residual": Signal(
        lambda s, alpha: seakr.uncertainty(residual_states(s), alpha),
        "nats per sample",
        "the same of the residual stream",
    ),
    "eigen_score": Signal(
        lambda s, alpha: seakr.eigen_score(residual_states(s), alpha),
        "mean log10 of eigenvalues",
        "INSIDE, equation 6, on the residual stream",
    ),
    "state_variance": Signal(
        lambda s, alpha: seakr.state_variance(mlp_states(s)),
        "squared activations, mean of the features",
        "variance of the middle MLP's output over the samples",
    ),
    "token_entropy": Signal(
        lambda s, alpha: float(np.mean([answer.entropy for answer in s])),
        "nats per token, mean of the samples' means",
        "entropy of the model's next-token distribution at each drawn token",
    ),
    "perplexity": Signal(
        lambda s, alpha: float(np.exp(np.mean([answer.surprisal for answer in s]))),
        "from 1; exp of the mean of the samples' mean -ln p per token",
        "perplexity of the sampled answers under the model itself",
    ),
    "lexical_disagreement": Signal(
        lambda s, alpha: lexical_disagreement(_texts(s)),
        "from 0 (all the same) to 1 (no word in common)",
        "1 - lexical similarity (mean ROUGE-L of all pairs; Fomicheva et al. 2020)",
    ),
    "answer_groups": Signal(
        lambda s, alpha: float(answer_groups(_texts(s))),
        "1 to k",
        "number of different answers after normalisation",
    ),
    "laplacian_sum": Signal(
        lambda s, alpha: laplacian_sum(_texts(s)),
        "1 to k: an effective number of meanings",
        "sum of max(0, 1 - eigenvalue) of the graph Laplacian, ROUGE-L as similarity (Lin et al. 2023)",
    ),
}


def measure(samples: Answers, alpha: float = seakr.ALPHA) -> dict[str, float]:
    """All signals of one question's samples, in the order of :data:`SIGNALS`.

    Raises :class:`~kbtrain.errors.UserError` for states that are not numbers.
    """
    return {name: signal.compute(samples, alpha) for name, signal in SIGNALS.items()}


def n_empty(samples: Answers) -> int:
    """Number of empty samples: they count as samples, all alike, and are reported."""
    return sum(is_empty(answer.sample.text) for answer in samples)
