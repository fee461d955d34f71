"""Summarise finished evaluations of one gate recipe over seeds: means, spread over seeds, and intervals with both.

Reads results.json, outcomes.jsonl and scores/ of each run folder (the same test questions in all); writes OUT: each
gate's accuracy, of greedy answers, and its gain over random by seed, their spread, and 95 % intervals that redraw
the questions alone, and the questions and the seeds (entities with all their questions where all runs' evaluations draw
those).

Examples:
  python studies/seeds.py --runs "[runs/seed0, runs/seed1, runs/seed2]" --out runs/seeds.json
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compare_runs import FinishedRun, answers_of, read_finished
from different_paths import DifferentPaths
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.scores import Seen
from kbtrain.io.provenance import write_result
from kbtrain.metrics.significance import Delta, delta, resampled_means
from kbtrain.metrics.significance import interval as interval_of
from kbtrain.report import summary
from kbtrain.show import aligned, number, signed


class SeedsConfig(Config):
    runs: DifferentPaths = Field(description="two or more run folders, one for each seed")
    bootstrap_draws: int = Field(10_000, ge=100, description="resamples")
    out: Path = Field(Path("runs/seeds.json"), description="the result")

    def writes(self) -> tuple[Path, ...]:
        return (self.out,)


def main(config: SeedsConfig) -> None:
    started = time.monotonic()
    runs = [read_finished(path) for path in config.runs]
    check(runs)
    names = [gate.gate for gate in runs[0].results.gates if gate.threshold_rule is not None]
    entities = all(run.entities for run in runs)
    clusters = [runs[0].entities[o.question_id] for o in runs[0].outcomes] if entities else None
    by_gate: dict[str, dict[str, SeedSummary]] = {}
    for name in names:
        columns = [answers_of(run, name) for run in runs]
        complete = [column for column in columns if column is not None]
        if len(complete) == len(runs):
            correct = [column[:, 0] for column in complete]
            beside = [np.column_stack([column[:, 0], answers(run), column[:, 1]])
                      for run, column in zip(runs, complete, strict=True)]  # fmt: skip
            by_gate[name] = {
                "accuracy": summarise_seeds(correct, config.bootstrap_draws, clusters=clusters),
                "gain": summarise_seeds(beside, config.bootstrap_draws, figure=gain_over_random, clusters=clusters),
            }
    document = {"runs": [str(path) for path in config.runs], "gates": {
        gate: {key: dataclasses.asdict(s) for key, s in row.items()} for gate, row in by_gate.items()}}  # fmt: skip
    inputs = [path / "results.json" for path in config.runs]
    write_result(config.out, document, stage="seeds", config=config, inputs=inputs, started=started)
    print(table(by_gate, {name: sum((g.seen for run in runs for g in run.results.gates if g.gate == name), Seen()).mark
                        for name in by_gate}))  # fmt: skip
    units = summary.bootstrap_units(runs[0].results.meta if entities else {})
    seeds = f"{len(runs)} seeds by greedy answers"
    print(f"summarised {len(by_gate)} gates over {seeds}, intervals draw {units} -> {config.out}")


def check(runs: list[FinishedRun]) -> None:
    """Refuse runs that are not of the same test questions in the same order."""
    ids = [[(o.question_id, run.asked.get(o.question_id)) for o in run.outcomes] for run in runs]
    different = next((run.name for run, run_ids in zip(runs, ids, strict=True) if run_ids != ids[0]), None)
    if len(runs) < 2 or different is not None:
        problem = f"'{different}' has other test questions than '{runs[0].name}'" if different else "give at least two"
        raise UserError(f"key 'runs': {problem}; seeds are compared on the same questions")


def answers(run: FinishedRun) -> np.ndarray:
    """Correctness of each question without and with retrieval: (n, 2)."""
    return np.array([(o.llm_correct, o.rag_correct) for o in run.outcomes], float)


def interval(delta: Delta) -> str:
    """``[+.010, +.052]``."""
    return f"[{signed(delta.low)}, {signed(delta.high)}]"


def table(summaries: dict[str, dict[str, SeedSummary]], marks: Mapping[str, str]) -> str:
    """One row per gate and figure; ``marks``: questions that a gate knew from training, of all seeds together."""
    head = ("gate", "figure", "mean", "spread", "95 %, questions", "95 %, both", "by seed")
    rows = [
        [gate + marks[gate], key, number(s.mean), number(s.spread), interval(s.questions), interval(s.both),
         " ".join(map(number, s.by_seed))]
        for gate, figures in summaries.items()
        for key, s in figures.items()
    ]  # fmt: skip
    return aligned(head, rows)


@dataclass(frozen=True)
class SeedSummary:
    """A figure that is a mean over questions, measured for several seeds on the same questions.

    ``by_seed``: its value for each; ``spread``: their standard deviation (n - 1; None for one seed); ``questions``:
    95 % interval of the mean over seeds if only the questions were redrawn; ``both``: if the seeds were, too.
    """

    mean: float
    by_seed: list[float]
    spread: float | None
    questions: Delta
    both: Delta


Figure = Callable[[Floats], Floats]  # means of a seed's columns (..., k) -> the figure (...)


def gain_over_random(means: Floats) -> Floats:
    """Accuracy beyond a random gate of the same ratio, from means of (correct, llm, rag, retrieved)."""
    correct, llm, rag, ratio = (means[..., i] for i in range(4))
    gain: Floats = correct - (1 - ratio) * llm - ratio * rag
    return gain


def summarise_seeds(
    values: Sequence[Floats],
    draws: int,
    figure: Figure | None = None,
    clusters: Sequence[str] | None = None,
) -> SeedSummary:
    """``values[s][i]``: the figure of question i under seed s, e.g. correctness, or a difference to another gate.

    ``figure``: for one that is not a mean over questions; ``values[s]`` are then columns (n, k), and it is made from
    their means in each draw, since a fixed part (a ratio, chance) would count as known. ``clusters``: of each
    question; whole clusters are drawn then.

    The second bootstrap draws seeds with replacement, and questions for all of them alike: seeds share their test
    questions, so the two are crossed, not nested. With few seeds it is too narrow by about sqrt((s - 1) / s).
    """
    table = np.concatenate([value.reshape(len(value), -1) for value in values], axis=1)

    def of_seeds(column_means: Floats) -> Floats:
        """Means of all columns (..., s k) -> each seed's figure (..., s)."""
        by_seed = column_means.reshape(*column_means.shape[:-1], len(values), -1)
        return by_seed[..., 0] if figure is None else figure(by_seed)

    means, *_ = drawn = of_seeds(resampled_means(table, draws, 0, clusters))
    picked = np.random.default_rng([0, 1]).integers(len(values), size=(draws, len(values)))
    crossed = np.take_along_axis(drawn[1:], picked, axis=1).mean(axis=1)
    return SeedSummary(
        mean=float(means.mean()),
        by_seed=[float(mean) for mean in means],
        spread=float(means.std(ddof=1)) if len(means) > 1 else None,
        questions=interval_of(drawn.mean(axis=1)),
        both=delta(float(means.mean()), crossed),
    )


if __name__ == "__main__":
    run_script(main, SeedsConfig, __doc__)
