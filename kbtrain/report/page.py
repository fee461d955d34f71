"""The report as one self-contained HTML page and as Markdown, from the stored results of a run folder.

Pages have inline styles and one script, which the page's own policy allows by its hash. For readers without a browser
the main gate is also measured on each part of the questions (data set, relation, hops, popularity).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np

from kbtrain.evaluation.groups import GroupRow, JudgedQuestions, group_rows
from kbtrain.evaluation.results import GateResult, Results
from kbtrain.evaluation.savings import Saving
from kbtrain.labeling.distribution import EFFECTS, INDICATORS, INTERVALS, LabelStatistics
from kbtrain.records import CONDITIONS
from kbtrain.report import curves, figures, first_screen, summary, tables, words
from kbtrain.report.curves import Band
from kbtrain.report.examples import TELLING, TEXT, ExampleKind, Selection
from kbtrain.report.first_screen import FirstScreen
from kbtrain.report.summary import Bills
from kbtrain.show import number, p_value

if TYPE_CHECKING:
    from jinja2 import Environment


def cell(value: object) -> str:
    """A value of the meta data as short text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FILTERS = {
    "number": number, "p_value": p_value, "md": tables.escape_markdown, "cell": cell, "percent": words.percent,
    "points": words.points, "interval": words.points_interval,
}  # fmt: skip


def split_parts(selection: Selection | None, gate: GateResult | None) -> dict[str, list[GroupRow]]:
    """A gate's rows by every dimension of the selection; empty without a gate whose decisions are stored."""
    if selection is None or gate is None or gate.gate not in selection.decisions:
        return {}
    bits = {name: values.astype(np.float64) for name, values in selection.decisions.items() if name == gate.gate}
    clusters = list(map(str, selection.clusters)) or None
    judged = JudgedQuestions(selection.llm.astype(np.float64), selection.rag.astype(np.float64), bits, clusters)
    return {
        d.name: group_rows(judged, list(map(d.label, range(len(d.places)))), d.labels.index)
        for d in selection.dimensions
    }


_HERE = Path(__file__).parent


def render(template: str, autoescape: bool, naming: Callable[[str], str] = words.gate_name, **values: Any) -> str:
    """Fill a template of this folder; ``naming``: a gate's name in words. A missing value is an error."""
    text: str = _templates(autoescape).get_template(template).render(naming=naming, **values)
    return text


@functools.cache  # with the templates compiled, which takes longer than to fill them
def _templates(autoescape: bool) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=autoescape,  # noqa: S701 - off for Markdown alone, which escapes by its own filter
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    in_words = pass_context(lambda context, gate: context["naming"](gate))
    environment.filters |= {**FILTERS, "words": in_words}
    return environment


def page(template: str, **values: Any) -> str:
    """A page: everything escaped but our own SVG figures, nothing loaded, one script inline."""
    script = (_HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return render(template, True, script=script, script_hash=f"sha256-{digest}", **values)


@dataclass(frozen=True)
class Report:
    """All that the templates show. ``main_gate`` is the gate of the headline and of the gate's errors; ``pages`` are
    the gates' own pages, relative to the report; ``cut`` the main gate's threshold.
    """

    title: str
    results: Results
    statistics: LabelStatistics
    kinds: list[ExampleKind]
    main_gate: GateResult | None
    first: FirstScreen
    figures: dict[str, str] = field(default_factory=dict)
    selection: Selection | None = None
    pages: dict[str, str] = field(default_factory=dict)
    bills: Bills | None = None
    cut: float | None = None


def draw(
    results: Results,
    statistics: LabelStatistics,
    found_savings: Sequence[Saving] = (),
    main: str | None = None,
    shaded: Band | None = None,
) -> dict[str, str]:
    """All figures by name; those without data are skipped."""
    svgs: dict[str, str | None] = {"curves": curves.savings_figure(results, found_savings, main, shaded, "curves")}
    for indicator in INDICATORS:
        svgs[f"histogram-{indicator}"] = figures.histogram(statistics, indicator) if statistics.n else None
        for condition in CONDITIONS:
            svgs[f"panel-{indicator}-{condition}"] = figures.panel(statistics, indicator, condition)
    return {name: svg for name, svg in svgs.items() if svg is not None}


def render_html(report: Report) -> str:
    """One page: inline styles, figures and one script of its own, everything escaped, nothing loaded."""
    chosen = None if report.selection is None else report.selection.to_json()
    return page("report.html.j2", svgs=report.figures, selection_json=chosen, **_values(report))


def render_markdown(report: Report) -> str:
    """The same figures as tables; texts of questions are escaped as well."""
    return re.sub(r"\n{3,}", "\n\n", render("report.md.j2", False, **_values(report)))


def names_with_marks(gates: Sequence[GateResult]) -> Callable[[str], str]:
    """Names in words, behind those of gates that knew questions from training how many."""
    marks = {gate.gate: gate.seen.mark for gate in gates}
    return lambda name: words.gate_name(name) + marks.get(name, "")


def _values(report: Report) -> dict[str, Any]:
    results = report.results
    return {
        "naming": names_with_marks(results.gates),
        "report": report,
        "results": results,
        "meta": results.meta,
        "statistics": report.statistics,
        "head": summary.HEAD,
        "parts": split_parts(report.selection, report.main_gate),
        "rows": [summary.row(gate) for gate in results.gates],
        "scored": [gate for gate in results.gates if gate.threshold_rule is not None],
        "caption": summary.caption(results),
        "drawn": summary.bootstrap_units(results.meta),
        "verdicts": summary.verdicts(results, words.gate_name),
        "first": report.first,
        "first_head": first_screen.HEAD,
        "five_head": first_screen.FIVE_HEAD,
        "telling": [kind for kind in report.kinds if kind.name in TELLING and kind.examples],
        "interval": words.points_interval,
        "kind": summary.KIND,
        "conditions": [c for c in CONDITIONS if c in results.conditions],
        "condition_names": figures.NAMES,
        "indicators": INDICATORS,
        "effects": EFFECTS,
        "intervals": range(INTERVALS),
        "plain": {key: value for key, value in results.meta.items() if not isinstance(value, dict | list)},
        "whole": json.dumps(results.meta, ensure_ascii=False, indent=1),
    }


def render_gate(
    report: Report,
    gate: GateResult,
    errors: Sequence[ExampleKind],
    svgs: dict[str, str],
    sentences: Sequence[str],
    **decided: Any,
) -> str:
    """A gate's own page: its decisions, its scores, its calibration, and its worst errors side by side.

    ``sentences``: those on what is saved; ``decided``: the threshold, its ``rule``, ``fourfold`` counts and
    ``metrics`` of eval/classify.py.
    """
    return page(
        "gate.html.j2",
        svgs=svgs,
        naming=names_with_marks(report.results.gates),
        title=report.title,
        gate=gate,
        subtitle=report.first.subtitle,
        said=sentences,
        errors=errors,
        dimensions=report.selection.dimensions if report.selection else [],
        pages={name: PurePosixPath(target).name for name, target in report.pages.items()},
        positive=figures.POSITIVE,
        limit=TEXT,
        **decided,
    )
