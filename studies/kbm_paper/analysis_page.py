"""The analyses as sections of text, tables and figures: Markdown and JSON from one content."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbm_paper import figures
from kbm_paper.label_statistics import INTERVALS
from kbm_paper.run_analysis import RunAnalysis
from kbm_paper.tallies import TauSweep
from kbtrain.labeling.distribution import EFFECTS, INDICATORS
from kbtrain.records import CONDITIONS
from kbtrain.report.tables import escape_markdown
from kbtrain.report.words import CONDITION_NAMES
from kbtrain.show import number, signed

SHOWN_TAUS = tuple(i / 10 for i in range(10))  # in the table; the curves and the JSON file have all


@dataclass(frozen=True)
class TextTable:
    """Rows of text under a head; the first ``texts`` columns are words, the others numbers."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    texts: int = 1


@dataclass(frozen=True)
class Section:
    """A part of the page; ``figures`` are (SVG, caption)."""

    title: str
    text: str
    figures: list[tuple[str, str]] = field(default_factory=list)
    tables: list[TextTable] = field(default_factory=list)


def name_runs(runs: Sequence[RunAnalysis]) -> None:
    """Set each run's name: its model's, made different by run and folder where equal; of a part with its data set."""
    whole = Counter(Path(run.model).name or run.model for run in runs if not run.dataset)
    for run in runs:
        run.name = Path(run.model).name or run.model
        run.name += f" ({run.folder.name}/{run.sampling_run})" if whole[run.name] > 1 else ""
        run.name += f", {run.dataset}" if run.dataset else ""


def sections(runs: Sequence[RunAnalysis]) -> list[Section]:
    """All sections that have data. The last three are of whole runs, not of their data sets."""
    whole = [run for run in runs if not run.dataset]
    parts = [_accuracy(runs), _copying(runs), *map(_effects, runs, range(len(runs))), _correlation(runs), _sweep(whole),
             _stability(whole), *map(_least_certain, whole)]  # fmt: skip
    return [section for section in parts if section.tables or section.figures]


def _accuracy(runs: Sequence[RunAnalysis]) -> Section:
    rows = []
    for run in runs:
        for condition in CONDITIONS:
            tally = run.accuracies.conditions.get(condition)
            if tally is None:
                continue
            greedy, sampled = tally.greedy, tally.sampled
            rows.append((
                run.name, CONDITION_NAMES[condition], str(tally.greedy_n), number(greedy and greedy[0]),
                _interval(greedy and greedy[1:]), str(sampled.n), number(sampled.mean), _interval(sampled.interval),
                number(tally.certainty.mean), str(tally.cut), str(tally.cut_tokens),
            ))  # fmt: skip
    head = ("model", "condition", "n", "accuracy", "95 %", "n sampled", "expected", "95 %", "certainty",
            "prompts cut", "tokens cut")  # fmt: skip
    left = ", ".join(f"{run.name} {run.accuracies.left_out}" for run in runs)
    text = (
        "Figure 1 of the KBM paper: accuracy without retrieval, with it, and with the answers masked in the evidence. "
        "Only questions that were answered under all conditions of a run are compared. Answered under some only and "
        f"skipped: {left}. Accuracy: greedy answers, Wilson's interval. Expected: mean share of right sampled "
        "answers. Prompts cut: prompts that lost evidence from their tail (of all that are stored)."
    )
    caption = "Share of right answers by model and condition; bars: 95 % intervals."
    drawn = [(figures.accuracy_bars(runs), caption)]
    return Section("Accuracy by condition", text, drawn, [TextTable(head, rows, 2)])


def _copying(runs: Sequence[RunAnalysis]) -> Section:
    rows = []
    for run in runs:
        c = run.copying
        if c.n_questions:
            share = c.share
            clean = c.copied_without_leak / c.certain_without_leak if c.certain_without_leak else None
            rows.append((
                run.name, str(c.n_questions), str(c.n_certain), number(share and share[0]),
                _interval(share and share[1:]), number(c.mask_outputs / c.outputs), str(c.leaking), number(clean),
            ))  # fmt: skip
    head = ("model", "n", "certainty 1", "MASK", "95 %", "MASK of all outputs", "leaking", "MASK without leaks")
    text = (
        "Figure 2: among the questions that are answered the same way in every sample under MASK RAG, how often is "
        "that answer MASK itself, copied from the evidence? leaking: questions whose evidence still shows an answer "
        "after masking; the last column leaves them out."
    )
    svg = figures.copy_bars(runs)
    drawn = [(svg, "Outputs that are MASK among questions with certainty 1 under MASK RAG; n of these.")] if svg else []
    return Section("Copied masks", text, drawn, [TextTable(head, rows)] if rows else [])


def _effects(run: RunAnalysis, place: int) -> Section:
    drawn, rows = [], []
    for indicator in INDICATORS:
        for condition in CONDITIONS:
            svg = figures.panel(run.statistics, indicator, condition, f"run{place}")
            if svg is not None:
                n = run.statistics.compared(indicator, condition)
                drawn.append((svg, f"{indicator.capitalize()}, {CONDITION_NAMES[condition]}, n = {n}."))
        panels = run.statistics.panels  # those of one condition count each question once
        counts = (sum(panels[indicator, "llm", i, effect] for i in range(INTERVALS)) for effect in EFFECTS)
        rows.append((indicator, *map(str, counts)))
    text = (
        "Figure 3: questions by the interval their indicator lies in under each condition, and by the effect of "
        "retrieval on that indicator: beneficial (blue), neutral (grey), harmful (red)."
    )
    table = TextTable(("indicator", *EFFECTS), rows)
    return Section(f"Where retrieval helps and where it harms: {run.name}", text, drawn, [table] if drawn else [])


def _correlation(runs: Sequence[RunAnalysis]) -> Section:
    rows = [(run.name, str(run.statistics.n_certainty), number(run.statistics.pearson())) for run in runs]
    text = "Pearson's correlation of mastery and certainty without retrieval, over questions (the paper: 0.64)."
    return Section("Mastery and certainty", text, [], [TextTable(("model", "n", "Pearson"), rows)])


def _sweep(runs: Sequence[RunAnalysis]) -> Section:
    rows = []
    for run in runs:
        for indicator in INDICATORS:
            sweep = run.sweeps[indicator]
            for held, same in zip(TauSweep.rows(sweep.held_out), TauSweep.rows(sweep.same), strict=True):
                low, high = held.change_low, held.change_high
                interval = "-" if low is None or high is None else f"[{signed(low)}, {signed(high)}]"
                row = (run.name, indicator, f"{held.tau:g}", f"{held.saved:.1%}", signed(held.change), interval)
                rows += [(*row, f"{same.saved:.1%}", signed(same.change))] if held.tau in SHOWN_TAUS else []
    head = ("model", "indicator", "tau", "saved", "change", "95 %", "saved (same)", "change (same)")
    text = (
        "Section 3.2: questions whose indicator is above tau are answered without retrieval, the others with it. "
        "saved: share of retrievals not made; change: expected accuracy against All RAG. In the columns with (same), "
        "and in the dashed curves, the same answers decide and are counted, as in the paper, which flatters the "
        "sweep: lucky questions are kept. Elsewhere one half of each question's answers decides and the other half is "
        "counted, both ways round. Certainty is on one scale for all questions, however many answers each has."
    )
    drawn = [
        (svg, f"By {indicator}; marks: tau 0.2, 0.5, 0.8.")
        for indicator in INDICATORS
        if (svg := figures.sweep_curves(runs, indicator)) is not None
    ]
    return Section("What a threshold saves", text, drawn, [TextTable(head, rows, 2)] if rows else [])


def _stability(runs: Sequence[RunAnalysis]) -> Section:
    rows = []
    for run in runs:
        for size, at in sorted(run.stability.sizes.items()):
            means = (at.mastery_width, at.benefit_width, at.certainty, at.known_flips, at.certain_flips,
                     at.effect_flips, at.known_disagree, at.certain_disagree)  # fmt: skip
            rows.append((run.name, str(size), str(run.stability.n), *(number(mean.mean) for mean in means)))
    head = ("model", "I", "n", "mastery +-", "benefit +-", "certainty", "known flips", "certain flips", "effect flips",
            "known differs", "certain differs")  # fmt: skip
    taus = "; ".join(
        f"{run.name}: tau {run.stability.tau_mastery:.3g} (mastery), {run.stability.tau_certainty:.3g} (certainty), "
        f"{run.stability.fewer} questions with fewer answers skipped"
        for run in runs
    )
    text = (
        "Labels from the first I answers of each question. +-: mean width of the 95 % interval; flips: share of "
        "labels that differ from those of all answers; differs: share that differ between two disjoint sets of I "
        f"answers. {taus}."
    )
    curves = (
        (("mastery_width", "benefit_width"), "width of the 95 % interval (points)", "widths", "mastery", "benefit"),
        (("known_flips", "certain_flips"), "labels that flip (%)", "flips", "known", "certain"),
    )
    drawn = [
        (svg, f"Solid: {solid}, dotted: {dotted}.")
        for values, unit, name, solid, dotted in curves
        if (svg := figures.stability_curves(runs, values, unit, name)) is not None
    ]
    return Section("How many answers a label needs", text, drawn, [TextTable(head, rows)] if rows else [])


def _least_certain(run: RunAnalysis) -> Section:
    rows, mark = [], {True: "right", False: "wrong", None: "abstained"}
    for spread in run.least_certain.spreads():
        groups = [f"{g.text or '(empty)'} x{g.times} {mark[g.right]}" for g in spread.groups]
        more = spread.n_groups - len(spread.groups)
        groups += [f"{more} more groups"] if more else []
        rows.append((spread.question, spread.gold, "; ".join(groups), number(spread.certainty)))
    head = ("question", "gold", "answer groups without retrieval", "certainty")
    text = "Answers that are equal after normalisation form a group; the largest ones, with their size."
    return Section(f"Least certain questions: {run.name}", text, [], [TextTable(head, rows, 3)] if rows else [])


def _interval(bounds: Sequence[float] | None) -> str:
    return "-" if bounds is None else f"[{number(bounds[0])}, {number(bounds[1])}]"


def render_markdown(title: str, sections: Sequence[Section], meta: Mapping[str, Any], folder: str) -> str:
    """Texts, figures (files of ``folder``, see :func:`figure_files`) and tables."""
    names, parts = iter(figure_files(sections)), [f"# {escape_markdown(title)}"]
    for section in sections:
        parts += [f"## {escape_markdown(section.title)}", escape_markdown(section.text)]
        parts += [f"![{escape_markdown(caption)}]({folder}/{next(names)})" for _, caption in section.figures]
        for table in section.tables:
            rule = "|" + "---|" * table.texts + "--:|" * (len(table.head) - table.texts)
            rows = [f"| {' | '.join(map(escape_markdown, row))} |" for row in (table.head, *table.rows)]
            parts.append("\n".join([rows[0], rule, *rows[1:]]))
    made = "\n".join(f"- {escape_markdown(f'{key}: {value}')}" for key, value in meta.items())
    return "\n\n".join([*parts, "## How it was made", made]) + "\n"


def figure_files(sections: Sequence[Section]) -> dict[str, str]:
    """SVGs by the name of their file, in the order of the page."""
    svgs = [svg for section in sections for svg, _ in section.figures]
    return {f"figure_{i:02}.svg": svg for i, svg in enumerate(svgs, 1)}


def to_json(run: RunAnalysis) -> dict[str, Any]:
    """Every number of the page."""
    accuracies, statistics = run.accuracies, run.statistics
    return {
        "name": run.name,
        "model": run.model,
        "folder": str(run.folder),
        "sampling_run": run.sampling_run,
        "dataset": run.dataset or None,
        "split": run.split,
        "counts": dict(sorted(run.counts.items())),
        "figure_1": {
            "n": accuracies.n,
            "left_out": accuracies.left_out,
            "conditions": {condition: _numbers(entry) for condition, entry in accuracies.conditions.items()},
        },
        "figure_2": {**_numbers(run.copying), "share": run.copying.share},
        "figure_3": [
            {"indicator": i, "condition": c, "interval": interval, "effect": effect, "n": n}
            for (i, c, interval, effect), n in sorted(statistics.panels.items())
        ],
        "pearson": statistics.pearson(),
        "tau_sweep": {
            indicator: {
                way: [dataclasses.asdict(row) for row in TauSweep.rows(getattr(run.sweeps[indicator], way))]
                for way in ("same", "held_out")
            }
            for indicator in INDICATORS
        },
        "stability": {
            **_numbers(run.stability),
            "sizes": {str(size): _numbers(at) for size, at in sorted(run.stability.sizes.items())},
        },
        "least_certain": [dataclasses.asdict(entry) for entry in run.least_certain.spreads()],
        "sampling": dict(run.meta),
    }


def _numbers(tally: Any) -> dict[str, Any]:
    """The fields of a tally; running means as mean, interval and n."""
    values: dict[str, Any] = {}
    for entry in dataclasses.fields(tally):
        value = getattr(tally, entry.name)
        is_mean = hasattr(value, "squares")
        values[entry.name] = {"mean": value.mean, "interval": value.interval, "n": value.n} if is_mean else value
    if hasattr(tally, "greedy"):
        values["greedy"] = tally.greedy
    return values
