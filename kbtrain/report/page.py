"""The report as one self-contained HTML page and as Markdown, from what is stored in the run folder."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kbtrain.metrics.results import GateResult
from kbtrain.records import CONDITIONS
from kbtrain.report import figures, summary
from kbtrain.report.examples import Kind
from kbtrain.report.label_statistics import EFFECTS, INDICATORS, INTERVALS, LabelStatistics
from kbtrain.report.results import Results
from kbtrain.report.text_table import number, signed

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Report:
    """All that the templates show. ``main_gate`` is the gate of the headline and of the gate's errors."""

    title: str
    results: Results
    statistics: LabelStatistics
    kinds: list[Kind]
    main_gate: GateResult | None
    figures: dict[str, str] = field(default_factory=dict)


def draw(results: Results, statistics: LabelStatistics) -> dict[str, str]:
    """All figures by name; those without data are left out."""
    found: dict[str, str | None] = {"curve": figures.accuracy_curve(results.gates)}
    for indicator in INDICATORS:
        found[f"histogram-{indicator}"] = figures.histogram(statistics, indicator) if statistics.n else None
        for condition in CONDITIONS:
            found[f"panel-{indicator}-{condition}"] = figures.panel(statistics, indicator, condition)
    return {name: svg for name, svg in found.items() if svg is not None}


def headline(results: Results, gate: GateResult | None) -> str:
    """What the main gate achieves, in one sentence, beside everything it must be measured by."""
    if gate is None:
        return "No gate with a learnt score was evaluated."
    named = {g.gate: g for g in results.gates}
    beside = [
        f"{text} {number(named[name].accuracy)} with {named[name].retrieval_ratio:.1%}"
        for name, text in (("llm_only", "LLM-only"), ("all_rag", "All-RAG"), ("oracle", "the oracle"))
        if name in named
    ]
    return (
        f"{gate.gate} retrieves for {gate.retrieval_ratio:.1%} of the {gate.n} questions, and {number(gate.accuracy)} "
        f"of all answers are right. Random at that ratio: {number(gate.random_accuracy)} (difference "
        f"{signed(gate.delta_vs_random.mean)}, 95 % interval {summary.interval(gate.delta_vs_random)}); "
        f"{'; '.join(beside)}."
    )


def render_html(report: Report) -> str:
    """One page: inline styles and figures, everything escaped, no script, nothing loaded."""
    from markupsafe import Markup

    svgs = {name: Markup(svg) for name, svg in report.figures.items()}
    return _render("report.html.j2", report, autoescape=True, svgs=svgs)


def render_markdown(report: Report) -> str:
    """The same figures as tables; texts of questions are escaped as well."""
    text = _render("report.md.j2", report, autoescape=False, svgs={})
    return re.sub(r"\n{3,}", "\n\n", text)


def _render(template: str, report: Report, autoescape: bool, svgs: Mapping[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"number": number, "signed": signed, "md": escape_markdown, "cell": _cell}
    results = report.results
    text: str = environment.get_template(template).render(
        report=report,
        results=results,
        meta=results.meta,
        statistics=report.statistics,
        svgs=svgs,
        head=summary.HEAD,
        rows=[summary.row(gate) for gate in results.gates],
        scored=[gate for gate in results.gates if gate.threshold_rule is not None],
        caption=summary.caption(results),
        verdicts=summary.verdicts(results),
        headline=headline(results, report.main_gate),
        interval=summary.interval,
        kind=summary.KIND,
        conditions=[c for c in CONDITIONS if c in results.conditions],
        condition_names=figures.NAMES,
        indicators=INDICATORS,
        effects=EFFECTS,
        effect_colours=figures.EFFECT_COLOURS,
        intervals=range(INTERVALS),
        plain={key: value for key, value in results.meta.items() if not isinstance(value, dict | list)},
        whole=json.dumps(results.meta, ensure_ascii=False, indent=1),
    )
    return text


def escape_markdown(text: object) -> str:
    """Text that a Markdown reader shows as it is: no tag, no emphasis, no link, no new table cell or line."""
    escaped = re.sub(r"([\\`*\[\]#|~]|(?<!\w)_|_(?!\w))", r"\\\1", html.escape(str(text), quote=False))
    return escaped.replace("\r", "").replace("\n", "<br>")


def _cell(value: object) -> str:
    """A value of the meta data as short text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
