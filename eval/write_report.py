"""Write the report of a run from what is stored: report.html (one self-contained page), report.md, and a page for each
gate in gates/ with its worst errors side by side. Everything works offline, without a server.

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
from kbtrain.evaluation.result_meta import check_fresh
from kbtrain.evaluation.results import GateResult, Results, load
from kbtrain.evaluation.run_folder import read_labels, stored_scores
from kbtrain.gates.registry import headline_names
from kbtrain.labeling.distribution import statistics
from kbtrain.provenance import write_atomically, write_meta
from kbtrain.records import Outcome
from kbtrain.report.examples import collect, worst_errors
from kbtrain.report.figures import POSITIVE, gate_figures, read_calibration
from kbtrain.report.page import Report, draw, render_gate, render_html, render_markdown
from kbtrain.report.selection import questions_of, select
from kbtrain.report.summary import read_bills


class ReportConfig(Config):
    """Settings of this script."""

    run: Path = Field(Path("runs/demo"), description="run folder with results.json")
    sampling_run: str = Field("main", description="name of the sampling run in samples.db")
    gate: str | None = Field(
        None, description="gate of the headline and the errors; without it kbm_benefit, or another"
    )
    title: str = Field("When does this model need retrieval?", description="headline of the page")


def main(config: ReportConfig) -> None:
    """Read, draw, write the page, its Markdown twin and a page for each gate."""
    started = time.time()
    results = load(config.run / "results.json")
    stored = stored_scores(config.run)
    files = [config.run / name for name in ("results.json", "outcomes.jsonl", "labels.jsonl")] + list(stored.files)
    outcomes = [o for o in jsonl.read(Outcome, files[1]) if o.split == results.meta["split"]]
    questions = questions_of(config.run / "questions.jsonl", outcomes)
    scores = stored.by_gate
    gate = main_gate(results, config.gate, set(scores))
    counted = statistics(read_labels(files[2])[1])
    kinds = collect(config.run, config.sampling_run, outcomes, gate, scores[gate.gate] if gate else {})
    own = [g for g in results.gates if g.gate in scores and g.threshold is not None]
    pages = {g.gate: f"gates/{g.gate}.html" for g in own}
    chosen = select(questions, outcomes, results.gates, scores)
    for name, inputs in (("cost.json", files[:1]), ("classify.json", [files[1], *stored.files])):
        if (config.run / name).exists():
            check_fresh(config.run / name, *inputs)
    bills = read_bills(config.run / "cost.json")
    report = Report(config.title, results, counted, kinds, gate, draw(results, counted), chosen, pages, bills)
    texts = {"report.html": render_html(report), "report.md": render_markdown(report)}
    made = read_calibration(config.run / "classify.json")
    for g in own:
        found = scores[g.gate]
        errors = worst_errors(config.run, config.sampling_run, g, questions, outcomes, found, chosen.dimensions)
        texts[pages[g.gate]] = render_gate(report, g, errors, gate_figures(g, outcomes, found, made), POSITIVE)
    for name, text in texts.items():
        write_atomically(config.run / name, text)
    for name in ("report.html", "report.md"):
        settings = config.model_dump(mode="json")
        write_meta(config.run / name, stage="write_report", config=settings, inputs=files, started=started)
    seconds = time.time() - started
    print(f"wrote the report in {seconds:.0f} s -> {config.run}/report.html, report.md and {len(own)} pages in gates/")


def main_gate(results: Results, wanted: str | None, scored: set[str]) -> GateResult | None:
    """The gate named; without a name the first of the headline's that is scored, whatever it reached, else any."""
    found = {gate.gate: gate for gate in results.gates if gate.gate in scored and gate.threshold is not None}
    if wanted is not None and wanted not in found:
        raise UserError(f"key 'gate': no scored gate '{wanted}' in results.json; {did_you_mean(wanted, found)}")
    known = [wanted] if wanted else [gate for gate in (*headline_names(), *reversed(found)) if gate in found]
    return found[known[0]] if known else None


if __name__ == "__main__":
    run_script(main, ReportConfig, __doc__)
