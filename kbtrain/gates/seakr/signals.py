"""Uncertainty signals from the same samples, by name; higher = more uncertain = retrieval more needed.

SeaKR's (section 3.1) is the dispersion of a model's own states at the end of sampled answers. Z holds one state per
sample (k x d). Rows are centred over features, G = Z Zt, and U = ln det(G + alpha I) / k, in nats per sample. Its scale
belongs to one model, layer, k and alpha: :func:`floor` and :func:`ceiling` give its attainable range.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from kbtrain.answers.grading import is_empty
from kbtrain.answers.words import normalise
from kbtrain.arrays import Floats
from kbtrain.errors import UserError

if TYPE_CHECKING:
    from kbtrain.llm.sampler.state_sampler import AnswerWithStates

ALPHA = 1e-3


def gram(states: ArrayLike) -> Floats:
    """G (k x k) of states (k x d) whose rows are centred over their features, in float64.

    Raises :class:`UserError` if a state is not finite, as a model in too coarse a number format makes them.
    """
    z = np.asarray(states, dtype=np.float64)
    if not np.isfinite(z).all():
        bad = int((~np.isfinite(z)).any(axis=1).sum())
        raise UserError(f"hidden states of {bad} of {len(z)} samples are not numbers; try dtype fp32 (or bf16)")
    z = z - z.mean(axis=1, keepdims=True)
    product: Floats = z @ z.T
    return product


def uncertainty(states: ArrayLike, alpha: float = ALPHA, k: int | None = None) -> float:
    """U of states (k x d), in nats per sample; between their :func:`floor` and :func:`ceiling`.

    ``k``: as many samples were drawn, though some said nothing; U is then that :func:`of_k` samples.
    """
    g = gram(states)
    value = log_det(g, alpha)
    return value if k is None else of_k(value, squared_norm(g), len(g), k, alpha)


def of_k(value: float, squared_norm: float, n: int, k: int, alpha: float = ALPHA) -> float:
    """U of ``n`` samples (2 or more) where U of ``k`` would be: as far between floor and ceiling, which is exact at
    both ends.

    The floor falls with the number of samples (-5.20 for 5, -6.41 for 20 of squared norm 1), so U of fewer samples, a
    threshold of k and U of another prompt are not numbers of one scale.
    """
    if n == k:
        return value
    low, high, low_k = floor(squared_norm, n, alpha), ceiling(squared_norm, alpha), floor(squared_norm, k, alpha)
    return high - (high - value) * (high - low_k) / (high - low) if high > low else value


def log_det(g: Floats, alpha: float = ALPHA) -> float:
    """ln det(G + alpha I) / k. Equal states leave G with one eigenvalue; the others are alpha."""
    sign, value = np.linalg.slogdet(g + alpha * np.eye(len(g)))
    if sign <= 0:  # rounding of a G whose entries dwarf alpha: its eigenvalues are not negative in truth
        value = float(np.log(np.maximum(np.linalg.eigvalsh(g), 0.0) + alpha).sum())
    return float(value) / len(g)


def floor(squared_norm: float, k: int, alpha: float = ALPHA) -> float:
    """U of k identical states of this squared norm (mean of the samples'; after centring): nothing is lower."""
    return ((k - 1) * math.log(alpha) + math.log(k * squared_norm + alpha)) / k


def ceiling(squared_norm: float, alpha: float = ALPHA) -> float:
    """U of orthogonal states of this squared norm: by Hadamard's inequality nothing is higher."""
    return math.log(squared_norm + alpha)


def squared_norm(g: Floats) -> float:
    """Mean squared norm of the centred states behind G."""
    return float(np.trace(g)) / len(g)


def eigen_score(states: ArrayLike, alpha: float = ALPHA, k: int | None = None) -> float:
    """INSIDE's EigenScore: mean log10 of the singular values of cov + alpha I, cov = G / (d - 1). No unit; ``k`` as
    in :func:`uncertainty`."""
    z = np.asarray(states, dtype=np.float64)
    cov = gram(z) / (z.shape[1] - 1)
    values = np.linalg.svd(cov + alpha * np.eye(len(z)), compute_uv=False)
    value = float(np.log10(values).mean())
    return value if k is None else of_k(value * math.log(10), squared_norm(cov), len(z), k, alpha) / math.log(10)


def answer_groups(texts: Sequence[str]) -> int:
    """Number of distinct answers, after the normalisation by which answers are graded."""
    return len({normalise(text) for text in texts})


Answers = Sequence["AnswerWithStates"]


@dataclass(frozen=True)
class Signal:
    """``compute(samples, alpha, k)`` gives one number of those of a question's k sampled answers that say something
    (without the greedy one). ``silent``: the number where fewer than two do, above all others."""

    compute: Callable[[Answers, float, int], float]
    unit: str
    source: str
    silent: float


def states_of(samples: Answers, place: Literal["mlp", "residual"]) -> Floats:
    """(k, d): MLP output at each sample's forced end token, or the residual stream behind the same layer."""
    return np.stack([getattr(answer, place) for answer in samples]).astype(np.float64)


# above what the logarithm of any state's squared norm, or any other of these numbers, can be; numbers and no infinity:
# they are in score files, quantiles and tables
_LOGARITHM, _UNBOUNDED = 100.0, 1e9

SIGNALS: dict[str, Signal] = {
    "seakr": Signal(
        lambda s, alpha, k: uncertainty(states_of(s, "mlp"), alpha, k),
        "nats per sample, from the model's floor to its ceiling",
        "SeaKR, section 3.1: ln det(G + alpha I) / k of the middle MLP's output", _LOGARITHM),
    "seakr_residual": Signal(
        lambda s, alpha, k: uncertainty(states_of(s, "residual"), alpha, k), "nats per sample",
        "the same of the residual stream", _LOGARITHM),
    "eigen_score": Signal(
        lambda s, alpha, k: eigen_score(states_of(s, "residual"), alpha, k), "mean log10 of eigenvalues",
        "INSIDE, equation 6, on the residual stream", _LOGARITHM),
    "token_entropy": Signal(
        lambda s, alpha, k: float(np.mean([answer.entropy for answer in s])),
        "nats per token, mean of the samples' means",
        "entropy of the model's next-token distribution at each drawn token", _LOGARITHM),
    "perplexity": Signal(
        lambda s, alpha, k: float(np.exp(np.mean([answer.surprisal for answer in s]))),
        "from 1; exp of the mean of the samples' mean -ln p per token",
        "perplexity of the sampled answers under the model itself", _UNBOUNDED),
    "answer_groups": Signal(
        lambda s, alpha, k: float(answer_groups([answer.sample.text for answer in s])), "1 to k",
        "number of different answers after normalisation", _UNBOUNDED),
}  # fmt: skip
RESIDUAL = frozenset({"seakr_residual", "eigen_score"})  # signals of the residual stream, which an engine gives
OF_TEXTS = frozenset({"answer_groups"})


def measure(samples: Answers, alpha: float = ALPHA) -> dict[str, float]:
    """All signals of one question's samples, in the order of :data:`SIGNALS`.

    Empty samples are dropped: k times nothing would be the greatest agreement there is. Raises
    :class:`~kbtrain.errors.UserError` for states that are not numbers.
    """
    return {name: measure_signal(name, samples, alpha) for name in SIGNALS}


def measure_signal(name: str, samples: Answers, alpha: float = ALPHA) -> float:
    """One signal of a question's samples, as :func:`measure`."""
    answers, signal = nonempty_answers(samples), SIGNALS[name]
    return signal.silent if len(answers) < 2 else signal.compute(answers, alpha, len(samples))


def nonempty_answers(samples: Answers) -> Answers:
    """The samples that say something."""
    return [answer for answer in samples if not is_empty(answer.sample.text)]
