"""A gate's threshold for a goal, chosen on dev questions, with the evidence to be kept beside it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kbtrain.arrays import Floats
from kbtrain.errors import UserError
from kbtrain.evaluation.outcomes import answers, entities_of, is_needed
from kbtrain.evaluation.run_folder import in_order
from kbtrain.gate.card import promise_text
from kbtrain.metrics.calibration import kept_scores
from kbtrain.metrics.significance import delta, resampled_means
from kbtrain.metrics.thresholds import Dev, choose, control, unchanged
from kbtrain.records import Outcome, Question

Goal = Literal["ratio", "best_accuracy", "max_loss", "given"]
DRAWS = 2000
SEED = 20_242


@dataclass(frozen=True)
class CalibrationGoal:
    """Goal of a threshold: ``ratio`` of retrievals, best accuracy, at most ``max_loss`` of All-RAG's accuracy lost
    (with probability 1 - ``delta`` over the dev questions), or the one ``given``.
    """

    goal: Goal
    ratio: float = 0.5
    max_loss: float = 0.05
    delta: float = 0.1
    given: float | None = None


def warn_of_dependence(questions: Sequence[Question]) -> None:
    """Warn where a promise (:func:`kbtrain.metrics.thresholds.control`) takes dev questions for more evidence than they
    are: it counts each as drawn by itself, and several about one entity are answered alike."""
    entities = len(set(entities_of(questions)))
    if entities < len(questions):
        warnings.warn(
            f"the {len(questions)} dev questions ask about {entities} entities, and the promise counts "
            "each question as drawn by itself: it may fail more often than it says",
            stacklevel=2,
        )


@dataclass(frozen=True)
class Chosen:
    """A threshold and what it does on the dev questions."""

    threshold: float
    rule: str
    evidence: dict[str, Any]

    def line(self) -> str:
        """The threshold, and what it does on dev."""
        e, bound = self.evidence, self.evidence["guarantee"]
        condition = "if these questions chose nothing else of the gate"
        promise = f"; promised: {promise_text(bound)}, {condition}" if bound else ""
        if "changed" in e:
            return (
                f"retrieve if score > {self.threshold:.4f} ({self.rule}); {e['n_dev']} dev questions: "
                f"{1 - e['retrieval_ratio']:.1%} of the searches skipped, {e['changed']:.1%} of the answers differ "
                f"from always searching ({e['changed_never']:.1%} without any search){promise}"
            )
        return (
            f"retrieve if score > {self.threshold:.4f} ({self.rule}); {e['n_dev']} dev questions: "
            f"{e['retrieval_ratio']:.1%} retrieved, accuracy {e['accuracy']:.3f} (LLM only {e['llm_only']:.3f}, "
            f"All-RAG {e['all_rag']:.3f}, random {e['random_at_that_ratio']:.3f}){promise}"
        )


def dev_table(
    gate: str, scores: Mapping[str, float], outcomes: Sequence[Outcome], path: Path, share: float = 1.0
) -> Dev:
    """Scores and greedy answers of the dev questions among ``outcomes``. Raises :class:`UserError` without a score.

    ``share`` of them, picked by a hash of their ids: the others are left for other choices.
    """
    dev = [outcome for outcome in outcomes if outcome.split == "dev" and place_of(outcome.question_id) < share]
    graded = answers(dev, "greedy")
    return Dev(np.array(in_order(gate, scores, dev, path)), graded.llm, graded.rag, is_needed(dev).astype(np.float64))


def place_of(question_id: str) -> float:
    """A number in [0, 1) that depends on the id alone."""
    return int.from_bytes(hashlib.sha256(question_id.encode()).digest()[:6], "big") / 2**48


def calibrate(dev: Dev, goal: CalibrationGoal, floor: float | None = None) -> Chosen:
    """Choose the threshold. ``floor``: the lowest score that the gate can give; none is chosen below it.

    Raises :class:`UserError` without dev questions, or where they are too few for a guarantee.
    """
    if not len(dev.scores):
        raise UserError("no dev question with a score and an outcome to choose a threshold on")
    value, guarantee = _value(dev, goal, floor)
    if floor is not None:
        value = max(value, floor)  # "retrieve everything" lies 1 below the lowest dev score
    return Chosen(value, _rule(goal), _evidence(dev, value) | {"guarantee": guarantee})


def _value(dev: Dev, goal: CalibrationGoal, floor: float | None) -> tuple[float, dict[str, Any] | None]:
    if goal.goal == "given":
        if goal.given is None:
            raise UserError("goal 'given': name the threshold")
        return goal.given, None
    if goal.goal == "max_loss":
        guarantee = control("accuracy_lost", dev, goal.max_loss, goal.delta, floor)
        return guarantee.threshold, asdict(guarantee)
    return choose(goal.goal, dev, goal.ratio).value, None


def calibrate_change(scores: Floats, changed: Floats, limit: float, delta: float, floor: float | None = None) -> Chosen:
    """The threshold with the fewest searches at which at most ``limit`` of the answers differ from always searching.

    The promise holds with probability 1 - ``delta`` over the dev questions. ``changed``: 1 where the answer with
    passages differs; no accepted answer is needed. Raises :class:`UserError` for too few questions.
    """
    guarantee = control("answers_changed", unchanged(scores, changed), limit, delta, floor)
    retrieved = scores > guarantee.threshold
    evidence = {
        "n_dev": len(scores),
        "retrieval_ratio": float(retrieved.mean()),
        "changed": float((changed * ~retrieved).mean()),
        "changed_never": float(changed.mean()),
        "dev_scores": kept_scores(scores),
        "guarantee": asdict(guarantee),
    }
    return Chosen(guarantee.threshold, f"max_change {limit:g} with probability {1 - delta:g}", evidence)


def _rule(goal: CalibrationGoal) -> str:
    """As it is noted in ``gate.json``."""
    if goal.goal == "ratio":
        return f"ratio {goal.ratio:g}"
    if goal.goal == "max_loss":
        return f"max_loss {goal.max_loss:g} with probability {1 - goal.delta:g}"
    return goal.goal


def _evidence(dev: Dev, threshold: float) -> dict[str, Any]:
    """Accuracy of retrieving above the threshold on dev, with 95 % paired bootstrap intervals of the differences."""
    retrieve = (dev.scores > threshold).astype(np.float64)
    gated = np.where(retrieve > 0, dev.rag, dev.llm)
    table = np.stack([gated, dev.llm, dev.rag, retrieve], axis=1)
    means = table.mean(axis=0)
    drawn = resampled_means(table, DRAWS, SEED)

    chance, chances = _random(means[None])[0], _random(drawn)
    differences = {
        "vs_llm_only": delta(means[0] - means[1], drawn[:, 0] - drawn[:, 1]),
        "vs_all_rag": delta(means[0] - means[2], drawn[:, 0] - drawn[:, 2]),
        "vs_random": delta(means[0] - chance, drawn[:, 0] - chances),
    }
    names = ("accuracy", "llm_only", "all_rag", "retrieval_ratio")
    return {
        "n_dev": len(dev.scores),
        **{name: float(value) for name, value in zip(names, means, strict=True)},
        "random_at_that_ratio": float(chance),
        **{name: asdict(difference) for name, difference in differences.items()},
        "dev_scores": kept_scores(dev.scores),
    }


def _random(means: Floats) -> Floats:
    """Expected accuracy of a random gate with the same ratio, from rows of (accuracy, llm, rag, ratio)."""
    expected: Floats = (1 - means[:, 3]) * means[:, 1] + means[:, 3] * means[:, 2]
    return expected
