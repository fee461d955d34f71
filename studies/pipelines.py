"""Compare pipelines run on a run folder (RUN/methods, see run_seakr.py) with LLM only, one-step RAG and gates.

Every scored gate is cut to the pipeline's number of searches; differences of accuracy and F1 have paired intervals,
over questions or entities (--resample). Reads questions.jsonl, evidence.jsonl and samples.db (greedy answers under llm
and rag), and the gates' scores if there are any; writes pipelines.json.

Examples:
  python studies/pipelines.py --run runs/hotpotqa
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from pathlib import Path

from kbm_paper.pipelines import pipelines_of_run, pipelines_text
from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.outcomes import clusters_of, drawn_units
from kbtrain.evaluation.run_folder import ResampleConfig
from kbtrain.evaluation.scores import stored_scores
from kbtrain.io.provenance import check_unchanged, write_result
from kbtrain.labeling.verdicts import verdicts_file
from kbtrain.questions.checks import read_questions
from kbtrain.rag.seakr_traces import FOLDER
from kbtrain.records import Split
from kbtrain.report.summary import bootstrap_units


class PipelinesConfig(ResampleConfig):
    run: Path = Field(Path("runs/demo"), description="run folder")
    sampling_run: str = Field("main", description="name of the sampling run in samples.db")
    split: Split = Field("test", description="questions to compare")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "pipelines.json",)


def main(config: PipelinesConfig) -> None:
    started = time.monotonic()
    path, scores = config.run / "questions.jsonl", stored_scores(config.run, required=False)
    check_unchanged(path)
    questions = [question for _, question in read_questions(path) if question.split == config.split]
    clusters = clusters_of(config.resample, questions)
    methods = pipelines_of_run(config.run, config.sampling_run, questions, scores, clusters)
    if not methods:
        raise UserError(f"{config.run / FOLDER}: no traces in it; run eval/run_seakr.py first")
    warn_of_rule(config.run)
    target = config.run / "pipelines.json"
    document = {"split": config.split, "methods": [dataclasses.asdict(method) for method in methods]}
    inputs = [path, config.run / "samples.db", *sorted((config.run / FOLDER).glob("*.jsonl"))]
    write_result(target, document, stage="pipelines", config=config, inputs=inputs, started=started)
    units = bootstrap_units({"resample": drawn_units(config.resample, questions)})
    print(pipelines_text(methods, units))
    print(f"{len(methods)} methods in {time.monotonic() - started:.0f} s, intervals draw {units} -> {target}")


def warn_of_rule(run: Path) -> None:
    """Warn where a judge's verdicts grade a run's answers: its methods wrote answers of their own, and these and the
    stored ones beside them are graded by each question's own rule."""
    judged = verdicts_file(run)
    if judged is not None:
        rule = "methods, and the answers beside them, are graded by each question's own rule, all others by the judge"
        warnings.warn(f"{run}: {rule} of {judged.name}", stacklevel=2)


if __name__ == "__main__":
    run_script(main, PipelinesConfig, __doc__)
