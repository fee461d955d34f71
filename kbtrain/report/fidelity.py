"""Report of gates on questions without accepted answers: searches skipped, and answers that then differ.

Each sentence speaks of fidelity to always searching. None says that an answer is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kbtrain.evaluation.fidelity import Changes, Fidelity
from kbtrain.prompts.kbm import query_text
from kbtrain.report.examples import Example, greedy_texts
from kbtrain.report.first_screen import closing_lines, subtitle
from kbtrain.report.page import page, render
from kbtrain.report.words import gate_name, percent, percent_interval
from kbtrain.show import COLOURS, new_figure
from kbtrain.show import render as render_svg

HEAD = ("gate", "searches skipped, %", "answers that differ, %", "skipped at random, %", "threshold")
SHOWN = 25  # changed answers on the page
UNKNOWN = "Whether an answer is right is not known: no accepted answer was read."


def sentences(row: Fidelity, candidates: int = 1) -> list[str]:
    """Figures of one gate: the news, the promise, its certainty, and what stays unknown.

    ``candidates``: gates among which dev chose this one.
    """
    name, limit = gate_name(row.gate), percent(row.limit)
    never = f"Without any search {percent(row.changed_never)} % of the {row.n} answers differ from those with passages."
    if row.dev_skipped <= 0:
        return [
            f"Always search: on {row.n_dev} dev questions {name} can skip no search with at most {limit} % of the "
            f"answers changed, with probability {1 - row.delta:g}.",
            never,
            UNKNOWN,
        ]
    best = f" {name} is the best of {candidates} gates on dev, which the promise does not count." * (candidates > 1)
    yes, no = ("Yes, on", "") if row.certain else ("Not shown by", ", and chance may do as well")
    return [
        f"{name} skips {percent(row.skipped.mean)} % of the searches, and {percent(row.changed.mean)} % "
        f"{percent_interval(row.changed)} of the answers differ from always searching.",
        f"Promised for new questions of the same kind: at most {limit} % of the answers differ, with probability "
        f"{1 - row.delta:g}. The {row.n_dev} dev questions that promise it must have chosen nothing else of the gate."
        + best,
        f"{yes} these questions: as many searches skipped at random change {percent(row.at_random)} % of the answers"
        f"{no} (p = {row.p:.2g}).",
        never,
        UNKNOWN,
    ]


def beside_accuracy(row: Fidelity, accuracy: float, always: float) -> str:
    """A sentence for a report with accepted answers: the gate set to skip searches that change no answer."""
    if row.dev_skipped <= 0:
        return sentences(row)[0]
    return (
        f"Set to skip searches that change no answer, {gate_name(row.gate)} skips {percent(row.skipped.mean)} % of "
        f"the searches. Then {percent(row.changed.mean)} % {percent_interval(row.changed)} of the answers differ from "
        f"always searching (promised: at most {percent(row.limit)} %, with probability {1 - row.delta:g}), and "
        f"{percent(accuracy)} % of all answers are right ({percent(always)} % when always searching)."
    )


def changed_answers(
    run: Path, sampling_run: str, test: Changes, scores: Mapping[str, float], threshold: float
) -> list[Example]:
    """Questions whose search the gate skips although passages change the answer, lowest score first."""
    rows = zip(test.questions, test.differ, strict=True)
    chosen = [question for question, differs in rows if differs and scores[question.id] <= threshold]
    chosen.sort(key=lambda question: (scores[question.id], question.id))
    texts = greedy_texts(run, sampling_run, [question.id for question in chosen])
    return [
        Example(question.id, query_text(question), "", *pair, score=scores[question.id])
        for question, pair in zip(chosen, texts, strict=True)
    ]


def figure(test: Changes, scores: Mapping[str, Mapping[str, float]], gates: Sequence[Fidelity]) -> str:
    """Answers that differ against searches skipped, in percent: each gate's order of the test questions, and chance."""
    drawing, axes = new_figure(6.4, 3.4)
    changed = test.differs
    for colour, gate in zip(("blue", "orange", "green", "red", "purple"), gates, strict=False):
        order = np.argsort([scores[gate.gate][question.id] for question in test.questions], kind="stable")
        share = np.concatenate([[0.0], np.cumsum(changed[order])]) / len(order)
        axes.plot(np.linspace(0, 100, len(share)), 100 * share, color=COLOURS[colour], label=gate_name(gate.gate))
        axes.plot(100 * gate.skipped.mean, 100 * gate.changed.mean, "o", color=COLOURS[colour], markersize=5)
    axes.plot([0, 100], [0, 100 * float(changed.mean())], "--", color=COLOURS["grey"], label="at random")
    axes.set_xlabel("searches skipped, % of the questions")
    axes.set_ylabel("answers that differ, %")
    axes.legend(frameon=False)
    return render_svg(drawing, "fidelity")


@dataclass(frozen=True)
class FidelityReport:
    """All that the two pages show; ``found``: the gate of the headline first."""

    title: str
    meta: Mapping[str, Any]
    test: Changes
    found: Sequence[Fidelity]
    changed: Sequence[Example]
    lines: Sequence[str]
    costs: Sequence[str]
    svg: str

    def values(self) -> dict[str, Any]:
        """For the templates."""
        first = self.found[0]
        return {
            "title": self.title,
            "subtitle": subtitle(dict(self.meta), self.test.questions),
            "sentences": [*sentences(first, len(self.found)), *self.costs],
            "certain": first.certain,
            "head": HEAD,
            "rows": [table_row(gate) for gate in self.found],
            "note": f"In percent of the {first.n} test questions, with 95 % intervals (Wilson). Each threshold skips "
            f"the most searches at which {first.n_dev} dev questions promise that at most {percent(first.limit)} % of "
            "the answers differ. An answer differs where the grading rule accepts neither of the two greedy answers "
            "with the other as the gold answer. Other words for the same count as different.",
            "changed": self.changed[:SHOWN],
            "n_changed": len(self.changed),
            "n": first.n,
            "lines": self.lines,
        }

    def html(self) -> str:
        """One self-contained page."""
        return page("fidelity.html.j2", svgs={"curve": self.svg}, **self.values())

    def markdown(self) -> str:
        """The same as Markdown."""
        return render("fidelity.md.j2", False, **self.values())


def table_row(gate: Fidelity) -> list[str]:
    """Cells under :data:`HEAD`."""
    return [
        gate_name(gate.gate),
        f"{percent(gate.skipped.mean)} {percent_interval(gate.skipped)}",
        f"{percent(gate.changed.mean)} {percent_interval(gate.changed)}",
        percent(gate.at_random),
        f"{gate.threshold:.4g}",
    ]


def closing_block(content: FidelityReport, report: Path, use: str) -> list[str]:
    """Lines for a terminal, as after an evaluation with accepted answers."""
    first, cost = content.found[0], content.costs[0] if content.costs else "-"
    texts = sentences(first, len(content.found))
    more_needed = (
        f"the gate always searches: no threshold keeps the promise on {first.n_dev} dev questions; collect twice "
        "as many, or allow more changes (kbtrain run fidelity --max-change)"
    )
    return closing_lines(
        subtitle(dict(content.meta), content.test.questions),
        f"{percent(first.changed_never)} % of the answers change",
        "no answer changes; which of them are right is not known: no accepted answer was read",
        texts[0],
        texts[2] if first.dev_skipped > 0 else more_needed,
        cost,
        f"{use}open {report.resolve()}",
    )
