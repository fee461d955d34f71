"""Compare gates' scores without a threshold: AUROC for wrong answers with its interval, distributions, and areas.

Reads scores/, imported_scores.jsonl (other people's scores) and outcomes.jsonl (written by end_to_end.py) of the run
folder; SeaKR's signals count as gates. Writes compare_scores.json with each score's distribution over questions
answered right and wrong, and the area under its curve of accuracy against retrieval ratio (random 0, oracle 1). A
score that is missing for some questions is skipped and named; --dataset restricts the questions.

Examples:
  kbtrain run compare_scores --run runs/demo
  kbtrain run compare_scores --run runs/demo --positive needed --reference kbm_mastery
  kbtrain run compare_scores --run runs/llama3 --dataset nq --reference seakr_direct --out runs/llama3/nq.json
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from kbtrain.arrays import Bools, Floats
from kbtrain.config import run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.run_folder import ResampleConfig, read_outcomes
from kbtrain.evaluation.scores import ByGate, check_scored_questions, read_score_files, seen_of, stored_scores
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_unchanged, meta_of, write_result
from kbtrain.metrics.ranking import auroc_draws, drawn_areas
from kbtrain.metrics.significance import Delta, interval
from kbtrain.records import Outcome, Question, Split
from kbtrain.report.examples import questions_of
from kbtrain.report.summary import bootstrap_units
from kbtrain.report.tables import difference
from kbtrain.show import aligned, number


class CompareScoresConfig(ResampleConfig):
    run: Path = Field(Path("runs/demo"), description="run folder")
    split: Split = Field("test", description="questions to compare")
    positive: Literal["llm_wrong", "needed"] = Field(
        "llm_wrong", description="llm_wrong: wrong without retrieval; needed: and right with it (greedy answers)"
    )
    reference: str = Field("seakr", description="gate to compare the others with")
    scores: tuple[Path, ...] = Field((), description="score files; null: the run's files and RUN/imported_scores.jsonl")
    dataset: str | None = Field(None, description="only questions of this data set")
    out: Path | None = Field(None, description="what is written; without it RUN/compare_scores.json")

    def writes(self) -> tuple[Path, ...]:
        return (self.out or self.run / "compare_scores.json",)


def main(config: CompareScoresConfig) -> None:
    started = time.monotonic()
    outcomes_file = config.run / "outcomes.jsonl"
    imported = config.run / "imported_scores.jsonl"
    own_scores = stored_scores(config.run, required=not config.scores and not path_exists(imported))
    files = list(config.scores) or [*own_scores.files, *([imported] if path_exists(imported) else [])]
    run_files = () if config.scores else own_scores.files
    check_scored_questions(files[len(run_files) :], config.run)
    outcomes = [outcome for outcome in read_outcomes(config.run) if outcome.split == config.split]
    by_gate = read_score_files(files[len(run_files) :], {} if config.scores else own_scores.by_gate)
    if config.dataset is not None:
        check_unchanged(config.run / "questions.jsonl")
        outcomes = outcomes_of_data_set(outcomes, jsonl.read(Question, config.run / "questions.jsonl"), config.dataset)
    truth = oc.is_needed(outcomes) if config.positive == "needed" else oc.greedy_wrong(outcomes)[1]
    if not truth.any() or truth.all():
        raise UserError(
            f"{outcomes_file}: of {len(truth)} {config.split} questions {truth.sum()} are positive: no AUROC"
        )
    scores, short = complete_scores(outcomes, by_gate)
    if not scores:
        raise UserError(f"{files[0]}: no gate has a score for each of the {len(outcomes)} questions: {short}")
    if "reference" in config.model_fields_set and config.reference not in scores:
        lacks = (
            f"gate '{config.reference}' has a score for {short.get(config.reference, 0)} of {len(outcomes)} questions"
        )
        raise UserError(f"key 'reference': {lacks}; {did_you_mean(config.reference, scores)}")
    clusters = None
    if config.resample == "entities":
        check_unchanged(config.run / "questions.jsonl")
        clusters = oc.clusters_of(config.resample, questions_of(config.run / "questions.jsonl", outcomes))
    separated = separations(truth, scores, config.reference, clusters)
    areas = score_areas(outcomes, scores, config.reference, clusters=clusters)
    target = config.out or config.run / "compare_scores.json"
    facts = {"seen": {gate: counts for path in files for gate, counts in meta_of(path).get("seen", {}).items()}}
    seen_lines = [f"{gate}{mark}" for gate in scores if (mark := seen_of(facts, gate).mark)]
    document = {"positive": config.positive, "split": config.split, "dataset": config.dataset,
                "scored_in_part": short, "seen": seen_lines,
                "scores": score_document(separated, areas)}  # fmt: skip
    write_result(
        target, document, stage="compare_scores", config=config, inputs=[*files, outcomes_file], started=started
    )
    print("\n".join([score_table(separated, areas, config.reference), *seen_lines]))
    print("".join(f"skipped: gate '{gate}' has a score for {n} of them\n" for gate, n in short.items()), end="")
    share = f"{truth.sum()} of {len(truth)} {config.split} questions positive ({config.positive})"
    units = bootstrap_units({"resample": "questions" if clusters is None else "entities"})
    print(
        f"{len(separated)} scores, {share}; intervals draw {units}; in {time.monotonic() - started:.0f} s -> {target}"
    )


def outcomes_of_data_set(outcomes: Sequence[Outcome], questions: Iterable[Question], name: str) -> list[Outcome]:
    """The outcomes of one data set's questions. Raises :class:`UserError` for a name that none of them has."""
    by_id = {question.id: question.dataset for question in questions}
    selected = [outcome for outcome in outcomes if by_id.get(outcome.question_id) == name]
    if not selected:
        names = {by_id[o.question_id] for o in outcomes if o.question_id in by_id}
        raise UserError(f"no question of data set '{name}'; {did_you_mean(name, names)}")
    return selected


def complete_scores(outcomes: Sequence[Outcome], scores: ByGate) -> tuple[dict[str, Floats], dict[str, int]]:
    """The gates that have a score for every outcome, in the outcomes' order; of the others how many they have."""
    arrays, short = {}, {}
    for gate, by_question in scores.items():
        values = [by_question[o.question_id] for o in outcomes if o.question_id in by_question]
        if len(values) == len(outcomes):
            arrays[gate] = np.array(values, dtype=np.float64)
        else:
            short[gate] = len(values)
    return arrays, short


def score_areas(
    outcomes: Sequence[Outcome],
    scores: Mapping[str, Floats],
    reference: str,
    draws: int = 2_000,
    clusters: Sequence[str] | None = None,
) -> dict[str, tuple[Delta | None, Delta | None]]:
    """Each score's oracle-normalised area, and the reference's minus it, on the same resamples (greedy answers) of the
    questions, or of whole ``clusters`` of them.

    None where the oracle gains nothing over random, and for the reference itself.
    """
    correctness = oc.answers(outcomes, "greedy")
    drawn = drawn_areas(list(scores.values()), correctness.llm, correctness.rag, draws, 0, clusters)
    if drawn is None:
        return {gate: (None, None) for gate in scores}
    values = {gate: drawn[:, i] for i, gate in enumerate(scores)}
    base = values.get(reference)
    return {
        gate: (interval(draws_of_gate), None if base is None or gate == reference else interval(base - draws_of_gate))
        for gate, draws_of_gate in values.items()
    }


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclasses.dataclass(frozen=True)
class Separation:
    """AUROC of one score (higher = positive), with its distribution over positives and negatives.

    ``minus``: the reference score's AUROC minus this one's (None for the reference). ``positive`` and ``negative``: the
    :data:`QUANTILES` of the scores of these questions.
    """

    name: str
    n: int
    n_positive: int
    auroc: Delta
    minus: Delta | None
    positive: tuple[float, ...]
    negative: tuple[float, ...]


def separations(
    truth: Bools, scores: Mapping[str, Floats], reference: str, clusters: Sequence[str] | None = None
) -> list[Separation]:
    """Separation of the classes by each of the scores."""
    draws = {name: auroc_draws(truth, values, clusters) for name, values in scores.items()}
    base = draws.get(reference)
    rows = []
    for name, areas in draws.items():
        minus = None if base is None or name == reference else interval(base - areas)
        sides = (tuple(np.quantile(scores[name][of], QUANTILES).tolist()) for of in (truth, ~truth))
        rows.append(Separation(name, len(truth), int(truth.sum()), interval(areas), minus, *sides))
    return rows


Areas = tuple[Delta | None, Delta | None]


def score_document(scores: Sequence[Separation], areas: Mapping[str, Areas]) -> list[dict[str, Any]]:
    """One object per score; ``area`` and ``area_minus`` (the reference's minus it) are null where not defined."""
    rows = []
    for score in scores:
        area, minus = areas[score.name]
        extra = {"area": area and dataclasses.asdict(area), "area_minus": minus and dataclasses.asdict(minus)}
        rows.append(dataclasses.asdict(score) | extra)
    return rows


def score_table(scores: Sequence[Separation], areas: Mapping[str, Areas], reference: str) -> str:
    """One row per score, the best first."""
    minus = f"{reference} minus this"
    head = (
        *("score", "AUROC", "95 % interval", f"AUROC, {minus}", "area", f"area, {minus}"),
        *("quartiles, positive", "quartiles, negative"),
    )
    ordered = sorted(scores, key=lambda score: -score.auroc.mean)
    rows = []
    for score in ordered:
        auroc = [number(score.auroc.mean), f"[{number(score.auroc.low)}, {number(score.auroc.high)}]"]
        quartiles = [" ".join(f"{value:.4g}" for value in values[1:4]) for values in (score.positive, score.negative)]
        rows.append([score.name, *auroc, *map(difference, (score.minus, *areas[score.name])), *quartiles])
    return aligned(head, rows)


if __name__ == "__main__":
    run_script(main, CompareScoresConfig, __doc__)
