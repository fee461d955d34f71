"""A gate from logs with one answer a question against the gate from both answers: areas on test questions.

Reads a run folder with both answers to each question. Each training question is logged once: a gate in service (a score
that knows a little of the gain) searches for half of them, a coin decides a share, and the other answer is hidden. The
gate features is fitted to the log's labels, with weights cut at several limits, and to both answers. No model is
loaded; a few minutes.

Examples:
  python studies/one_arm.py --run runs/atlas
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from published.fits import of_features
from pydantic import Field

from kbtrain.answers.grading import rule_verdict
from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.gates.features.frequencies import Frequencies
from kbtrain.gates.features.gate import feature_rows
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.labeling.examples import example
from kbtrain.labeling.one_arm import benefit_labels, clipped_weights
from kbtrain.metrics.off_policy import effective_size
from kbtrain.metrics.ranking import normalised_area
from kbtrain.records import Question
from kbtrain.runtime.progress import progress_bar

SIGNAL = 0.7  # of the gain in the score of the gate in service, beside noise of spread 1


class OneArmConfig(Config):
    run: Path = Field(description="run folder with both answers, and its BM25 index")
    explore: list[float] = Field([0.05, 0.2, 1.0], description="shares of the requests that a coin decides")
    max_weight: list[float] = Field([1.0, 5.0, 10.0, 50.0], description="limits of a row's weight; 1: no weights")
    repeats: int = Field(5, ge=2, description="logs of each share")
    seed: int = Field(0, ge=0, description="of the draws")


def read_verdicts(run: Path) -> tuple[list[Question], Floats]:
    """Questions whose two greedy answers have a verdict, and these verdicts: (n, 2), without and with passages."""
    kept, found = [], []
    with SampleStore(run / "samples.db", read_only=True) as store:
        for question in jsonl.read(Question, run / "questions.jsonl"):
            made = [store.get("main", question.id, condition) for condition in ("llm", "rag")]
            texts = [one.greedy.text for one in made if one is not None and one.greedy is not None]
            right = [rule_verdict(question, text) for text in texts]
            if len(right) == 2 and None not in right:
                kept.append(question)
                found.append([float(bool(one)) for one in right])
    return kept, np.array(found)


def places_of(questions: Sequence[Question], *splits: str) -> list[int]:
    """Places of the questions of these splits."""
    return [place for place, question in enumerate(questions) if question.split in splits]


def main(config: OneArmConfig) -> None:
    questions, verdicts = read_verdicts(config.run)
    rows = feature_rows(
        Frequencies.of_index(config.run / "bm25"), [example(question, None) for question in questions], False
    )
    none, one = verdicts.T
    train, test = places_of(questions, "train", "dev"), places_of(questions, "test")
    fit = of_features(rows)

    def area(labels: Floats) -> float:
        """``labels``: probabilities that a search is needed."""
        return normalised_area(fit(train, 2 * labels - 1, test), none[test], one[test]) or 0.0

    both = area((1 + one[train] - none[train]) / 2)
    print(f"{len(train)} training questions, {len(test)} test questions; both answers: area {both:.3f}")
    print("| explored | weights up to | effective | area, one answer | against both |")
    print("|--:|--:|--:|--:|--:|")
    for explore in config.explore:
        found: dict[float, list[tuple[float, float]]] = defaultdict(list)
        for repeat in progress_bar(range(config.repeats), desc=f"{explore:.0%}", unit="logs"):
            rng = np.random.default_rng([config.seed, repeat])
            scores = SIGNAL * (one - none)[train] + rng.normal(size=len(train))
            decided = scores > np.median(scores)
            searched = np.where(rng.random(len(train)) < explore, rng.random(len(train)) < 0.5, decided)
            propensity = np.where(searched == decided, 1 - explore / 2, explore / 2)
            right = np.where(searched, one[train], none[train])
            for most in config.max_weight if explore < 1 else [2.0]:  # of a coin alone all weights are 2
                weights = clipped_weights(propensity, most)
                found[most].append((effective_size(weights), area(benefit_labels(searched, right, weights))))
        for most, pairs in found.items():
            (size, mean), half = np.mean(pairs, axis=0), 1.96 * np.std(pairs, axis=0, ddof=1)[1] / len(pairs) ** 0.5
            print(
                f"| {explore:.0%} | {most:g} | {size:.0f} | {mean:.3f} ± {half:.3f} | {mean - both:+.3f} |", flush=True
            )


if __name__ == "__main__":
    run_script(main, OneArmConfig, __doc__)
