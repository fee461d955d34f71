"""Analyse stored answers as the KBM paper does (figures 1-3, section 3.2): analysis.md, its figures, analysis.json.

Everything is computed from what the runs hold: questions.jsonl and samples.db, and where it is there evidence.jsonl
(mask leaks). A store may hold several sampling runs (models); several run folders are shown side by side, and figures
1-3 of a run with several data sets for each of them, too.

Examples:
  python studies/analyse.py --runs "[runs/demo]"
  python studies/analyse.py --runs "[runs/qwen2_1b, runs/qwen2_7b]" --split test --out runs/compared
  python studies/analyse.py --config studies/analyse_demo.yaml
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Literal

from different_paths import DifferentPaths
from kbm_paper.analysis_page import figure_files, name_runs, render_markdown, sections, to_json
from kbm_paper.run_analysis import RunAnalysis
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_current, check_unchanged, git_state, meta_of, write_atomically, write_meta
from kbtrain.io.store import SampleStore
from kbtrain.labeling.verdicts import Aligned, QuestionVerdicts
from kbtrain.questions.checks import read_questions
from kbtrain.records import Evidence
from kbtrain.runtime.progress import progress_bar

PAPER_TAU = 0.8


class AnalyseConfig(Config):
    runs: DifferentPaths = Field((Path("runs/demo"),), min_length=1, description="run folders with samples.db")
    sampling_runs: tuple[str, ...] | None = Field(None, description="names in the stores; null: all that are there")
    split: Literal["all", "train", "dev", "test"] = Field("all", description="which questions")
    out: Path | None = Field(None, description="folder of the results; null: the first run folder")
    tau_mastery: float | None = Field(None, ge=0, le=1, description="null: that of labels.jsonl, else the paper's 0.8")
    tau_certainty: float | None = Field(None, ge=0, le=1, description="null: that of labels.jsonl, else 0.8")
    verdicts: bool = Field(False, description="grade by the verdicts in RUN/verdicts.jsonl, see data_gen/judge.py")
    examples: int = Field(10, ge=0, description="least certain questions that are shown")
    title: str = Field("What the model knows, and what retrieval changes", description="headline of the page")

    def writes(self) -> tuple[Path, ...]:
        return ((self.out or self.runs[0]) / "analysis.json",)


def main(config: AnalyseConfig) -> None:
    started = time.monotonic()
    analyses = [parts for folder in config.runs for parts in analyse_folder(config, folder)]
    name_runs(analyses)
    target = config.out or config.runs[0]
    names = ("questions.jsonl", "samples.db", "evidence.jsonl", "verdicts.jsonl")
    inputs = [p for folder in config.runs for name in names if path_exists(p := folder / name)]
    about = {"runs": ", ".join(map(str, config.runs)), "split": config.split, **git_state()}
    parts, document = sections(analyses), {"schema": 1, "runs": list(map(to_json, analyses))}
    texts = {
        "analysis.md": render_markdown(config.title, parts, about, "analysis"),
        "analysis.json": json.dumps(document, ensure_ascii=False, indent=1) + "\n",
    }
    for name, text in texts.items():
        write_atomically(target / name, text)
        write_meta(target / name, stage="analyse", config=config, inputs=inputs, started=started)
    for name, svg in figure_files(parts).items():
        write_atomically(target / "analysis" / name, svg)
    runs_whole = [run for run in analyses if not run.dataset]
    n, seconds = sum(run.counts["questions"] for run in runs_whole), time.monotonic() - started
    print(f"{len(runs_whole)} sampling runs, {n} questions, {seconds:.0f} s -> {target}/analysis.md, .json")


def analyse_folder(config: AnalyseConfig, folder: Path) -> list[RunAnalysis]:
    """One analysis for each sampling run of a folder, then for each of its data sets, if there are several."""
    questions, evidence, judged = (folder / name for name in ("questions.jsonl", "evidence.jsonl", "verdicts.jsonl"))
    check_unchanged(questions)
    for source in (evidence, *([judged] if config.verdicts else [])):
        check_current(source, questions)
    total, analyses = sum(1 for _ in jsonl.lines(questions)), []
    with SampleStore(folder / "samples.db", read_only=True) as store:
        names = config.sampling_runs or store.runs()
        if not names:
            raise UserError(f"{at(store.path)}: no sampling run in it; run data_gen/sample.py")
        for name in names:
            analysis = RunAnalysis.begin(store, folder, name, config.split, taus(config, folder), config.examples)
            rows = (question for _, question in read_questions(questions))
            parts = analysis.read(
                store, progress_bar(rows, total=total, desc=f"analyse {folder}/{name}", unit="questions"),
                Aligned(Evidence, evidence) if path_exists(evidence) else None,
                Aligned(QuestionVerdicts, judged) if config.verdicts else None,
            )  # fmt: skip
            analyses += [analysis, *parts]
    return analyses


def taus(config: AnalyseConfig, folder: Path) -> tuple[float, float]:
    """(mastery, certainty): as set, or as the labels of the folder were made, or the paper's."""
    labels = folder / "labels.jsonl"
    rule: dict[str, Any] = meta_of(labels).get("label_rule", {})
    label_taus = (rule.get(name, {}).get("value", PAPER_TAU) for name in ("tau_mastery", "tau_certainty"))
    set_taus = (config.tau_mastery, config.tau_certainty)
    mastery, certainty = (
        stored_tau if value is None else value for value, stored_tau in zip(set_taus, label_taus, strict=True)
    )
    return mastery, certainty


if __name__ == "__main__":
    run_script(main, AnalyseConfig, __doc__)
