"""Write the report of a run from what is stored: report.html (one self-contained page), report.md, its first figure as
savings.svg, and a page for each gate in gates/ with its worst errors side by side. Everything works offline.

Examples:
  kbtrain run write_report --run runs/demo
  kbtrain run write_report --run runs/demo --gate kbm_mastery --title "Atlas, SmolLM2-135M"
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.evaluation.cost import asking_of, bill, stored_usage, thousand_questions
from kbtrain.evaluation.gate_inputs import training_of, training_texts
from kbtrain.evaluation.outcomes import AccuracyKind, dev_kind, entities_of
from kbtrain.evaluation.results import STAGE_OF, GateResult, check_result, load
from kbtrain.evaluation.run_folder import check_outcomes_labelled, read_labels, read_outcomes
from kbtrain.evaluation.savings import Saving, SavingOptions, four_fold, savings
from kbtrain.evaluation.scores import StoredScores, stored_scores
from kbtrain.gate.card import KeyedCard
from kbtrain.gates.registry import read_card
from kbtrain.gates.thresholds_store import Source
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_current, write_atomically, write_meta
from kbtrain.labeling.distribution import statistics
from kbtrain.llm.forecast import PRICES, read_prices
from kbtrain.records import Question
from kbtrain.report.curves import curve_band, savings_figure, sliding_curve
from kbtrain.report.examples import AnsweredRun, collect, questions_of, select, worst_errors
from kbtrain.report.figures import ClassifiedGate, gate_figures, read_classified
from kbtrain.report.first_screen import closing_block, first_screen, rule_of, sentences
from kbtrain.report.page import Report, draw, render_gate, render_html, render_markdown
from kbtrain.report.summary import read_bills

LEVELS = {"never": "llm_only", "always": "all_rag"}


class ReportConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with results.json")
    sampling_run: str = Field("main", description="name of the sampling run in samples.db")
    gate: str | None = Field(None, description="gate of the headline and the errors; without it the best on dev")
    prices: Path = Field(
        PRICES, description="YAML file with prices and latencies, for the bill of a thousand questions"
    )
    title: str = Field("When does this model need retrieval?", description="headline of the page")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "report.html",)


def main(config: ReportConfig) -> None:
    started = time.monotonic()
    check_result(config.run / "results.json", config.sampling_run)
    results = load(config.run / "results.json")
    scores_stored = stored_scores(config.run)
    names = ("results.json", "outcomes.jsonl", "labels.jsonl")
    files = [*(config.run / name for name in names), *scores_stored.files]
    everything = read_outcomes(config.run)
    check_outcomes_labelled(config.run)
    outcomes = [o for o in everything if o.split == results.meta["split"]]
    dev = [o for o in everything if o.split == "dev"]
    questions = questions_of(config.run / "questions.jsonl", outcomes)
    scores = scores_stored.by_gate
    gates = [g for g in results.gates if g.gate in scores and g.threshold is not None]
    kind: AccuracyKind = results.meta["accuracy_kind"]
    clusters = entities_of(questions) if results.meta.get("resample") == "entities" else None
    scored = {g.gate: scores[g.gate] for g in gates}
    settings = noted_settings(scores_stored.behind, gates)
    texts = training_texts(jsonl.read(Question, config.run / "questions.jsonl"))
    labels = list(read_labels(files[2])[1])
    training = training_of(scored, scores_stored, labels, texts, dev_kind(dev, kind))
    options = SavingOptions(
        kind, seed=results.meta["seed"], clusters=clusters, settings=settings, training=training,
        after_search=scores_stored.meta.get("after_search", {}), max_loss=results.meta["max_loss"],
        delta=results.meta["delta"],
    )  # fmt: skip
    gate_savings = savings(dev, outcomes, scored, options)
    gate = main_gate(gates, config.gate, gate_savings)
    cuts = {gate: threshold for gate, (threshold, _) in settings.items()}
    main = gate.gate if gate else None
    counts = None if main is None else four_fold(outcomes, scores[main], cuts[main])
    first = first_screen(results, gate_savings, questions, gate, counts)
    shaded = None if gate is None else curve_band(gate, outcomes, scores[gate.gate], kind, clusters)
    cost = "-"
    if gate is not None:
        paid = Paid(config, scores_stored, gate.gate, questions)
        cost = paid.sentence(cuts[gate.gate])
        first = replace(first, sentences=[*first.sentences, cost])
        if first.tiles and shaded is not None:
            levels = {way: next(g.accuracy for g in results.gates if g.gate == name) for way, name in LEVELS.items()}
            saving = next(one for one in gate_savings if one.gate == main)
            curve = sliding_curve(gate, saving, shaded, levels, paid.money(), paid.prices.currency)
            first = replace(first, curve=curve)
    label_counts = statistics(labels)
    answered = AnsweredRun(config.run, config.sampling_run, questions, outcomes)
    kinds = collect(answered, main, cuts.get(main or ""), scores[main] if main else {})
    pages = {g.gate: f"gates/{g.gate}.html" for g in gates}
    examples = select(questions, outcomes, cuts, scores, clusters or ())
    for name, inputs in (("cost.json", files[:1]), ("classify.json", [files[1], *scores_stored.files])):
        if path_exists(config.run / name):
            check_current(config.run / name, *inputs, command=f"eval/{STAGE_OF[name]}.py")
    bills = read_bills(config.run / "cost.json")
    svgs = draw(results, label_counts, gate_savings, main, shaded)
    report = Report(
        config.title,
        results,
        label_counts,
        kinds,
        gate,
        first,
        svgs,
        examples,
        pages,
        bills,
        cuts.get(main or ""),
    )
    texts = {
        "report.html": render_html(report),
        "report.md": render_markdown(report),
        "savings.svg": savings_figure(results, gate_savings, main, shaded),
    }
    saving = {entry.gate: entry for entry in gate_savings}
    texts |= {
        pages[g.gate]: gate_page(report, g, answered, scores[g.gate], cuts[g.gate], saving.get(g.gate)) for g in gates
    }
    for name, text in texts.items():
        write_atomically(config.run / name, text)
    for name in ("report.html", "report.md"):
        write_meta(config.run / name, stage="write_report", config=config, inputs=files, started=started)
    seconds = time.monotonic() - started
    print(
        f"wrote the report in {seconds:.0f} s -> {config.run}/report.html, report.md and {len(gates)} pages in gates/"
    )
    use = command(scores_stored, gate_savings, gate)
    print("\n".join(closing_block(results, gate_savings, gate, questions, config.run / "report.html", use, cost)))


def gate_page(
    report: Report,
    gate: GateResult,
    answered: AnsweredRun,
    scores: Mapping[str, float],
    cut: float,
    saving: Saving | None,
) -> str:
    """A gate's own page: its decisions at threshold ``cut``, its worst errors and its figures."""
    dimensions = () if report.selection is None else report.selection.dimensions
    errors = worst_errors(answered, scores, cut, dimensions)
    lines = [] if saving is None else sentences(report.results, saving, 1)
    measured = read_classified(answered.path / "classify.json").get(gate.gate, ClassifiedGate())
    return render_gate(
        report,
        gate,
        errors,
        gate_figures(answered.outcomes, scores, cut, measured.calibration),
        lines,
        threshold=cut,
        rule=rule_of(saving, gate),
        fourfold=four_fold(answered.outcomes, scores, cut),
        metrics=measured.line,
    )


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
        """Of a thousand questions at each percent searched for, in the order of the scores; None without tokens."""
        if not self.usage.has_tokens.all():
            return None
        ranks = np.argsort(np.argsort(-self.scores, kind="stable"))
        n = len(ranks)
        masks = ((ranks < round(n * i / 100)).astype(np.float64) for i in range(101))
        return [round(float(1000 * bill(self.usage, mask, self.prices, self.asking).money), 3) for mask in masks]


def decide_command(source: Source) -> str:
    """The command that decides by a gate at its noted threshold; the key is omitted where it is the noted one."""
    card, key = read_card(source.folder), source.name.rpartition("_")[2]
    keyed = f" --key {key}" if isinstance(card, KeyedCard) and card.best_key() != key else ""
    return f'kbtrain decide {source.folder} "a question"{keyed}'


def noted_settings(behind: Mapping[str, Source], gates: Sequence[GateResult]) -> dict[str, tuple[float, str]]:
    """Threshold and rule by gate: those noted in its folder, by which it is used, or else the evaluation's."""
    settings = {}
    for gate in gates:
        source = behind.get(gate.gate)
        entry = None if source is None else read_card(source.folder).thresholds.get(source.name)
        evaluated = gate.threshold or 0.0, str(gate.threshold_rule)
        settings[gate.gate] = evaluated if entry is None else (entry.threshold, entry.rule)
    return settings


def command(scores_stored: StoredScores, gate_savings: list[Saving], gate: GateResult | None) -> str:
    """The command that decides by the gate at the threshold of the headline; empty where no folder is behind the
    scores, or nothing is saved. Key and threshold are omitted where the folder alone says them.
    """
    by_gate = {saving.gate: saving for saving in gate_savings}
    saving = None if gate is None else by_gate.get(gate.gate)
    source = None if saving is None else scores_stored.behind.get(saving.gate)
    if saving is None or source is None or saving.noted.dev_saved <= 0:
        return ""
    entry, threshold_shown = read_card(source.folder).thresholds.get(source.name), saving.noted.threshold
    threshold = "" if entry and entry.threshold == threshold_shown else f" --threshold {threshold_shown:.6g}"
    return f"{decide_command(source)}{threshold}; "


def main_gate(gates: list[GateResult], requested: str | None, gate_savings: list[Saving]) -> GateResult | None:
    """The gate named; without a name the best on dev, or the last one where dev tells nothing."""
    by_name = {gate.gate: gate for gate in gates}
    if requested is not None and requested not in by_name:
        raise UserError(f"key 'gate': no scored gate '{requested}' in results.json; {did_you_mean(requested, by_name)}")
    best = requested or next((saving.gate for saving in gate_savings), None)
    return by_name[best] if best is not None else next(reversed(gates), None)


if __name__ == "__main__":
    run_script(main, ReportConfig, __doc__)
