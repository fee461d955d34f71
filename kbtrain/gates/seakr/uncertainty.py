"""SeaKR's uncertainty: dispersion of a model's own states at the end of sampled answers (SeaKR, section 3.1).

Z holds one state per sample (k x d). Rows are centred over features, G = Z Zt, and U = ln det(G + alpha I) / k. Higher
= the answers differ more within the model = retrieval more needed. The unit is nats per sample, but its scale belongs
to one model, layer, k and alpha: :func:`floor` and :func:`ceiling` give its attainable range.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from pydantic import BaseModel, ConfigDict

from kbtrain.arrays import Floats
from kbtrain.errors import UserError

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


class Scale(BaseModel):
    """Attainable range of U for one model, layer, k and alpha: measured squared norms of its states over ``n``
    questions, and the ends that follow from them.

    Each question's norm is the mean over its samples. ``low``, ``mean``, ``high``: smallest, mean and largest of them.
    No question with states as long as these has a U under ``floor`` or above ``ceiling``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    n: int
    low: float
    mean: float
    high: float
    floor: float
    ceiling: float
    mean_floor: float

    @classmethod
    def from_norms(cls, squared_norms: ArrayLike, k: int, alpha: float = ALPHA) -> Scale:
        """From the questions' mean squared norms, of one question at least."""
        norms = np.asarray(squared_norms, dtype=np.float64)
        low, mean, high = float(norms.min()), float(norms.mean()), float(norms.max())
        return cls(
            n=len(norms), low=low, mean=mean, high=high,
            floor=floor(low, k, alpha), ceiling=ceiling(high, alpha), mean_floor=floor(mean, k, alpha),
        )  # fmt: skip

    def check(self, threshold: float) -> None:
        """Refuse a threshold that no question can stay under. Raises :class:`UserError` with the explanation."""
        if threshold < self.floor:
            raise UserError(
                f"threshold {threshold:g} is under the floor {self.floor:.3f} of this model, layer, k and alpha. Even "
                "identical answers score more, so every question would be retrieved for. A published threshold is for "
                "its own model: choose one with eval/calibrate.py"
            )


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


def state_variance(states: ArrayLike) -> float:
    """Variance over the samples, mean of all features, in squared activations."""
    gram(states)  # refuses what is not finite
    return float(np.asarray(states, dtype=np.float64).var(axis=0).mean())
