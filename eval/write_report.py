"""Write the report of a run: report.html (one self-contained page) and report.md, from what is stored.

Examples:
  python eval/write_report.py --run runs/demo
  python eval/write_report.py --run runs/demo --gate kbm_mastery --title "Atlas, SmolLM2-135M"
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.metrics.results import GateResult
from kbtrain.metrics.stored import read_labels, read_scores
from kbtrain.provenance import write_atomically, write_meta
from kbtrain.records import Outcome
from kbtrain.report.examples import collect
from kbtrain.report.label_statistics import statistics
from kbtrain.report.page import Report, draw, render_html, render_markdown
from kbtrain.report.results import Results, load


class ReportConfig(Config):
    """Settings of this script."""

    run: Path = Field(Path("runs/demo"), description="run folder with results.json")
    sampling_run: str = Field("main", description="name of the sampling run in samples.db")
    gate: str | None = Field(None, description="gate of the headline and the errors; without it the last scored one")
    title: str = Field("When does this model need retrieval?", description="headline of the page")


def main(config: ReportConfig) -> None:
    """Read, draw, write both files."""
    started = time.time()
    files = [config.run / name for name in ("results.json", "outcomes.jsonl", "labels.jsonl", "scores.jsonl")]
    results = load(files[0])
    outcomes = [o for o in jsonl.read(Outcome, files[1]) if o.split == results.meta["split"]]
    scores = read_scores(files[3])
    gate = main_gate(results, config.gate, set(scores))
    counted = statistics(read_labels(files[2])[1])
    kinds = collect(config.run, config.sampling_run, outcomes, gate, scores[gate.gate] if gate else {})
    report = Report(config.title, results, counted, kinds, gate, draw(results, counted))
    for name, text in (("report.html", render_html(report)), ("report.md", render_markdown(report))):
        write_atomically(config.run / name, text)
        settings = config.model_dump(mode="json")
        write_meta(config.run / name, stage="write_report", config=settings, inputs=files, started=started)
    print(f"wrote the report in {time.time() - started:.0f} s -> {config.run}/report.html and report.md")


def main_gate(results: Results, wanted: str | None, scored: set[str]) -> GateResult | None:
    """The gate named, or the last one with stored scores (``kbm_benefit`` in a full run)."""
    found = {gate.gate: gate for gate in results.gates if gate.gate in scored and gate.threshold is not None}
    if wanted is not None and wanted not in found:
        raise UserError(f"key 'gate': no scored gate '{wanted}' in results.json; {did_you_mean(wanted, found)}")
    return found[wanted] if wanted else next(reversed(found.values()), None)


if __name__ == "__main__":
    run_script(main, ReportConfig, __doc__)
