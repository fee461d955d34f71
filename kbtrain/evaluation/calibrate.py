"""A gate's threshold for a goal, chosen on dev questions, with the evidence to be kept beside it."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain.errors import UserError
from kbtrain.evaluation.decisions import DevRule, choose_threshold
from kbtrain.evaluation.outcomes import answers, entities_of, is_needed
from kbtrain.evaluation.scores import in_order
from kbtrain.gate.card import Threshold, promise_text
from kbtrain.gates.question_shift import dev_questions
from kbtrain.metrics.calibration import kept_scores
from kbtrain.metrics.significance import draw_policies, interval
from kbtrain.metrics.thresholds import Dev
from kbtrain.records import Outcome, Question

DRAWS = 2000
SEED = 20_242


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
    values = np.array(in_order(gate, scores, [outcome.question_id for outcome in dev], path))
    return Dev(values, graded.llm, graded.rag, is_needed(dev).astype(np.float64))


def place_of(question_id: str) -> float:
    """A number in [0, 1) that depends on the id alone."""
    return int.from_bytes(hashlib.sha256(question_id.encode()).digest()[:6], "big") / 2**48


def calibrate(dev: Dev, cut: DevRule, floor: float | None = None, preset: float | None = None) -> Chosen:
    """Choose the threshold by a rule, or take the ``preset`` one by rule given; none is chosen below ``floor``, the
    lowest score that the gate can give.

    Raises :class:`UserError` without dev questions, or where they are too few for a guarantee.
    """
    if not len(dev.scores):
        raise UserError("no dev question with a score and an outcome to choose a threshold on")
    choice = choose_threshold(dev, cut, floor, preset)
    guarantee = None if choice.guarantee is None else asdict(choice.guarantee)
    return Chosen(choice.value, str(cut), _evidence(dev, choice.value) | {"guarantee": guarantee})


def question_facts(questions: Sequence[Question]) -> dict[str, Any]:
    """Numbers of the dev questions, kept with a threshold, by which a later shift of questions is seen."""
    if not questions:
        return {}
    return {"questions": dev_questions([question.text for question in questions], len(set(entities_of(questions))))}


def card_threshold(chosen: Chosen, dev: Sequence[Question], hashes: Mapping[str, str]) -> Threshold:
    """The threshold for a gate's card; ``hashes``: of the score file first, then of other files it was chosen from."""
    return Threshold(
        threshold=chosen.threshold,
        rule=chosen.rule,
        dev_file_sha256=next(iter(hashes.values())),
        n_dev=chosen.evidence["n_dev"],
        evidence=chosen.evidence | {"sha256": dict(hashes)},
        dev=question_facts(dev),
    )


def _evidence(dev: Dev, threshold: float) -> dict[str, Any]:
    """Accuracy of retrieving above the threshold on dev, with 95 % paired bootstrap intervals of the differences."""
    retrieve = (dev.scores > threshold).astype(np.float64)
    (of,) = draw_policies(dev.llm, dev.rag, [retrieve], DRAWS, SEED)
    return {
        "n_dev": len(dev.scores),
        "accuracy": float(of.accuracy[0]),
        "llm_only": float(of.llm[0]),
        "all_rag": float(of.rag[0]),
        "retrieval_ratio": float(of.ratio[0]),
        "random_at_that_ratio": float(of.chance[0]),
        "vs_llm_only": asdict(interval(of.accuracy - of.llm)),
        "vs_all_rag": asdict(interval(of.accuracy - of.rag)),
        "vs_random": asdict(interval(of.gain)),
        "dev_scores": kept_scores(dev.scores),
    }
