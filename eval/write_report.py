"""Write the report of a run from its results: report.html (one self-contained page), report.md, its first figure as
savings.svg, and a page for each gate in gates/ with its worst errors side by side. Everything works offline.

Examples:
  kbtrain run write_report --run runs/demo
  kbtrain run write_report --run runs/demo --gate kbm_mastery --title "Atlas, SmolLM2-135M"
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.cost import Bills, asking_of, bill, read_bills, stored_usage, thousand_questions
from kbtrain.evaluation.gate_inputs import training_in
from kbtrain.evaluation.outcomes import AccuracyKind, dev_kind, entities_of, is_needed
from kbtrain.evaluation.results import GateResult, Results, check_result, load
from kbtrain.evaluation.run_folder import check_outcomes_labelled, read_outcomes
from kbtrain.evaluation.savings import Saving, SavingOptions, four_fold, savings
from kbtrain.evaluation.scores import StoredScores, stored_scores
from kbtrain.gate.card import KeyedCard
from kbtrain.gates.registry import read_card
from kbtrain.gates.thresholds_store import Source
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_current, write_atomically, write_meta
from kbtrain.llm.forecast import PRICES, read_prices
from kbtrain.records import Outcome, Question
from kbtrain.report.curves import Band, curve_band, savings_figure, score_bins, sliding_curve
from kbtrain.report.examples import AnsweredRun, questions_of, split_rows, telling_examples, worst_errors
from kbtrain.report.first_screen import FirstScreen, closing_block, first_screen, rule_of, sentences
from kbtrain.report.page import Report, render_gate, render_report

LEVELS = {"never": "llm_only", "always": "all_rag"}


class ReportConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with results.json")
    sampling_run: str = Field("main", description="name of the sampling run in samples.db")
    gate: str | None = Field(None, description="gate of the headline and the errors; null: the best on dev")
    prices: Path = Field(
        PRICES, description="YAML file with prices and latencies, for the bill of a thousand questions"
    )
    title: str = Field("When does this model need retrieval?", description="headline of the page")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "report.html",)


@dataclass(frozen=True)
class Evaluated:
    """A finished evaluation: its results, the gates with scores and a threshold, the evaluated ``outcomes`` and their
    ``questions``, in one order; ``clusters``: of these, if intervals draw entities; ``settings``: threshold and rule by
    gate; ``savings``: best on dev first; ``files`` that all is read from.
    """

    results: Results
    stored: StoredScores
    gates: list[GateResult]
    outcomes: list[Outcome]
    questions: list[Question]
    clusters: tuple[str, ...] | None
    settings: dict[str, tuple[float, str]]
    savings: list[Saving]
    files: list[Path]

    def saving(self, gate: str) -> Saving | None:
        return next((one for one in self.savings if one.gate == gate), None)


def read_evaluated(config: ReportConfig) -> Evaluated:
    """Everything that the report is made from. Raises :class:`UserError` for a file that is not current."""
    run = config.run
    check_result(run / "results.json", config.sampling_run)
    results, stored, everything = load(run / "results.json"), stored_scores(run), read_outcomes(run)
    check_outcomes_labelled(run)
    outcomes = [o for o in everything if o.split == results.meta["split"]]
    dev = [o for o in everything if o.split == "dev"]
    questions = questions_of(run / "questions.jsonl", outcomes)
    gates = [g for g in results.gates if g.gate in stored.by_gate and g.threshold is not None]
    scored = {g.gate: stored.by_gate[g.gate] for g in gates}
    clusters = entities_of(questions) if results.meta.get("resample") == "entities" else None
    settings = noted_settings(stored.behind, gates)
    kind: AccuracyKind = results.meta["accuracy_kind"]
    options = SavingOptions(
        kind, seed=results.meta["seed"], clusters=clusters, settings=settings,
        training=training_in(run, config.sampling_run, [*scored], stored, dev_kind(dev, kind)),
        after_search=stored.meta.get("after_search", {}), max_loss=results.meta["max_loss"],
        delta=results.meta["delta"], draws=results.meta["bootstrap_draws"],
    )  # fmt: skip
    files = [*(run / name for name in ("results.json", "outcomes.jsonl", "labels.jsonl")), *stored.files]
    found = savings(dev, outcomes, scored, options)
    return Evaluated(results, stored, gates, outcomes, questions, clusters, settings, found, files)


def main(config: ReportConfig) -> None:
    started, run = time.monotonic(), config.run
    read = read_evaluated(config)
    gate = main_gate(read.gates, config.gate, read.savings)
    answered = AnsweredRun(run, config.sampling_run, read.questions, read.outcomes)
    paid = None if gate is None else Paid(config, read.stored, gate.gate, read.questions)
    cost = "-" if gate is None or paid is None else paid.sentence(read.settings[gate.gate][0])
    band = None if gate is None else shaded(read, gate)
    report = Report(
        title=config.title, results=read.results, main_gate=gate, first=first_with_curve(read, gate, band, paid, cost),
        curves=savings_figure(read.results, read.savings, gate and gate.gate, band, "curves"),
        pages={g.gate: f"gates/{g.gate}.html" for g in read.gates}, bills=current_bills(run),
        **parts(read, answered, gate),
    )  # fmt: skip
    html, markdown = render_report(report)
    pages = {
        "report.html": html,
        "report.md": markdown,
        "savings.svg": savings_figure(read.results, read.savings, gate and gate.gate, band),
        **{report.pages[g.gate]: gate_page(report, g, answered, read) for g in read.gates},
    }
    for name, text in pages.items():
        write_atomically(run / name, text)
    for name in ("report.html", "report.md"):
        write_meta(run / name, stage="write_report", config=config, inputs=read.files, started=started)
    seconds, n = time.monotonic() - started, len(read.gates)
    print(f"wrote the report in {seconds:.0f} s -> {run}/report.html, report.md and {n} pages in gates/")
    use = command(read, gate)
    print("\n".join(closing_block(read.results, read.savings, gate, read.questions, run / "report.html", use, cost)))


def shaded(read: Evaluated, gate: GateResult) -> Band:
    """The interval of the gate's curve."""
    return curve_band(gate, read.outcomes, read.stored.by_gate[gate.gate], gate.accuracy_kind, read.clusters)


def first_with_curve(
    read: Evaluated, gate: GateResult | None, band: Band | None, paid: Paid | None, cost: str
) -> FirstScreen:
    """The first screen with the gate's bill and, where it saves something, its curve."""
    if gate is None or band is None or paid is None:
        return first_screen(read.results, read.savings, read.questions, gate, None)
    counts = four_fold(read.outcomes, read.stored.by_gate[gate.gate], read.settings[gate.gate][0])
    first = first_screen(read.results, read.savings, read.questions, gate, counts)
    saving = read.saving(gate.gate)
    accuracy = {one.gate: one.accuracy for one in read.results.gates}
    levels = {way: accuracy[name] for way, name in LEVELS.items()}
    curve = None
    if first.tiles and saving is not None:
        curve = sliding_curve(gate, saving, band, levels, paid.money(), paid.prices.currency)
    return replace(first, sentences=[*first.sentences, cost], curve=curve)


def parts(read: Evaluated, answered: AnsweredRun, gate: GateResult | None) -> dict[str, Any]:
    """Telling questions of the gate, and its rows on parts of the questions; none without a gate."""
    if gate is None:
        return {"kinds": [], "parts": {}}
    scores, cut = read.stored.by_gate[gate.gate], read.settings[gate.gate][0]
    rows = split_rows(answered, scores, cut, read.clusters)
    return {"kinds": telling_examples(answered, scores, cut), "parts": rows}


def current_bills(run: Path) -> Bills | None:
    """The bills of cost.json, if there are any. Raises :class:`UserError` for those of other results."""
    path = run / "cost.json"
    if path_exists(path):
        check_current(path, run / "results.json", command="eval/cost.py")
    return read_bills(path)


def gate_page(report: Report, gate: GateResult, answered: AnsweredRun, read: Evaluated) -> str:
    """A gate's own page: its decisions at its threshold, its worst errors and its scores."""
    scores, (cut, _), saving = read.stored.by_gate[gate.gate], read.settings[gate.gate], read.saving(gate.gate)
    return render_gate(
        report, gate, worst_errors(answered, scores, cut),
        score_bins([scores[o.question_id] for o in read.outcomes], is_needed(read.outcomes), cut),
        [] if saving is None else sentences(read.results, saving, 1), threshold=cut, rule=rule_of(saving, gate),
        fourfold=four_fold(read.outcomes, scores, cut), saves="searches" if saving is None else saving.saves,
    )  # fmt: skip


class Paid:
    """What the evaluated questions cost by a price list, as a gate decides."""

    def __init__(
        self, config: ReportConfig, scores_stored: StoredScores, gate: str, questions: Sequence[Question]
    ) -> None:
        ids = [question.id for question in questions]
        self.scores = np.array([scores_stored.by_gate[gate][name] for name in ids])
        self.usage = stored_usage(config.run, config.sampling_run, ids)
        self.prices = read_prices(config.prices)
        self.asking = asking_of(scores_stored, gate)

    def sentence(self, threshold: float) -> str:
        """The bill of a thousand questions at a threshold."""
        retrieve = (self.scores > threshold).astype(np.float64)
        return thousand_questions(self.usage, retrieve, self.prices, self.asking)

    def money(self) -> list[float] | None:
        """Of a thousand questions at each percent of searches, in the order of the scores; None without tokens."""
        if not self.usage.has_tokens.all():
            return None
        ranks = np.argsort(np.argsort(-self.scores, kind="stable"))
        n = len(ranks)
        masks = ((ranks < round(n * i / 100)).astype(np.float64) for i in range(101))
        return [round(float(1000 * bill(self.usage, mask, self.prices, self.asking).money), 3) for mask in masks]


def noted_settings(behind: Mapping[str, Source], gates: Sequence[GateResult]) -> dict[str, tuple[float, str]]:
    """Threshold and rule by gate: those noted in its folder, by which it is used, or else the evaluation's."""
    settings = {}
    for gate in gates:
        source = behind.get(gate.gate)
        entry = None if source is None else read_card(source.folder).thresholds.get(source.name)
        evaluated = gate.threshold or 0.0, str(gate.threshold_rule)
        settings[gate.gate] = evaluated if entry is None else (entry.threshold, entry.rule)
    return settings


def command(read: Evaluated, gate: GateResult | None) -> str:
    """The command that decides by the gate at the threshold of the headline; empty where no folder is behind the
    scores, or nothing is saved. Key and threshold are omitted where the folder alone says them.
    """
    saving = None if gate is None else read.saving(gate.gate)
    source = None if saving is None else read.stored.behind.get(saving.gate)
    if saving is None or source is None or saving.saves == "passages" or saving.noted.dev_saved <= 0:
        return ""
    card, key, shown = read_card(source.folder), source.name.rpartition("_")[2], saving.noted.threshold
    keyed = f" --key {key}" if isinstance(card, KeyedCard) and card.best_key() != key else ""
    entry = card.thresholds.get(source.name)
    threshold = "" if entry and entry.threshold == shown else f" --threshold {shown:.6g}"
    return f'kbtrain decide {source.folder} "a question"{keyed}{threshold}; '


def main_gate(gates: list[GateResult], requested: str | None, gate_savings: list[Saving]) -> GateResult | None:
    """The gate named; without a name the best on dev, or the last one where dev tells nothing."""
    by_name = {gate.gate: gate for gate in gates}
    if requested is not None and requested not in by_name:
        raise UserError(f"key 'gate': no scored gate '{requested}' in results.json; {did_you_mean(requested, by_name)}")
    best = requested or next((saving.gate for saving in gate_savings), None)
    return by_name[best] if best is not None else next(reversed(gates), None)


if __name__ == "__main__":
    run_script(main, ReportConfig, __doc__)
