"""How often a threshold chosen on 150 questions loses to the better of never and always, by rule and by cell.

A cell is an answering model and a data set. 300 times, 150 of a cell's test questions choose, the other 350 measure. A
miss is more than one point below the better of never and always there. Rules: ``best_accuracy`` with a margin of 0, 1
and 2 standard errors, without and with the train questions and their held-out scores
(:mod:`kbtrain.metrics.thresholds` has margin 2, with them); half: the same, but where never or always results and the
two differ by less than a standard error, it searches for the half with the highest scores; and no gate: the better of
never and always on the 150, on these and the train questions, and on all 500 test questions. The last one cannot be
known: its misses are the floor.
``--nested true`` uses train questions alone: 150 choose, 150 more stand for the train questions, 200 measure. Margin
and rule were chosen by that table. No gate is fitted: scores are those of studies/evidence.py.

With ``--run`` both errors of the margin are simulated on a run's dev and test questions, taken as all there are: a
threshold is chosen though no gate is better than never and always (the gate's scores are shuffled), and none is chosen
although the gate is better (its scores as they are). 150 questions are the demo's dev split, 650 that and the training
questions with held-out scores.

Examples:
  python studies/threshold_margin.py --run runs/demo
  python studies/threshold_margin.py --path "[llm_outcomes/outcomes.jsonl, llm_outcomes_more/outcomes.jsonl]"
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from published.outcomes import read_judged
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.run_folder import read_outcomes
from kbtrain.evaluation.scores import stored_scores
from kbtrain.io.provenance import write_atomically
from kbtrain.metrics.thresholds import Dev, Training, cuts, gains_beyond_margin, with_training

RULES = ("margin 0", "margin 1", "margin 2", "margin 1, train", "margin 2, train", "half", "no gate", "no gate, train",
         "floor")  # fmt: skip
DEV, MISS = 150, 0.01
Table = dict[str, list[list[str]] | list[str]]
Tables = dict[str, Table]


class ThresholdMarginConfig(Config):
    path: tuple[Path, ...] = Field((), description="JSON Lines files of questions and verdicts")
    run: Path | None = Field(None, description="run folder: simulate both errors on its questions instead")
    times: int = Field(1000, ge=1, description="run: simulated draws of dev questions")
    scores: Path = Field(Path("runs/evidence/scores"), description="folder of score files by model")
    gate: str = Field("features_by_set", description="gate whose threshold is chosen")
    splits: int = Field(300, ge=1, description="re-splits of each cell")
    nested: bool = Field(False, description="train questions alone, by which the rule was chosen")
    out: Path = Field(Path("runs/evidence"), description="folder of the result")

    def writes(self) -> tuple[Path, ...]:
        return (self.target,)

    @property
    def target(self) -> Path:
        return self.out / f"margin{'-nested' if self.nested else ''}.json"


def main(config: ThresholdMarginConfig) -> None:
    if config.run is None and not config.path:
        raise UserError("key 'path': no file of questions and verdicts; or give --run")
    tables = of_cells(config) if config.run is None else {"margin-errors": simulated(config.run, config.times)}
    write_atomically(config.target, json.dumps({"tables": tables}, indent=1) + "\n")
    for made in tables.values():
        print("\n".join("| " + " | ".join(row) + " |" for row in (made["columns"], *made["rows"])), end="\n\n")


def of_cells(config: ThresholdMarginConfig) -> Tables:
    """Misses of every rule: in the mean, and cell by cell."""
    rows, cells = [], list(read_cells(config))
    figures = [cell_figures(scores, gains, train, config) for _, scores, gains, train in cells]
    for (name, _, gains, _), (missed, *_) in zip(cells, figures, strict=True):
        rows.append([*name, f"{100 * gains.mean():+.1f}", *(f"{share:.0%}".replace("%", " %") for share in missed)])
    missed, own, gain = (np.array(part) for part in zip(*figures, strict=True))
    means = [
        ["mean", *(f"{100 * share:.1f} %" for share in missed.mean(axis=0))],
        ["cells with at most 5 %", *(f"{n} of {len(cells)}" for n in (missed <= 0.05 + 1e-12).sum(axis=0))],
        ["more than a point below no gate", *(f"{100 * share:.1f} %" for share in own.mean(axis=0))],
        ["the same, cells with at most 5 %", *(f"{n} of {len(cells)}" for n in (own <= 0.05 + 1e-12).sum(axis=0))],
        ["points against the better of both", *(f"{100 * points:+.2f}" for points in gain.mean(axis=0))],
    ]
    suffix = "-nested" if config.nested else ""
    return {
        f"margin{suffix}": {"columns": ["", *RULES], "rows": means},
        f"margin-cells{suffix}": {"columns": ["answers of", "data set", "always minus never", *RULES], "rows": rows},
    }


def read_cells(config: ThresholdMarginConfig) -> Iterator[tuple[tuple[str, str], Floats, Floats, Training]]:
    """Model and data set; scores and gains of the questions that are split, and the others."""
    judged = [row for path in config.path for row in read_judged(path)]
    sets = np.array([row.question.dataset for row in judged])
    split = np.array([row.question.split == ("train" if config.nested else "test") for row in judged])
    for folder in sorted(config.scores.iterdir()):
        right = [row.right[folder.name, "published"] for row in judged]
        gains = np.array([float(one["one"]) - float(one["none"]) for one in right])
        lines = (folder / f"{config.gate}.jsonl").read_text(encoding="utf-8").splitlines()
        known = {row["id"]: row["score"] for row in map(json.loads, lines)}
        scores = np.array([known[row.question.id] for row in judged])
        for name in dict.fromkeys(sets.tolist()):
            here, beside = split & (sets == name), ~split & (sets == name)
            yield (folder.name, name), scores[here], gains[here], Training(gains[beside], scores[beside])


def cell_figures(
    scores: Floats, gains: Floats, train: Training, config: ThresholdMarginConfig
) -> tuple[Floats, Floats, Floats]:
    """By rule: share of misses, share that is more than a point below no gate, mean points against the better of never
    and always."""
    rng, right, best = np.random.default_rng(1), [], []
    for _ in range(config.splits):
        order = rng.permutation(len(scores))
        dev, rest = order[:DEV], order[2 * DEV if config.nested else DEV :]
        beside = order[DEV : 2 * DEV]
        more = Training(gains[beside], scores[beside]) if config.nested else train
        total = float(more.gains.sum())
        thresholds = [
            *(chosen(scores[dev], gains[dev], margin, Training()) for margin in (0.0, 1.0, 2.0)),
            *(chosen(scores[dev], gains[dev], margin, more) for margin in (1.0, 2.0)),
            half_where_level(scores[dev], gains[dev], more),
            *(-np.inf if won > 1e-9 else np.inf for won in (gains[dev].sum(), gains[dev].sum() + total, gains.sum())),
        ]
        right.append([gains[rest][scores[rest] > threshold].sum() / len(rest) for threshold in thresholds])
        best.append([max(gains[rest].mean(), 0.0)])
    table = np.array(right) - np.array(best)
    own = table - table[:, [RULES.index("no gate")]]
    return (table < -MISS - 1e-12).mean(axis=0), (own < -MISS - 1e-12).mean(axis=0), table.mean(axis=0)


def chosen(scores: Floats, gains: Floats, margin: float, train: Training) -> float:
    """The threshold of rule ``best_accuracy`` with this margin."""
    table = with_training(Dev(scores, np.zeros_like(gains), gains, gains, train))
    won = gains_beyond_margin(table, margin)
    return float(cuts(table.scores)[np.argmax(won >= won.max() - 1e-9)])


def half_where_level(scores: Floats, gains: Floats, train: Training) -> float:
    """As margin 2 with train questions; the median score where that decides alike for all, and never and always differ
    by less than a standard error."""
    threshold = chosen(scores, gains, 2.0, train)
    known, gained = np.concatenate([scores, train.scores]), np.concatenate([gains, train.gains])
    level = abs(gained.sum()) < np.sqrt((gained**2).sum())
    return float(np.median(known)) if level and len({*(known > threshold)}) == 1 else threshold


MARGINS, QUESTIONS = (0.0, 1.0, 1.5, 2.0), (150, 650)
LEAST = 0.01  # of a gate's best threshold over never and always, on all questions


def simulated(run: Path, times: int) -> Table:
    """For each gate of a run that is better than never and always at some threshold, number of dev questions and
    margin: both errors, and the points that the chosen threshold gains over the better of never and always, if the
    run's dev and test questions were all there are."""
    outcomes, rows = read_outcomes(run), []
    gains = np.array([float(one.rag_correct) - float(one.llm_correct) for one in outcomes])
    for gate, of in stored_scores(run).by_gate.items():
        scores = np.array([of[one.question_id] for one in outcomes])
        lead = max(cut_gain(scores, gains, cut) for cut in cuts(scores)) - max(gains.mean(), 0.0)
        for n, margin in itertools.product(QUESTIONS, MARGINS) if lead > LEAST else ():
            false, missed, points = both_errors(scores, gains, n, margin, times)
            shares = f"{100 * false:.1f} %", f"{100 * missed:.1f} %"
            rows.append([gate, f"{100 * lead:+.1f}", str(n), f"{margin:g}", *shares, f"{100 * points:+.2f}"])
    head = ["gate", "best threshold, points", "questions that choose", "margin", "chosen though no gate is better",
            "not chosen although the gate is better", "points of the chosen"]  # fmt: skip
    return {"columns": head, "rows": rows}


def both_errors(scores: Floats, gains: Floats, n: int, margin: float, times: int) -> tuple[float, float, float]:
    """Share of draws of ``n`` questions in which a threshold is chosen by scores that say nothing; in which none is
    chosen by the scores as they are; and what is then gained, in the mean, over the better of never and always."""
    rng, level = np.random.default_rng(1), max(gains.mean(), 0.0)
    false, missed, points = 0, 0, 0.0
    for _ in range(times):
        at = rng.integers(len(gains), size=n)
        false += parts(chosen(rng.permutation(scores)[at], gains[at], margin, Training()), scores)
        threshold = chosen(scores[at], gains[at], margin, Training())
        missed += not parts(threshold, scores)
        points += cut_gain(scores, gains, threshold) - level
    return false / times, missed / times, points / times


def parts(threshold: float, scores: Floats) -> bool:
    """True for a threshold that searches for some questions and not for others."""
    return bool(scores.min() <= threshold < scores.max())


def cut_gain(scores: Floats, gains: Floats, threshold: float) -> float:
    """Right answers that searches above a threshold gain over never, as a share of the questions."""
    return float(gains[scores > threshold].sum()) / len(gains)


if __name__ == "__main__":
    run_script(main, ThresholdMarginConfig, __doc__)
