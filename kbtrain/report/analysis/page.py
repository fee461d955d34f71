"""The analyses as sections of text, tables and figures: one HTML page, Markdown, and JSON from one content."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbtrain.labeling.distribution import EFFECTS, INDICATORS
from kbtrain.records import CONDITIONS
from kbtrain.report import figures as report_figures
from kbtrain.report.analysis import figures
from kbtrain.report.analysis.run import RunAnalysis
from kbtrain.report.analysis.stability import TauSweep
from kbtrain.report.page import escape_markdown
from kbtrain.show.text_table import number, signed

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


def names_of(runs: Sequence[RunAnalysis]) -> list[str]:
    """Short names of the models, made different by run and folder where they are equal; of a part: and its data set."""
    short = [Path(run.model).name or run.model for run in runs]
    whole = [name for name, run in zip(short, runs, strict=True) if not run.dataset]
    names = [
        name if whole.count(name) <= 1 else f"{name} ({run.folder.name}/{run.sampling_run})"
        for name, run in zip(short, runs, strict=True)
    ]
    return [f"{name}, {run.dataset}" if run.dataset else name for name, run in zip(names, runs, strict=True)]


def sections(runs: Sequence[RunAnalysis]) -> list[Section]:
    """All sections that have data. The last three are of whole runs, not of their data sets."""
    names = names_of(runs)
    whole = [run for run in runs if not run.dataset]
    short = names_of(whole)
    parts = [_accuracy(runs, names), _copying(runs, names), *_effects(runs, names), _correlation(runs, names),
            _sweep(whole, short), _stability(whole, short), *_least_certain(whole, short)]  # fmt: skip
    return [section for section in parts if section.tables or section.figures]


def _accuracy(runs: Sequence[RunAnalysis], names: Sequence[str]) -> Section:
    rows = []
    for run, name in zip(runs, names, strict=True):
        for condition in CONDITIONS:
            tally = run.accuracies.conditions.get(condition)
            if tally is None:
                continue
            greedy, sampled = tally.greedy, tally.sampled
            rows.append((
                name, report_figures.NAMES[condition], str(tally.greedy_n), number(greedy and greedy[0]),
                _interval(greedy and greedy[1:]), str(sampled.n), number(sampled.mean), _interval(sampled.interval),
                number(tally.certainty.mean), str(tally.cut), str(tally.cut_tokens),
            ))  # fmt: skip
    head = ("model", "condition", "n", "accuracy", "95 %", "n sampled", "expected", "95 %", "certainty",
            "prompts cut", "tokens cut")  # fmt: skip
    left = ", ".join(f"{name} {run.accuracies.left_out}" for run, name in zip(runs, names, strict=True))
    text = (
        "Figure 1 of the KBM paper: accuracy without retrieval, with it, and with the answers masked in the evidence. "
        "Only questions that were answered under all conditions of a run are compared. Answered under some only and "
        f"skipped: {left}. Accuracy: greedy answers, Wilson's interval. Expected: mean share of right sampled "
        "answers. Prompts cut: prompts that lost evidence from their tail (of all that are stored)."
    )
    caption = "Share of right answers by model and condition; bars: 95 % intervals."
    drawn = [(figures.accuracy_bars(runs, names), caption)]
    return Section("Accuracy by condition", text, drawn, [TextTable(head, rows, 2)])


def _copying(runs: Sequence[RunAnalysis], names: Sequence[str]) -> Section:
    rows = []
    for run, name in zip(runs, names, strict=True):
        c = run.copying
        if c.n_questions:
            share = c.share
            clean = c.copied_without_leak / c.certain_without_leak if c.certain_without_leak else None
            rows.append((
                name, str(c.n_questions), str(c.n_certain), number(share and share[0]), _interval(share and share[1:]),
                number(c.mask_outputs / c.outputs), str(c.leaking), number(clean),
            ))  # fmt: skip
    head = ("model", "n", "certainty 1", "MASK", "95 %", "MASK of all outputs", "leaking", "MASK without leaks")
    text = (
        "Figure 2: among the questions that are answered the same way in every sample under MASK RAG, how often is "
        "that answer MASK itself, copied from the evidence? leaking: questions whose evidence still shows an answer "
        "after masking; the last column leaves them out."
    )
    svg = figures.copy_bars(runs, names)
    drawn = [(svg, "Outputs that are MASK among questions with certainty 1 under MASK RAG; n of these.")] if svg else []
    return Section("Copied masks", text, drawn, [TextTable(head, rows)] if rows else [])


def _effects(runs: Sequence[RunAnalysis], names: Sequence[str]) -> list[Section]:
    parts = []
    for i, (run, name) in enumerate(zip(runs, names, strict=True)):
        drawn = []
        for indicator in INDICATORS:
            for condition in CONDITIONS:
                svg = report_figures.panel(run.statistics, indicator, condition)
                if svg is not None:
                    n = run.statistics.compared(indicator, condition)
                    svg = svg.replace(f"panel-{indicator}-{condition}-", f"run{i}-{indicator}-{condition}-")
                    drawn.append((svg, f"{indicator.capitalize()}, {report_figures.NAMES[condition]}, n = {n}."))
        text = (
            "Figure 3: questions by the interval their indicator lies in under each condition, and by the effect of "
            "retrieval on that indicator: beneficial (blue), neutral (grey), harmful (red)."
        )
        table = TextTable(("indicator", *EFFECTS), _effect_rows(run))
        title = f"Where retrieval helps and where it harms: {name}"
        parts.append(Section(title, text, drawn, [table] if drawn else []))
    return parts


def _effect_rows(run: RunAnalysis) -> list[tuple[str, ...]]:
    """Questions by effect, each counted once: from the panels of condition ``llm``."""
    rows = []
    for indicator in INDICATORS:
        counts: Counter[str] = Counter()
        for (which, condition, _, effect), n in run.statistics.panels.items():
            if (which, condition) == (indicator, "llm"):
                counts[effect] += n
        rows.append((indicator, *(str(counts[effect]) for effect in EFFECTS)))
    return rows


def _correlation(runs: Sequence[RunAnalysis], names: Sequence[str]) -> Section:
    statistics = zip(names, (run.statistics for run in runs), strict=True)
    rows = [(name, str(labels.n_certainty), number(labels.pearson())) for name, labels in statistics]
    text = "Pearson's correlation of mastery and certainty without retrieval, over questions (the paper: 0.64)."
    return Section("Mastery and certainty", text, [], [TextTable(("model", "n", "Pearson"), rows)])


def _sweep(runs: Sequence[RunAnalysis], names: Sequence[str]) -> Section:
    rows = []
    for run, name in zip(runs, names, strict=True):
        for indicator in INDICATORS:
            sweep = run.sweeps[indicator]
            for held, same in zip(TauSweep.rows(sweep.held_out), TauSweep.rows(sweep.same), strict=True):
                low, high = held.change_low, held.change_high
                interval = "-" if low is None or high is None else f"[{signed(low)}, {signed(high)}]"
                row = (name, indicator, f"{held.tau:g}", f"{held.saved:.1%}", signed(held.change), interval)
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
        if (svg := figures.sweep_curves(runs, names, indicator)) is not None
    ]
    return Section("What a threshold saves", text, drawn, [TextTable(head, rows, 2)] if rows else [])


def _stability(runs: Sequence[RunAnalysis], names: Sequence[str]) -> Section:
    rows = []
    for run, name in zip(runs, names, strict=True):
        for size, at in sorted(run.stability.sizes.items()):
            means = (at.mastery_width, at.benefit_width, at.certainty, at.known_flips, at.certain_flips,
                     at.effect_flips, at.known_disagree, at.certain_disagree)  # fmt: skip
            rows.append((name, str(size), str(run.stability.n), *(number(mean.mean) for mean in means)))
    head = ("model", "I", "n", "mastery +-", "benefit +-", "certainty", "known flips", "certain flips", "effect flips",
            "known differs", "certain differs")  # fmt: skip
    taus = "; ".join(
        f"{name}: tau {run.stability.tau_mastery:.3g} (mastery), {run.stability.tau_certainty:.3g} (certainty), "
        f"{run.stability.fewer} questions with fewer answers skipped"
        for run, name in zip(runs, names, strict=True)
    )
    text = (
        "Labels from the first I answers of each question. +-: mean width of the 95 % interval; flips: share of "
        "labels that differ from those of all answers; differs: share that differ between two disjoint sets of I "
        f"answers. {taus}."
    )
    widths = figures.stability_curves(
        runs, names, (("mastery_width", "-"), ("benefit_width", ":")), "width of the 95 % interval (points)", "widths"
    )
    flips = figures.stability_curves(
        runs, names, (("known_flips", "-"), ("certain_flips", ":")), "labels that flip (%)", "flips"
    )
    captions = ("Solid: mastery, dotted: benefit.", "Solid: known, dotted: certain.")
    drawn = [(svg, text_) for svg, text_ in zip((widths, flips), captions, strict=True) if svg is not None]
    return Section("How many answers a label needs", text, drawn, [TextTable(head, rows)] if rows else [])


def _least_certain(runs: Sequence[RunAnalysis], names: Sequence[str]) -> list[Section]:
    parts = []
    for run, name in zip(runs, names, strict=True):
        rows = []
        for spread in run.least_certain.spreads():
            mark = {True: "right", False: "wrong", None: "abstained"}
            groups = "; ".join(f"{g.text or '(empty)'} x{g.times} {mark[g.right]}" for g in spread.groups)
            more = spread.n_groups - len(spread.groups)
            rows.append((spread.question, spread.gold, groups + (f"; {more} more groups" if more else ""),
                         number(spread.certainty)))  # fmt: skip
        head = ("question", "gold", "answer groups without retrieval", "certainty")
        text = "Answers that are equal after normalisation form a group; the largest ones, with their size."
        parts.append(Section(f"Least certain questions: {name}", text, [], [TextTable(head, rows, 3)] if rows else []))
    return parts


def _interval(bounds: Sequence[float] | None) -> str:
    return "-" if bounds is None else f"[{number(bounds[0])}, {number(bounds[1])}]"


_HERE = Path(__file__).parent


def render_html(title: str, sections: Sequence[Section], meta: Mapping[str, Any]) -> str:
    """One page: inline styles and figures, everything escaped, no script, nothing loaded."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["svg"] = Markup
    text: str = environment.get_template("analysis.html.j2").render(title=title, sections=sections, meta=meta)
    return text


def render_markdown(title: str, sections: Sequence[Section], meta: Mapping[str, Any]) -> str:
    """The same tables and texts as Markdown, without the figures."""
    lines = [f"# {escape_markdown(title)}", ""]
    for section in sections:
        lines += [f"## {escape_markdown(section.title)}", "", escape_markdown(section.text), ""]
        for table in section.tables:
            lines += [_row(table.head), "|" + "---|" * table.texts + "--:|" * (len(table.head) - table.texts)]
            lines += [_row(row) for row in table.rows] + [""]
    lines += ["## How it was made", ""] + [f"- {escape_markdown(f'{key}: {value}')}" for key, value in meta.items()]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(map(escape_markdown, cells)) + " |"


def to_json(runs: Sequence[RunAnalysis]) -> list[dict[str, Any]]:
    """Every number of the page, one object a run."""
    return [_run(run, name) for run, name in zip(runs, names_of(runs), strict=True)]


def _run(run: RunAnalysis, name: str) -> dict[str, Any]:
    accuracies, statistics = run.accuracies, run.statistics
    return {
        "name": name,
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
            "largest": run.stability.largest,
            "tau_mastery": run.stability.tau_mastery,
            "tau_certainty": run.stability.tau_certainty,
            "n": run.stability.n,
            "fewer": run.stability.fewer,
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
