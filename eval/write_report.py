"""Write the report of a run from what is stored: report.html (one self-contained page), report.md, its first figure as
savings.svg, and a page for each gate in gates/ with its worst errors side by side. Everything works offline.

Examples:
  python eval/write_report.py --run runs/demo
  python eval/write_report.py --run runs/demo --gate kbm_mastery --title "Atlas, SmolLM2-135M"
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
from kbtrain.evaluation.cost import asking_of, stored_usage, thousand_questions
from kbtrain.evaluation.fidelity import fidelities, left_out_lines, predicts_change, read_changes, read_fidelities
from kbtrain.evaluation.note import sources
from kbtrain.evaluation.outcomes import AccuracyKind, dev_kind, entities_of
from kbtrain.evaluation.result_meta import STAGE_OF, check_result
from kbtrain.evaluation.results import GateResult, load
from kbtrain.evaluation.run_folder import (
    StoredScores,
    check_outcomes_labelled,
    read_labels,
    read_outcomes,
    stored_scores,
)
from kbtrain.evaluation.savings import Saving, four_fold, order_curves, savings
from kbtrain.evaluation.training import training_of, training_texts
from kbtrain.gate.card import KeyedCard
from kbtrain.gates.noted import Source, missing_reason
from kbtrain.gates.registry import read_card
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_current, write_atomically, write_meta
from kbtrain.labeling.distribution import statistics
from kbtrain.llm.prices import PRICES, read_prices
from kbtrain.records import Outcome, Question
from kbtrain.report.curves import curve_band, savings_file
from kbtrain.report.examples import collect, worst_errors
from kbtrain.report.fidelity import FidelityReport, beside_accuracy, changed_answers, figure
from kbtrain.report.fidelity import closing_block as fidelity_block
from kbtrain.report.figures import POSITIVE, gate_figures, read_calibration
from kbtrain.report.first_screen import closing_block, first_screen, rule_of, sentences
from kbtrain.report.page import DecisionSummary, Report, draw, render_gate, render_html, render_markdown
from kbtrain.report.selection import questions_of, select
from kbtrain.report.summary import read_bills


class ReportConfig(Config):
    """Settings of this script."""

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
    """Read, draw, write the page, its Markdown twin and a page for each gate."""
    started = time.monotonic()
    if not path_exists(config.run / "results.json") and path_exists(config.run / "fidelity.json"):
        return without_gold(config, started)
    check_result(config.run / "results.json", config.sampling_run)
    results = load(config.run / "results.json")
    stored = stored_scores(config.run)
    files = [config.run / name for name in ("results.json", "outcomes.jsonl", "labels.jsonl")] + list(stored.files)
    everything = read_outcomes(config.run)
    check_outcomes_labelled(config.run)
    outcomes = [o for o in everything if o.split == results.meta["split"]]
    dev = [o for o in everything if o.split == "dev"]
    questions = questions_of(config.run / "questions.jsonl", outcomes)
    scores = stored.by_gate
    own = [g for g in results.gates if g.gate in scores and g.threshold is not None]
    kind: AccuracyKind = results.meta["accuracy_kind"]
    clusters = entities_of(questions) if results.meta.get("resample") == "entities" else None
    scored = {g.gate: scores[g.gate] for g in own}
    behind = sources(config.run, stored)
    settings = noted_settings(behind, own)
    training = training_of(scored, behind, read_labels(files[2])[1], training_texts(config.run), dev_kind(dev, kind))
    found = savings(dev, outcomes, scored, kind, seed=results.meta["seed"], clusters=clusters, noted=settings,
                    after_search=stored.meta.get("after_search", {}),
                    training=training)  # fmt: skip
    gate = main_gate(own, config.gate, found)
    first = first_screen(results, found, questions, gate)
    first = replace(first, sentences=[*first.sentences, *change_sentences(config, stored, own, outcomes)])
    cost = "-"
    if gate is not None:
        cost = bill_sentence(config, stored, gate.gate, settings[gate.gate][0], outcomes)
        first = replace(first, sentences=[*first.sentences, cost])
    counted = statistics(read_labels(files[2])[1])
    saving = {one.gate: one for one in found}
    cuts = {gate: threshold for gate, (threshold, _) in settings.items()}
    main = gate.gate if gate else None
    kinds = collect(config.run, config.sampling_run, outcomes, main, cuts.get(main or ""), scores[main] if main else {})
    pages = {g.gate: f"gates/{g.gate}.html" for g in own}
    chosen = select(questions, outcomes, cuts, scores, clusters or ())
    for name, inputs in (("cost.json", files[:1]), ("classify.json", [files[1], *stored.files])):
        if path_exists(config.run / name):
            check_current(config.run / name, *inputs, command=f"eval/{STAGE_OF[name]}.py")
    bills = read_bills(config.run / "cost.json")
    shaded = None if gate is None else curve_band(gate, outcomes, scores[gate.gate], kind, clusters)
    orders = order_curves(outcomes, scored, kind)
    svgs = draw(results, counted, found, main, shaded)
    report = Report(config.title, results, counted, kinds, gate, svgs, chosen, pages, bills, first, orders)
    texts = {
        "report.html": render_html(report),
        "report.md": render_markdown(report),
        "savings.svg": savings_file(results, found, main, shaded),
    }
    made = read_calibration(config.run / "classify.json")
    for g in own:
        of, cut = scores[g.gate], cuts[g.gate]
        errors = worst_errors(config.run, config.sampling_run, questions, outcomes, of, cut, chosen.dimensions)
        said = sentences(results, saving[g.gate], 1) if g.gate in saving else []
        decided = DecisionSummary(cut, rule_of(saving.get(g.gate), g), four_fold(outcomes, of, cut), said)
        drawn = gate_figures(outcomes, of, cut, made.get(g.gate))
        texts[pages[g.gate]] = render_gate(report, g, errors, drawn, POSITIVE, decided)
    for name, text in texts.items():
        write_atomically(config.run / name, text)
    for name in ("report.html", "report.md"):
        write_meta(config.run / name, stage="write_report", config=config, inputs=files, started=started)
    seconds = time.monotonic() - started
    print(f"wrote the report in {seconds:.0f} s -> {config.run}/report.html, report.md and {len(own)} pages in gates/")
    use = command(config.run, stored, found, gate)
    print("\n".join(closing_block(results, found, gate, questions, config.run / "report.html", use, cost)))


def bill_sentence(
    config: ReportConfig, stored: StoredScores, gate: str, threshold: float, asked: Sequence[Outcome | Question]
) -> str:
    """The bill of a thousand questions at a gate's threshold."""
    ids = [one.question_id if isinstance(one, Outcome) else one.id for one in asked]
    retrieve = np.array([stored.by_gate[gate][name] > threshold for name in ids], dtype=np.float64)
    used = stored_usage(config.run, config.sampling_run, ids)
    return thousand_questions(used, retrieve, read_prices(config.prices), asking_of(stored, gate))


def change_sentences(
    config: ReportConfig, stored: StoredScores, own: Sequence[GateResult], outcomes: Sequence[Outcome]
) -> list[str]:
    """A sentence on the gate for ``change`` that skips most on dev; none without such a gate, or with few dev
    questions."""
    behind = sources(config.run, stored)
    there_now = {gate: source for gate, source in behind.items() if not missing_reason(source)}
    names = [g.gate for g in own if g.gate in there_now and predicts_change(there_now[g.gate])]
    learnt = {name: stored.by_gate[name] for name in names}
    if not learnt:
        return []
    try:
        found = fidelities(read_changes(config.run, config.sampling_run), learnt, stored.path)
    except UserError as error:
        return [f"No promise about changed answers: {error}."]
    one = next(figure for _, figure in found.values())
    skipped = [learnt[one.gate][o.question_id] <= one.threshold for o in outcomes]
    right = [o.llm_correct if skip else o.rag_correct for o, skip in zip(outcomes, skipped, strict=True)]
    always = sum(o.rag_correct for o in outcomes) / len(outcomes)
    return [beside_accuracy(one, sum(right) / len(right), always)]


def without_gold(config: ReportConfig, started: float) -> None:
    """Write the report of a run without accepted answers."""
    source = config.run / "fidelity.json"
    check_result(source, config.sampling_run)
    meta, found = read_fidelities(source)
    stored, changes = stored_scores(config.run), read_changes(config.run, config.sampling_run)
    behind, named = sources(config.run, stored), {one.gate: one for one in found}
    if config.gate is not None and config.gate not in named:
        raise UserError(f"key 'gate': no scored gate '{config.gate}' in {source}; {did_you_mean(config.gate, named)}")
    learnt = [one for one in found if one.gate in behind and predicts_change(behind[one.gate])]
    first = named[config.gate] if config.gate else (learnt or found)[0]
    scores = stored.by_gate
    made = FidelityReport(
        title=config.title,
        meta=meta,
        test=changes["test"],
        found=[first, *(one for one in found if one is not first)],
        changed=changed_answers(config.run, config.sampling_run, changes["test"], scores[first.gate], first.threshold),
        lines=left_out_lines(changes),
        costs=[bill_sentence(config, stored, first.gate, first.threshold, changes["test"].questions)],
        svg=figure(changes["test"], scores, [first, *(one for one in found if one is not first)]),
    )
    for name, text in (("report.html", made.html()), ("report.md", made.markdown())):
        write_atomically(config.run / name, text)
        write_meta(config.run / name, stage="write_report", config=config, inputs=[source], started=started)
    print(f"wrote the report in {time.monotonic() - started:.0f} s -> {config.run}/report.html and report.md")
    behind_first = behind.get(first.gate)
    use = "" if behind_first is None or first.dev_skipped <= 0 else f"{decide_command(behind_first)}; "
    print("\n".join(fidelity_block(made, config.run / "report.html", use)))


def decide_command(source: Source) -> str:
    """The command that decides by a gate at its noted threshold; the key is omitted where it is the noted one."""
    card, key = read_card(source.folder), source.name.rpartition("_")[2]
    keyed = f" --key {key}" if isinstance(card, KeyedCard) and card.best_key() != key else ""
    return f'kbtrain decide {source.folder} "a question"{keyed}'


def noted_settings(behind: Mapping[str, Source], own: Sequence[GateResult]) -> dict[str, tuple[float, str]]:
    """Threshold and rule by gate: those noted in its folder, by which it is used, or else the evaluation's."""
    found = {}
    for gate in own:
        source = behind.get(gate.gate)
        there_now = source is not None and not missing_reason(source)
        noted = read_card(source.folder).thresholds.get(source.name) if source is not None and there_now else None
        chosen = gate.threshold or 0.0, str(gate.threshold_rule)
        found[gate.gate] = chosen if noted is None else (noted.threshold, noted.rule)
    return found


def command(run: Path, stored: StoredScores, found: list[Saving], gate: GateResult | None) -> str:
    """The command that decides by the gate at the threshold of the headline; empty where no folder is behind the
    scores, or nothing is saved. Key and threshold are omitted where the folder alone says them.
    """
    saving = next((one for one in found if gate is not None and one.gate == gate.gate), None)
    source = None if saving is None else sources(run, stored).get(saving.gate)
    if saving is None or source is None or missing_reason(source) or saving.noted.dev_saved <= 0:
        return ""
    noted, shown = read_card(source.folder).thresholds.get(source.name), saving.noted.threshold
    threshold = "" if noted and noted.threshold == shown else f" --threshold {shown:.6g}"
    return f"{decide_command(source)}{threshold}; "


def main_gate(own: list[GateResult], wanted: str | None, found: list[Saving]) -> GateResult | None:
    """The gate named; without a name the best on dev, or the last one where dev tells nothing."""
    named = {gate.gate: gate for gate in own}
    if wanted is not None and wanted not in named:
        raise UserError(f"key 'gate': no scored gate '{wanted}' in results.json; {did_you_mean(wanted, named)}")
    if wanted is not None:
        return named[wanted]
    if found:
        return named[found[0].gate]
    return own[-1] if own else None


if __name__ == "__main__":
    run_script(main, ReportConfig, __doc__)
