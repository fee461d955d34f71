"""Lay out the KBM paper's tables and figures from stored answers: no model runs here.

Reads questions.jsonl, samples.db and scores/ of one or more run folders (one for each model and data set, or all
in one); writes OUT/<layout>.json and .md. Thresholds are chosen on the dev questions of all runs together; that of
table4's prompt, which is the answering model's own, on each model's.
table1 by data set; figure5 known and unknown; table2 FreshQA by change; table3 two and more hops; figure6 by knowledge
frequency; table4 the gates of --gate-runs for the answers of --runs. Figure 8: eval/double_judgement.py.
The paper's own figures are beside kbtrain's where the answers come from the paper's model.

Examples:
  python studies/kbm_tables.py --config studies/table1.yaml --runs "[runs/demo]"
  python studies/kbm_tables.py --layout figure6 --runs "[runs/demo]" --bins 4
"""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from different_paths import DifferentPaths
from kbm_paper.groups import questions_of
from kbm_paper.tables import Layout, Options, lay_out
from pydantic import Field, model_validator

from kbtrain.config import check_counts, run_script
from kbtrain.evaluation.decisions import DevRule
from kbtrain.evaluation.outcomes import AccuracyKind
from kbtrain.evaluation.run_folder import ResampleConfig, StoredAnswersConfig, check_sampled, read_run
from kbtrain.io.provenance import write_atomically, write_result
from kbtrain.metrics.thresholds import Rule, ThresholdConfig
from kbtrain.report.tables import as_markdown, as_text


class TablesConfig(ThresholdConfig, StoredAnswersConfig, ResampleConfig):
    layout: Layout = Field("table1", description="table1, figure5, table2, table3, figure6 or table4")
    runs: DifferentPaths = Field((Path("runs/demo"),), min_length=1, description="run folders with the answers")
    gate_runs: DifferentPaths = Field((), description="table4: run folders of the model whose gates decide")
    gates: tuple[str, ...] = Field(("kbm_mastery", "kbm_certainty", "prompt"), description="in this order")
    threshold_rule: Rule = Field("0.5", description=ThresholdConfig.model_fields["threshold_rule"].description)
    accuracy: AccuracyKind = Field("greedy", description="greedy answers, or expected (samples)")
    corpus: Path | None = Field(
        None, description="figure6: passages in which gold answers are counted; else popularity"
    )
    bins: int = Field(5, ge=2, description="figure6: groups of about equal size, low to high")
    out: Path = Field(Path("runs/tables"), description="folder of the tables")

    @model_validator(mode="after")
    def _figure_6(self) -> TablesConfig:
        check_counts(self, "layout", "figure6", "corpus", "bins")
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.out / f"{self.layout}.json",)


def main(config: TablesConfig) -> None:
    started = time.monotonic()
    runs = [read_run(path, config.sampling_run, config.allow_missing) for path in config.runs]
    plug_in = [read_run(path, config.sampling_run, config.allow_missing) for path in config.gate_runs]
    check_sampled(runs, config.accuracy)
    cut = DevRule(config.threshold_rule, config.target_ratio, config.accuracy)
    options = Options(config.layout, config.gates, cut, config.corpus, config.bins, config.resample)
    table = lay_out(options, runs, plug_in or None)
    target = config.out / f"{config.layout}.json"
    write_atomically(target.with_suffix(".md"), as_markdown(table))
    inputs = [file for run in (*runs, *plug_in) for file in run.files]
    write_result(target, asdict(table), stage="tables", config=config, inputs=inputs, started=started)
    print("\n".join([as_text(table), *(note for run in runs for note in run.notes)]))
    print(f"{config.layout}: {len(table.rows)} rows from {len(questions_of(runs))} test questions -> {target} and .md")


if __name__ == "__main__":
    run_script(main, TablesConfig, __doc__)
