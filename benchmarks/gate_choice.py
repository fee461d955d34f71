"""By what to choose among gates on dev: the area, or what the gate saves at its own threshold.

The dev and test questions of a run folder are divided anew many times (an entity's questions stay together), as many to
choose on as the run has dev questions. On these a gate is chosen by each rule, with its two thresholds (fewest searches
at a loss of at most 2 points; most right answers); what it does is measured on the rest. The last line compares the
chosen gate's area on the questions that chose it, as observed and corrected for the choice, with the rest. Gates
whose checkpoint was chosen on dev (a KBM's) have seen some of what they are measured on. No model is loaded; seconds.

Examples:
  python benchmarks/gate_choice.py --run runs/demo
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.evaluation.outcomes import Correctness, answers, entities_of
from kbtrain.evaluation.run_folder import read_run
from kbtrain.evaluation.savings import LIMIT, most_right, most_saved
from kbtrain.metrics.choice import ChosenValue, chosen_value
from kbtrain.metrics.ranking import normalised_area
from kbtrain.metrics.significance import resampled_areas

DRAWS, SEED = 400, 20_244  # resamples of the questions of a division


class GateChoiceConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with scored dev and test questions")
    draws: int = Field(300, ge=1, description="divisions of its questions")
    seed: int = Field(0, ge=0, le=2**32 - 1, description="of the divisions")


@dataclass(frozen=True)
class Chosen:
    """A gate chosen on some questions, measured on the others; shares, differences to always searching, and to chance.

    ``fewest`` and ``rightest``: (saved, against always searching, above chance) at the two thresholds.
    """

    gate: str
    area: float
    fewest: tuple[float, float, float]
    rightest: tuple[float, float, float]


def main(config: GateChoiceConfig) -> None:
    folder = read_run(config.run)
    outcomes = [*folder.dev.outcomes, *folder.test.outcomes]
    ids = [one.question_id for one in outcomes]
    scores = {gate: np.array([of[i] for i in ids]) for gate, of in folder.scores.items() if all(i in of for i in ids)}
    entities = np.array(entities_of([*folder.dev.questions, *folder.test.questions]))
    known, generator = answers(outcomes, "greedy"), np.random.default_rng(config.seed)
    found: dict[str, list[Chosen]] = {"what it saves": [], "area": []}
    values: list[ChosenValue] = []
    for _ in range(config.draws):
        dev = divided(entities, len(folder.dev.outcomes), generator)
        for rule, one in chosen(known, scores, dev).items():
            found[rule].append(one)
        values.append(value_on_dev(known, scores, dev, entities))
    print(f"{len(ids)} questions, {config.draws} times {len(folder.dev.outcomes)} of them to choose on")
    print("| chosen by | area | threshold | searches saved | against always searching | above chance "
          "| lost more than 2 points | gates |\n|---|--:|---|--:|--:|--:|--:|---|")  # fmt: skip
    for rule, drawn in found.items():
        for name in ("fewest", "rightest"):
            print(row(rule, name, drawn))
    before, after = (fmean(getattr(one, side).mean for one in values) for side in ("apparent", "corrected"))
    rest = fmean(one.area for one in found["area"])
    print(
        f"area of the gate chosen by it: {before:.3f} on these questions, {after:.3f} corrected, {rest:.3f} on the rest"
    )


def divided(entities: np.ndarray, n: int, generator: np.random.Generator) -> np.ndarray:
    """True for at most ``n`` questions, whole entities of them, drawn."""
    taken = np.zeros(len(entities), dtype=bool)
    for entity in generator.permutation(np.unique(entities)):
        own = entities == entity
        if taken.sum() + own.sum() <= n:
            taken |= own
    return taken


def chosen(known: Correctness, scores: Mapping[str, Floats], dev: np.ndarray) -> dict[str, Chosen]:
    """The gate by each rule."""
    before = Correctness(known.kind, known.llm[dev], known.rag[dev])
    area = {gate: normalised_area(one[dev], before.llm, before.rag) or 0.0 for gate, one in scores.items()}
    fewest = {gate: most_saved(one[dev], before) for gate, one in scores.items()}
    best = {
        "what it saves": max(scores, key=lambda gate: (fewest[gate][1], area[gate])),
        "area": max(scores, key=lambda gate: (area[gate], fewest[gate][1])),
    }
    found = {}
    for rule, gate in best.items():
        rightest = most_right(scores[gate][dev], before)
        rest = scores[gate][~dev], known.llm[~dev], known.rag[~dev]
        found[rule] = Chosen(gate, normalised_area(*rest) or 0.0, at(fewest[gate][0], *rest), at(rightest, *rest))
    return found


def value_on_dev(
    known: Correctness, scores: Mapping[str, Floats], dev: np.ndarray, entities: np.ndarray
) -> ChosenValue:
    """Area of the best gate on the questions that choose it, as observed and corrected for the choice."""
    before, own = (known.llm[dev], known.rag[dev]), [one[dev] for one in scores.values()]
    seen = [normalised_area(one, *before) or 0.0 for one in own]
    return chosen_value(np.concatenate([[seen], resampled_areas(own, *before, DRAWS, SEED, entities[dev].tolist())]))


def at(threshold: float, scores: Floats, llm: Floats, rag: Floats) -> tuple[float, float, float]:
    """Searches saved, accuracy minus always searching's, and minus that of as many searches at random."""
    searched = scores > threshold
    accuracy, ratio = float(np.where(searched, rag, llm).mean()), float(searched.mean())
    random = float(llm.mean() + ratio * (rag.mean() - llm.mean()))
    return 1 - ratio, accuracy - float(rag.mean()), accuracy - random


def row(rule: str, threshold: str, drawn: Sequence[Chosen]) -> str:
    """Means over the divisions, and the gates with how often each was chosen."""
    values = [getattr(one, threshold) for one in drawn]
    saved, change, over = (fmean(value[i] for value in values) for i in range(3))
    lost = fmean(value[1] < -LIMIT for value in values)
    gates = ", ".join(f"{gate} {n}" for gate, n in Counter(one.gate for one in drawn).most_common())
    name = {"fewest": "fewest searches", "rightest": "most right answers"}[threshold]
    return (
        f"| {rule} | {fmean(one.area for one in drawn):.3f} | {name} | {saved:.1%} | {100 * change:+.1f} "
        f"| {100 * over:+.1f} | {lost:.0%} | {gates} |"
    )


if __name__ == "__main__":
    run_script(main, GateChoiceConfig, __doc__)
