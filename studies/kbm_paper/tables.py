"""The KBM paper's tables 1 to 4 and figures 5 and 6 from run folders: rows, deciding gates, and layouts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kbm_paper.groups import answer_counts, judge_questions, mean_row, quantile_groups, questions_of, ranked_within
from kbm_paper.rows import GroupRow, group_rows
from kbtrain.errors import UserError
from kbtrain.evaluation.decisions import DevRule
from kbtrain.evaluation.outcomes import Resample, clusters_of, drawn_units
from kbtrain.evaluation.run_folder import RunFolder, seen_note
from kbtrain.io import jsonl
from kbtrain.metrics.significance import Delta
from kbtrain.records import Passage
from kbtrain.report.summary import bootstrap_units
from kbtrain.report.tables import Column, Table, Value
from kbtrain.report.words import by_rule

Layout = Literal["table1", "figure5", "table2", "table3", "figure6", "table4"]
PAPER_FILE = Path(__file__).with_name("kbm_paper.json")
TITLES: dict[Layout, str] = {
    "table1": "End to end by data set (KBM, table 1)",
    "figure5": "Accuracy without retrieval of what each gate takes for known and unknown (KBM, figure 5)",
    "table2": "By how fast the answer changes (KBM, table 2)",
    "table3": "Questions of two and more hops (KBM, table 3)",
    "figure6": "By knowledge frequency (KBM, figure 6)",
    "table4": "One model's gate for other models' answers (KBM, table 4)",
}
_LEGEND = {
    "A/E": "A/E: share of questions answered right under the gate (exact match or contains, as the data set asks)",
    "Rat": "Rat: share retrieved for",
    "Rnd": "Rnd: expected accuracy of a random gate at that ratio",
    "vs Rnd": "vs Rnd: A/E - Rnd with its 95 % interval (paired bootstrap)",
}
_PARTS: dict[Layout, tuple[str, ...]] = {
    "table1": ("A/E", "Rat", "Rnd", "vs Rnd"),
    "table2": ("Rat", "A/E", "vs Rnd"),
    "table3": ("Rat", "A/E", "vs Rnd"),
    "figure6": ("A/E", "Rat"),
    "table4": ("A/E", "Rat", "Rnd", "vs Rnd"),
}


def gate_table(layout: Layout, rows: Sequence[GroupRow], group: str, note: str = "") -> Table:
    """Tables 1 to 4 and figure 6: one row a group, some figures of each gate, LLM Only and All RAG at the end."""
    parts, gates = _PARTS[layout], list(rows[0].gates) if rows else []
    columns = [Column(group, "text"), Column("n", "count")]
    for gate in gates:
        for part in parts:
            name = f"{gate} {part}"
            columns += [Column(name, "points"), Column("95 %", "text")] if part == "vs Rnd" else [Column(name)]
    columns += [Column("LLM Only"), Column("All RAG")]
    body: list[list[Value]] = []
    for row in rows:
        values: list[Value] = [row.group, row.n]
        for gate in gates:
            cell = row.gates[gate]
            figures: dict[str, list[Value]] = {"A/E": [cell.accuracy], "Rat": [cell.ratio], "Rnd": [cell.random],
                       "vs Rnd": [cell.gain.mean, _interval(cell.gain)]}  # fmt: skip
            values += [value for part in parts for value in figures[part]]
        body.append([*values, row.llm_only, row.all_rag])
    legend = "; ".join(_LEGEND[part] for part in parts)
    return Table(layout, TITLES[layout], f"In percent. {legend}. {note}".strip(), columns, body)


def _interval(gain: Delta) -> str:
    return f"[{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"


def known_table(rows: Sequence[GroupRow], note: str = "") -> Table:
    """Figure 5: a row for each data set and gate."""
    columns = [Column("data set", "text"), Column("gate", "text"), Column("n known", "count"), Column("known"),
               Column("n unknown", "count"), Column("unknown"), Column("difference", "points")]  # fmt: skip
    body: list[list[Value]] = []
    for row in rows:
        for gate, cell in row.gates.items():
            both = cell.known is not None and cell.unknown is not None
            difference = (cell.known or 0.0) - (cell.unknown or 0.0) if both else None
            counts = cell.n_known, row.n - cell.n_known
            body.append([row.group, gate, counts[0], cell.known, counts[1], cell.unknown, difference])
    text = "Accuracy of the plain answers (LLM Only) in percent; known: the gate does not retrieve. A dash: none."
    return Table("figure5", TITLES["figure5"], f"{text} {note}".strip(), columns, body)


def with_paper(table: Table, model: str) -> Table:
    """The paper's figures beside kbtrain's for the columns and rows that it has, if ``model`` is the paper's."""
    printed = json.loads(PAPER_FILE.read_text(encoding="utf-8")).get(table.name)
    if printed is None or (printed["model"] is not None and printed["model"] != model.lower()):
        return table
    names = [column.name for column in table.columns]
    shared = [i for i, name in enumerate(printed["columns"]) if name in names]
    paper_rows = [printed["rows"].get(str(row[0]).lower()) for row in table.rows]
    if not any(paper_rows) or not shared:
        return table
    values = [[None if row is None else row[i] / 100 for i in shared] for row in paper_rows]
    return add_columns(table, [f"paper: {printed['columns'][i]}" for i in shared], values)


HEADS: dict[Layout, str] = {"table2": "change", "figure6": "frequency", "table4": "answers of"}
_NO_INTERVALS = ("figure5", "figure6")
_CHANGES = ("fast-changing", "slow-changing", "never-changing")
_BY = {
    "table2": "a kind of change (field fact_type, as FreshQA has)",
    "table3": "two or more hops (field hops)",
    "figure6": "a popularity; give a corpus to count the gold answers in",
}


@dataclass(frozen=True)
class Options:
    """Of a table: ``corpus`` (passages.jsonl) and ``bins`` are figure 6's; ``resample``: what intervals draw."""

    layout: Layout
    gates: tuple[str, ...]
    cut: DevRule
    corpus: Path | None = None
    bins: int = 5
    resample: Resample = "questions"


def lay_out(options: Options, runs: Sequence[RunFolder], plug_in: Sequence[RunFolder] | None = None) -> Table:
    """The table. Raises :class:`UserError` where the questions lack what it groups by."""
    if (options.layout == "table4") != (plug_in is not None):
        raise UserError("table4 and gate_runs belong together: the gates of one model decide for the answers of others")
    rule = options.cut.rule
    note = f"Model: {', '.join(dict.fromkeys(run.model for run in runs))}; thresholds {by_rule(rule)}."
    units = drawn_units(options.resample, questions_of(runs))
    note += "" if options.layout in _NO_INTERVALS else f" Intervals draw {bootstrap_units({'resample': units})}."
    note += seen_note([*runs, *(plug_in or ())], options.gates)
    names = _groups(options, runs)
    if not any(names):
        raise UserError(f"{options.layout}: no test question has {_BY[options.layout]}")
    clusters = clusters_of(options.resample, questions_of(runs))
    answers, decisions = judge_questions(runs, options.gates, options.cut, plug_in)
    built = group_rows(replace(answers, clusters=clusters), decisions, names, _in_order)
    table_rows = [row for row, _ in built]
    if options.layout in ("table1", "figure5") and len(built) > 1:
        table_rows.append(mean_row(built))
    left_out = sum(name is None for name in names)
    note += f" {left_out} of {len(names)} questions are in no row." if left_out else ""
    if options.layout == "figure5":
        return known_table(table_rows, note)
    table = gate_table(options.layout, table_rows, HEADS.get(options.layout, "data set"), note)
    return with_paper(table, runs[0].model)


def _in_order(name: str) -> tuple[int, int, str]:
    """Kinds of change as in the paper, groups by their number, everything else by name."""
    number = re.match(r"\d+", name)
    return (_CHANGES.index(name) if name in _CHANGES else len(_CHANGES), int(number[0]) if number else 0, name)


def _groups(options: Options, runs: Sequence[RunFolder]) -> list[str | None]:
    """The row of each test question."""
    questions = questions_of(runs)
    if options.layout == "table2":
        return [question.fact_type for question in questions]
    if options.layout == "table3":
        return [question.dataset if (question.hops or 0) >= 2 else None for question in questions]
    if options.layout == "figure6" and options.corpus is not None:
        return quantile_groups(answer_counts(questions, jsonl.read(Passage, options.corpus)), options.bins)
    if options.layout == "figure6":
        ranks = ranked_within([question.popularity for question in questions], [q.dataset for q in questions])
        return quantile_groups(ranks, options.bins)
    if options.layout == "table4":
        return [f"{question.dataset}, {run.model}" for run in runs for question in run.test.questions]
    return [question.dataset for question in questions]


def add_columns(table: Table, names: Sequence[str], values: Sequence[Sequence[Value]]) -> Table:
    """The table with further percent columns at its right (the paper's figures beside kbtrain's)."""
    columns = [*table.columns, *(Column(name) for name in names)]
    rows = [[*row, *more] for row, more in zip(table.rows, values, strict=True)]
    return Table(table.name, table.title, table.note, columns, rows)
