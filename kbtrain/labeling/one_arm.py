"""Labels of benefit from logs with one answer a question, by the logged probability of what was done.

The verdict speaks for a search where the log searched and the answer is right, or did not and it is wrong. Its distance
from 1/2, times the inverse of the decision's probability, has the mean (accuracy with minus accuracy without) / 2 + 1/2
over the log: the transformed outcome of Athey and Imbens (2016, "Recursive partitioning for heterogeneous causal
effects", section 2.2). Divided by the largest weight it lies in [0, 1], and any gate learns it as a soft label: the
order of the scores is that of benefit, their distance from 1/2 is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kbtrain.answers.chinese import language_of
from kbtrain.arrays import Bools, Floats
from kbtrain.gate.trained_on import question_hash
from kbtrain.metrics.off_policy import effective_size
from kbtrain.questions.collect import split_of
from kbtrain.records import GateExample, Question, Split


@dataclass(frozen=True)
class OneArmRow:
    """A logged decision with its verdict. ``propensity``: probability of what was done; ``right``: in [0, 1]."""

    id: str
    question: str
    searched: bool
    propensity: float
    right: float


@dataclass(frozen=True)
class OneArmLabels:
    """Examples by split, the different questions, and what the weights say.

    ``effective``: Kish's effective sample size of the training rows; ``clipped``: rows whose weight was cut.
    """

    examples: dict[Split, list[GateExample]]
    questions: list[Question]
    effective: float
    clipped: int
    thinned: int  # dev rows that are skipped


def clipped_weights(propensity: Floats, most: float) -> Floats:
    """Inverse probabilities, at most ``most``."""
    return np.minimum(1 / propensity, most)


def benefit_labels(searched: Bools, right: Floats, weights: Floats) -> Floats:
    """Soft labels in [0, 1] whose mean at a question rises with benefit; 1/2 says nothing."""
    speaks = np.where(searched, right, 1 - right)
    return np.asarray(0.5 + (speaks - 0.5) * weights / weights.max())


def one_arm_labels(rows: Sequence[OneArmRow], shares: Sequence[float], most: float, seed: int = 0) -> OneArmLabels:
    """Training rows with weighted labels. Dev rows are thinned: each stays with its weight's share of the largest, so
    that dev's figures need no weights. Rows of test questions get no example. Splits are by the question's text."""
    splits = np.array([split_of(question_hash(row.question), shares) for row in rows])
    weights = clipped_weights(np.array([row.propensity for row in rows]), most)
    labels = benefit_labels(np.array([row.searched for row in rows]), np.array([row.right for row in rows]), weights)
    stays = np.random.default_rng(seed).random(len(rows)) < weights / weights.max()
    stay = (splits == "train") | ((splits == "dev") & stays)
    examples: dict[Split, list[GateExample]] = {"train": [], "dev": []}
    for place in np.flatnonzero(stay):
        row, split = rows[int(place)], splits[place]
        label = labels[place] if split == "train" else float(row.right if row.searched else 1 - row.right)
        example = replace(GateExample.ask(row.question, language=language_of(row.question)), id=row.id, split=split)
        examples[split].append(replace(example, question_id=question_hash(row.question), soft_benefit=float(label)))
    texts = {question_hash(row.question): (row.question, split) for row, split in zip(rows, splits, strict=True)}
    questions = [
        Question(name, text, (), split, "log", language_of(text), gold="hidden")
        for name, (text, split) in texts.items()
    ]
    train = splits == "train"
    return OneArmLabels(
        examples, questions, effective_size(weights[train]),
        int((weights[train] * np.array([row.propensity for row in rows])[train] < 1 - 1e-9).sum()),
        int(((splits == "dev") & ~stays).sum()),
    )  # fmt: skip
