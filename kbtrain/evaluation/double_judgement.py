"""Double judgement (KBM, section 5.4, figures 7 and 8): chunks are passed on only if the gate can answer with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbtrain.arrays import Floats
from kbtrain.metrics.significance import Delta, delta, resampled_means
from kbtrain.metrics.thresholds import Dev, Rule, choose

DRAWS = 5_000
SEED = 20_243


@dataclass(frozen=True)
class StoredAnswers:
    """Correctness of both answers of each question, and the prompt tokens they read.

    ``clusters``: names of groups of questions that intervals draw as a whole; None: they draw questions.
    """

    llm: Floats
    rag: Floats
    llm_tokens: Floats
    rag_tokens: Floats
    clusters: Sequence[str] | None = None


@dataclass(frozen=True)
class AnswerPolicy:
    """Accuracy, share of questions searched for, share whose chunks were passed on, and prompt tokens read in all.

    ``gain``: accuracy minus that of as many chunks passed on at random; ``gate_tokens``: what the gate itself read for
    its judgements (None: not measured).
    """

    name: str
    accuracy: float
    searched: float
    passed_on: float
    tokens: int
    gain: Delta
    gate_tokens: int | None


@dataclass(frozen=True)
class JudgementTokens:
    """Prompt tokens that the gate reads per question for its first and for its second judgement; None: not measured."""

    first: float | None = None
    second: float | None = None

    def total(self, n: int, n_again: int) -> int | None:
        """Of ``n`` first judgements and ``n_again`` second ones."""
        if self.first is None or (n_again and self.second is None):
            return None
        return round(n * self.first + n_again * (self.second or 0.0))


@dataclass(frozen=True)
class DoubleJudgement:
    """Five ways to answer the same ``n`` questions: LLM Only, All RAG, one judgement of the gate, two judgements, and
    as many chunks passed on as by two judgements, at random.

    ``threshold`` and ``second_threshold`` are those of the scores without and with the reference. ``second_gain``:
    accuracy of two judgements minus that of one.
    """

    gate: str
    n: int
    threshold: float
    second_threshold: float
    ways: tuple[AnswerPolicy, ...]
    second_gain: Delta


def second_threshold(rule: Rule, searched: NDArray[np.bool_], with_reference: Floats, read: StoredAnswers) -> float:
    """Chosen on the dev questions that the first judgement searches for: chunks are dropped if the score with them
    is above it. Of equally accurate thresholds, the one that passes on the fewest: reading less is what the second
    judgement is for. Rule ``0.5`` needs no dev; without a searched dev question it is 0.5 as well."""
    if rule == "0.5" or not searched.any():
        return 0.5
    # "retrieve" of the rule, which prefers few of them, is "pass the chunks on" here: the scores change their sign
    passed_on = Dev(
        -with_reference[searched], read.llm[searched], read.rag[searched], (read.rag > read.llm)[searched].astype(float)
    )
    # passed on: -score > value; judge_twice passes on what is not above the second threshold
    return float(np.nextafter(-choose("best_accuracy", passed_on).value, -np.inf))


def judge_twice(
    gate: str,
    first: Floats,
    with_reference: Floats,
    read: StoredAnswers,
    thresholds: tuple[float, float],
    judging: JudgementTokens = JudgementTokens(),
) -> DoubleJudgement:
    """``first``: scores of the plain questions; ``with_reference``: of the same questions with their chunks;
    ``thresholds`` of both."""
    threshold, second = thresholds
    searched = first > threshold
    passed_on = searched & (with_reference <= second)
    none, everything, n = np.zeros_like(searched), np.ones_like(searched), len(first)
    chosen = {
        "LLM Only": (none, none, 0),
        "All RAG": (everything, everything, 0),
        "gate": (searched, searched, judging.total(n, 0)),
        "double judgement": (searched, passed_on, judging.total(n, int(searched.sum()))),
    }
    right = {name: np.where(passed, read.rag, read.llm) for name, (_, passed, _) in chosen.items()}
    columns = np.stack([read.llm, read.rag, *(c for name in chosen for c in (right[name], chosen[name][1]))], axis=1)
    means, drawn = columns.mean(axis=0), resampled_means(columns.astype(np.float64), DRAWS, SEED, read.clusters)
    ways = []
    for i, (name, (is_searched, passed, gate_tokens)) in enumerate(chosen.items()):
        tokens = np.where(passed, read.rag_tokens, read.llm_tokens).sum()
        shares = float(is_searched.mean()), float(passed.mean())
        gain, accuracy = _over_random(means, drawn, 2 + 2 * i), float(right[name].mean())
        ways.append(AnswerPolicy(name, accuracy, *shares, round(float(tokens)), gain, gate_tokens))
    ways.append(_random(float(passed_on.mean()), read))
    gained = delta(float(means[8] - means[6]), drawn[:, 8] - drawn[:, 6])
    return DoubleJudgement(gate, n, threshold, second, tuple(ways), gained)


def _over_random(means: Floats, drawn: Floats, at: int) -> Delta:
    """Accuracy (column ``at``) minus that of as many random chunks; each resample has its own share and accuracies."""

    def gain(columns: Floats) -> Floats:
        llm, rag, right, share = (columns[..., i] for i in (0, 1, at, at + 1))
        difference: Floats = right - (llm + share * (rag - llm))
        return difference

    return delta(float(gain(means)), gain(drawn))


def _random(share: float, read: StoredAnswers) -> AnswerPolicy:
    """As many chunks passed on, of questions drawn at random, which only these are searched for: expected figures."""
    accuracy = (1 - share) * read.llm.mean() + share * read.rag.mean()
    tokens = (1 - share) * read.llm_tokens.sum() + share * read.rag_tokens.sum()
    return AnswerPolicy("random", float(accuracy), share, share, round(float(tokens)), Delta(0.0, 0.0, 0.0), 0)
