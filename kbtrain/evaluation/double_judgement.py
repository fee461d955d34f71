"""Double judgement (KBM, section 5.4, figures 7 and 8): chunks are passed on only if the gate can answer with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kbtrain.arrays import Floats
from kbtrain.metrics.thresholds import Dev, Rule, choose


@dataclass(frozen=True)
class StoredAnswers:
    """Correctness of both answers of each question, and the prompt tokens they read."""

    llm: Floats
    rag: Floats
    llm_tokens: Floats
    rag_tokens: Floats


@dataclass(frozen=True)
class Way:
    """Accuracy, share of questions searched for, share whose chunks were passed on, and prompt tokens read in all."""

    name: str
    accuracy: float
    searched: float
    passed_on: float
    tokens: int


@dataclass(frozen=True)
class DoubleJudgement:
    """Four ways to answer the same ``n`` questions: LLM Only, All RAG, one judgement of the gate, two judgements.

    ``threshold`` and ``second_threshold`` are those of the scores without and with the reference.
    """

    gate: str
    n: int
    threshold: float
    second_threshold: float
    ways: tuple[Way, ...]


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
    gate: str, first: Floats, with_reference: Floats, read: StoredAnswers, threshold: float, second: float
) -> DoubleJudgement:
    """``first``: scores of the plain questions; ``with_reference``: of the same questions with their chunks."""
    searched = first > threshold
    passed_on = searched & (with_reference <= second)
    none, everything = np.zeros_like(searched), np.ones_like(searched)
    ways = (
        _way("LLM Only", none, none, read),
        _way("All RAG", everything, everything, read),
        _way("gate", searched, searched, read),
        _way("double judgement", searched, passed_on, read),
    )
    return DoubleJudgement(gate, len(first), threshold, second, ways)


def _way(name: str, searched: NDArray[np.bool_], passed_on: NDArray[np.bool_], read: StoredAnswers) -> Way:
    accuracy = np.where(passed_on, read.rag, read.llm).mean()
    tokens = np.where(passed_on, read.rag_tokens, read.llm_tokens).sum()
    return Way(name, float(accuracy), float(searched.mean()), float(passed_on.mean()), round(float(tokens)))
