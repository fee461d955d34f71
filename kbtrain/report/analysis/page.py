"""The analyses as one self-contained HTML page, as Markdown, and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbtrain.report.analysis.run import RunAnalysis
from kbtrain.report.analysis.sections import Section, names_of
from kbtrain.report.analysis.tau_sweep import TauSweep
from kbtrain.report.label_statistics import INDICATORS
from kbtrain.report.page import escape_markdown

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
    """The same tables and texts; the figures stand in the page only."""
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
        "split": run.split,
        "counts": dict(sorted(run.counts.items())),
        "figure_1": {
            "n": accuracies.n,
            "left_out": accuracies.left_out,
            "conditions": {condition: _numbers(found) for condition, found in accuracies.conditions.items()},
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
        "least_certain": [dataclasses.asdict(found) for found in run.least_certain.found()],
        "sampling": dict(run.meta),
    }


def _numbers(found: Any) -> dict[str, Any]:
    """The fields of a tally; running means as mean, interval and n."""
    made: dict[str, Any] = {}
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        is_mean = hasattr(value, "squares")
        made[field.name] = {"mean": value.mean, "interval": value.interval, "n": value.n} if is_mean else value
    if hasattr(found, "greedy"):
        made["greedy"] = found.greedy
    return made
