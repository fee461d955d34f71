"""Compare gates' scores without a threshold: AUROC for wrong answers with its interval, distributions, and areas.

Reads scores/ (and imported_scores.jsonl, other people's) and outcomes.jsonl (written by end_to_end.py) of the run
folder, for SeaKR's signals as for any gate; writes compare_scores.json with each score's distribution over questions
answered wrongly and rightly, and the area under its curve of accuracy against retrieval ratio (random 0, oracle 1). A
score that some of the questions lack is skipped and named; --dataset or --covered-by narrows the questions.

Examples:
  kbtrain run compare_scores --run runs/demo
  kbtrain run compare_scores --run runs/demo --positive needed --reference kbm_mastery
  kbtrain run compare_scores --run runs/llama3 --dataset nq --reference seakr_direct --out runs/llama3/nq.json
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.compare import complete_scores, outcomes_of_data_set, outcomes_with_score, score_areas
from kbtrain.evaluation.run_folder import ResampleConfig, read_outcomes
from kbtrain.evaluation.scores import read_score_files, seen_of, stored_scores
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_unchanged, meta_of, write_result
from kbtrain.metrics.ranking import separations
from kbtrain.records import Question, Split
from kbtrain.report.examples import questions_of
from kbtrain.report.summary import bootstrap_units
from kbtrain.report.tables import score_document, score_table


class CompareScoresConfig(ResampleConfig):
    run: Path = Field(Path("runs/demo"), description="run folder")
    split: Split = Field("test", description="questions to look at")
    positive: Literal["llm_wrong", "needed"] = Field(
        "llm_wrong", description="llm_wrong: wrong without retrieval; needed: and right with it (greedy answers)"
    )
    reference: str = Field("seakr", description="gate to compare the others with")
    scores: tuple[Path, ...] = Field(
        (),
        description="score files; null: the run's files and RUN/imported_scores.jsonl",
    )
    dataset: str | None = Field(None, description="only questions of this data set")
    covered_by: str | None = Field(None, description="only questions that have a score of this gate")
    out: Path | None = Field(None, description="what is written; without it RUN/compare_scores.json")

    def writes(self) -> tuple[Path, ...]:
        return (self.out or self.run / "compare_scores.json",)


def main(config: CompareScoresConfig) -> None:
    started = time.monotonic()
    outcomes_file = config.run / "outcomes.jsonl"
    imported = config.run / "imported_scores.jsonl"
    own_scores = stored_scores(config.run, required=not config.scores and not path_exists(imported))
    files = list(config.scores) or [*own_scores.files, *([imported] if path_exists(imported) else [])]
    outcomes = [outcome for outcome in read_outcomes(config.run) if outcome.split == config.split]
    run_files = () if config.scores else own_scores.files
    by_gate = read_score_files(files[len(run_files) :], {} if config.scores else own_scores.by_gate)
    if config.dataset is not None:
        check_unchanged(config.run / "questions.jsonl")
        outcomes = outcomes_of_data_set(outcomes, jsonl.read(Question, config.run / "questions.jsonl"), config.dataset)
    if config.covered_by is not None:
        outcomes = outcomes_with_score(outcomes, by_gate, config.covered_by)
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
                "covered_by": config.covered_by, "scored_in_part": short,
                "seen": seen_lines,
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


if __name__ == "__main__":
    run_script(main, CompareScoresConfig, __doc__)
