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

from kbtrain.answers.grading import is_empty
from kbtrain.answers.words import normalise
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
    return 1.0 - float(similarities(tuple(texts)).sum() - k) / (k * (k - 1))


def laplacian_sum(texts: Sequence[str]) -> float:
    """Sum of max(0, 1 - eigenvalue) of I - D^-1/2 W D^-1/2, W the pairwise ROUGE-L: 1 for k equal texts, k for k
    texts without a word in common."""
    w = similarities(tuple(texts))
    scale = 1.0 / np.sqrt(w.sum(axis=1))
    eigenvalues = np.linalg.eigvalsh(w * scale[:, None] * scale[None, :])  # = 1 - those of the Laplacian
    return float(np.maximum(eigenvalues, 0.0).sum())


@functools.lru_cache(maxsize=1)  # two signals read it of the same texts
def similarities(texts: tuple[str, ...]) -> Floats:
    """(k, k) ROUGE-L F1 of the normalised texts; a text is 1 like itself, also an empty one."""
    keys = [normalise(text) for text in texts]
    distinct = list(Counter(keys))  # answers repeat: each pair of different ones is compared once
    table = np.eye(len(distinct))
    for i, first in enumerate(distinct):
        for j in range(i):
            table[i, j] = table[j, i] = _rouge_l(first, distinct[j])
    position = {key: i for i, key in enumerate(distinct)}
    at = [position[key] for key in keys]
    table = table[np.ix_(at, at)]
    table.setflags(write=False)
    return table


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
    """``compute(samples, alpha, k)`` gives one number of those of a question's k sampled answers that say something
    (without the greedy one). ``silent``: the number where fewer than two do, above all others."""

    compute: Callable[[Answers, float, int], float]
    unit: str
    source: str
    silent: float


def mlp_states(samples: Answers) -> Floats:
    """(k, d): MLP output at each sample's forced end token."""
    return np.stack([answer.mlp for answer in samples]).astype(np.float64)


def residual_states(samples: Answers) -> Floats:
    """(k, d): residual stream behind the same layer."""
    return np.stack([answer.residual for answer in samples]).astype(np.float64)


def _texts(samples: Answers) -> list[str]:
    return [answer.sample.text for answer in samples]


# above what the logarithm of any state's squared norm, or any other of these numbers, can be; numbers and no infinity:
# they stand in score files, quantiles and tables
_LOGARITHM, _UNBOUNDED = 100.0, 1e9

SIGNALS: dict[str, Signal] = {
    "seakr": Signal(
        lambda s, alpha, k: seakr.uncertainty(mlp_states(s), alpha, k),
        "nats per sample, from the model's floor to its ceiling",
        "SeaKR, section 3.1: ln det(G + alpha I) / k of the middle MLP's output",
        _LOGARITHM,
    ),
    "seakr_residual": Signal(
        lambda s, alpha, k: seakr.uncertainty(residual_states(s), alpha, k),
        "nats per sample",
        "the same of the residual stream",
        _LOGARITHM,
    ),
    "eigen_score": Signal(
        lambda s, alpha, k: seakr.eigen_score(residual_states(s), alpha, k),
        "mean log10 of eigenvalues",
        "INSIDE, equation 6, on the residual stream",
        _LOGARITHM,
    ),
    "state_variance": Signal(
        lambda s, alpha, k: seakr.state_variance(mlp_states(s)),
        "squared activations, mean of the features",
        "variance of the middle MLP's output over the samples",
        _UNBOUNDED,
    ),
    "token_entropy": Signal(
        lambda s, alpha, k: float(np.mean([answer.entropy for answer in s])),
        "nats per token, mean of the samples' means",
        "entropy of the model's next-token distribution at each drawn token",
        _LOGARITHM,
    ),
    "perplexity": Signal(
        lambda s, alpha, k: float(np.exp(np.mean([answer.surprisal for answer in s]))),
        "from 1; exp of the mean of the samples' mean -ln p per token",
        "perplexity of the sampled answers under the model itself",
        _UNBOUNDED,
    ),
    "lexical_disagreement": Signal(
        lambda s, alpha, k: lexical_disagreement(_texts(s)),
        "from 0 (all the same) to 1 (no word in common)",
        "1 - lexical similarity (mean ROUGE-L of all pairs; Fomicheva et al. 2020)",
        2.0,
    ),
    "answer_groups": Signal(
        lambda s, alpha, k: float(answer_groups(_texts(s))),
        "1 to k",
        "number of different answers after normalisation",
        _UNBOUNDED,
    ),
    "laplacian_sum": Signal(
        lambda s, alpha, k: laplacian_sum(_texts(s)),
        "1 to k: an effective number of meanings",
        "sum of max(0, 1 - eigenvalue) of the graph Laplacian, ROUGE-L as similarity (Lin et al. 2023)",
        _UNBOUNDED,
    ),
}


RESIDUAL = frozenset({"seakr_residual", "eigen_score"})  # signals of the residual stream, which an engine gives
OF_TEXTS = frozenset({"lexical_disagreement", "answer_groups", "laplacian_sum"})


def measure(samples: Answers, alpha: float = seakr.ALPHA) -> dict[str, float]:
    """All signals of one question's samples, in the order of :data:`SIGNALS`.

    Empty samples are dropped: k times nothing would be the greatest agreement there is. Raises
    :class:`~kbtrain.errors.UserError` for states that are not numbers.
    """
    return {name: measure_signal(name, samples, alpha) for name in SIGNALS}


def measure_signal(name: str, samples: Answers, alpha: float = seakr.ALPHA) -> float:
    """One signal of a question's samples, as :func:`measure`."""
    answers, signal = nonempty_answers(samples), SIGNALS[name]
    return signal.silent if len(answers) < 2 else signal.compute(answers, alpha, len(samples))


def nonempty_answers(samples: Answers) -> Answers:
    """The samples that say something."""
    return [answer for answer in samples if not is_empty(answer.sample.text)]
