"""Every uncertainty that the same samples give, by name, so that SeaKR stands beside what costs nothing more.

All are turned so that higher = more uncertain = retrieval more needed; :data:`SIGNALS` says each one's unit and source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kbtrain.answers.grading import is_empty
from kbtrain.gates.seakr import uncertainty as seakr
from kbtrain.gates.seakr.signals_text import answer_groups, laplacian_sum, lexical_disagreement

if TYPE_CHECKING:
    from kbtrain.llm.sampler.state_sampler import ClosedAnswer

Answers = Sequence["ClosedAnswer"]


@dataclass(frozen=True)
class Signal:
    """``compute(samples, alpha)`` gives one number of a question's sampled answers (the greedy one is none of them)."""

    compute: Callable[[Answers, float], float]
    unit: str
    source: str


def mlp_states(samples: Answers) -> seakr.Floats:
    """(k, d): MLP output at each sample's forced end token."""
    return np.stack([answer.mlp for answer in samples]).astype(np.float64)


def residual_states(samples: Answers) -> seakr.Floats:
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
    """Samples that say nothing: they count as samples, all alike, and are reported."""
    return sum(is_empty(answer.sample.text) for answer in samples)
