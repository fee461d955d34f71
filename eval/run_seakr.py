"""Answer questions with SeaKR as a whole pipeline: the single-hop rule or the multi-hop loop, every step traced.

Reads questions.jsonl and passages.jsonl of the run folder and a SeaKR gate's folder (recipes/make_seakr.py); writes
RUN/methods/NAME.jsonl (a trace for each question) and NAME.html, a page for people. Without --threshold, dev questions
choose it: the uncertainty of the first reasoning step exceeds it for --ratio of them. After an interruption the same
command resumes at the next question. A question that failed counts as answered: delete its line to ask it again.

Examples:
  kbtrain run run_seakr --config seakr_single_hop
  kbtrain run run_seakr --config seakr_multi_hop --run runs/hotpotqa
  kbtrain run run_seakr --run runs/hotpotqa --no-rerank --name seakr_no_rerank
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.io.provenance import write_atomically, write_meta
from kbtrain.rag.seakr_run import SeakrPipelineConfig, SeakrRun
from kbtrain.rag.seakr_traces import summarise
from kbtrain.report.page import render_traces
from kbtrain.runtime.progress import progress_bar


class RunSeakrConfig(SeakrPipelineConfig):
    name: str | None = Field(None, description="name of the results; without it seakr_METHOD")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "methods" / f"{self.name or 'seakr_' + self.method}.jsonl",)


def main(config: RunSeakrConfig) -> None:
    started = time.monotonic()
    run = SeakrRun(config, config.name or f"seakr_{config.method}")
    for _ in progress_bar(run.answer(), total=run.n_left, desc=run.name, unit="questions"):
        pass
    traces = run.traces()
    run_summary, page = summarise(traces), run.out.with_suffix(".html")
    write_atomically(page, render_traces(traces, f"{run.name}: {len(traces)} questions"))
    extra = {"threshold": traces[0].threshold, "summary": dataclasses.asdict(run_summary)}
    for path in (run.out, page):
        write_meta(path, stage="run_seakr", config=config, inputs=run.inputs, extra=extra,
                   started=started)  # fmt: skip
    print(f"{run.name}: {run_summary.line()} -> {page}")


if __name__ == "__main__":
    run_script(main, RunSeakrConfig, __doc__)
