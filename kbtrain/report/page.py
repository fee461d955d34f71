"""The report as one self-contained HTML page and as Markdown, from the stored results of a run folder.

Pages have inline styles and one script, which the page's own policy allows by its hash. For readers without a browser
the main gate is also measured on each part of the questions (source, data set, relation, hops).
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kbtrain.evaluation.cost import Bills
from kbtrain.evaluation.results import GateResult, Results
from kbtrain.rag.seakr_traces import Trace, summarise
from kbtrain.records import CONDITIONS
from kbtrain.report import first_screen, summary, tables, words
from kbtrain.report.examples import TEXT, ExampleKind, PartRow
from kbtrain.report.first_screen import FirstScreen
from kbtrain.show import number, p_value

if TYPE_CHECKING:
    from jinja2 import Environment


def cell(value: object) -> str:
    """A value of the metadata as short text."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


FILTERS = {
    "number": number, "p_value": p_value, "md": tables.escape_markdown, "cell": cell, "percent": words.percent,
    "points": words.points, "interval": words.points_interval, "threshold": words.threshold_text, "area": words.area,
}  # fmt: skip


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
    """All that the templates show. ``main_gate`` is the gate of the headline; ``kinds``: questions that tell what it
    does; ``parts``: its rows on parts of the questions; ``curves``: an SVG of all gates; ``pages`` are the gates' own
    pages, relative to the report."""

    title: str
    results: Results
    main_gate: GateResult | None
    first: FirstScreen
    kinds: list[ExampleKind]
    parts: dict[str, list[PartRow]]
    curves: str
    pages: dict[str, str]
    bills: Bills | None = None


def render_report(report: Report) -> tuple[str, str]:
    """The page, and the same figures as tables in Markdown; texts of questions are escaped in both."""
    results = report.results
    values: dict[str, Any] = {
        "naming": names_with_marks(results.gates), "report": report, "results": results, "meta": results.meta,
        "head": summary.HEAD, "rows": [summary.row(gate) for gate in results.gates],
        "scored": [gate for gate in results.gates if gate.threshold_rule is not None],
        "caption": summary.caption(results), "drawn": summary.bootstrap_units(results.meta),
        "verdicts": summary.verdicts(results, words.gate_name), "first": report.first, "first_head": first_screen.HEAD,
        "five_head": first_screen.FIVE_HEAD, "interval": words.points_interval, "kind": summary.KIND,
        "conditions": [c for c in CONDITIONS if c in results.conditions], "condition_names": words.CONDITION_NAMES,
        "plain": {key: value for key, value in results.meta.items() if not isinstance(value, dict | list)},
        "whole": json.dumps(results.meta, ensure_ascii=False, indent=1),
    }  # fmt: skip
    markdown = re.sub(r"\n{3,}", "\n\n", render("report.md.j2", False, **values))
    return page("report.html.j2", **values), markdown


def names_with_marks(gates: Sequence[GateResult]) -> Callable[[str], str]:
    """Names in words, behind those of gates that knew questions from training how many."""
    marks = {gate.gate: gate.seen.mark for gate in gates}
    return lambda name: words.gate_name(name) + marks.get(name, "")


def render_gate(
    report: Report,
    gate: GateResult,
    errors: Sequence[ExampleKind],
    scores: str,
    sentences: Sequence[str],
    **decided: Any,
) -> str:
    """A gate's own page: its decisions, its scores, and its worst errors side by side.

    ``scores``: an SVG; ``sentences``: those on what is saved; ``decided``: the threshold, its ``rule``, ``fourfold``
    counts, and what it ``saves``.
    """
    return page(
        "gate.html.j2", scores=scores, naming=names_with_marks(report.results.gates), title=report.title, gate=gate,
        subtitle=report.first.subtitle, said=sentences, errors=errors,
        pages={name: PurePosixPath(target).name for name, target in report.pages.items()}, limit=TEXT, **decided,
    )  # fmt: skip


def render_traces(traces: Sequence[Trace], title: str, limit: int = 200) -> str:
    """SeaKR's traces as a page; questions beyond ``limit`` are only counted in the summary, which the page states."""
    return render(
        "traces.html.j2",
        autoescape=True,
        title=title,
        traces=traces[:limit],
        left_out=max(0, len(traces) - limit),
        summary=summarise(traces),
        threshold=traces[0].threshold,
        method=traces[0].method,
        shown=200,  # characters of a document that are not folded away
    )
