"""From run folders to one of the KBM paper's tables: which questions form its rows, whose gates decide."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kbtrain import jsonl
from kbtrain.errors import UserError
from kbtrain.evaluation.double_judgement import DoubleJudgement
from kbtrain.evaluation.groups import quantile_groups, rows
from kbtrain.evaluation.judged import Cut, judge, judge_double, questions_of
from kbtrain.evaluation.knowledge_frequency import answer_counts
from kbtrain.evaluation.run_folder import RunFolder
from kbtrain.evaluation.stored import read_scores
from kbtrain.records import Passage, Question
from kbtrain.report.kbm_tables import Layout, double_judgement_table, gate_table, known_table, with_paper
from kbtrain.report.tables import Table

HEADS: dict[Layout, str] = {"table2": "change", "figure6": "frequency", "table4": "answers of"}
_CHANGES = ("fast-changing", "slow-changing", "never-changing")
_BY = {
    "table2": "a kind of change (field fact_type, as FreshQA has)",
    "table3": "two or more hops (field hops)",
    "figure6": "a popularity; give a corpus to count the gold answers in",
}


@dataclass(frozen=True)
class Options:
    """Of a table: ``corpus`` (passages.jsonl) and ``bins`` are figure 6's."""

    layout: Layout
    gates: tuple[str, ...]
    cut: Cut
    corpus: Path | None = None
    bins: int = 5
    references: str = "scores_reference.jsonl"


def lay_out(options: Options, runs: Sequence[RunFolder], plug_in: Sequence[RunFolder] | None = None) -> Table:
    """The table. Raises :class:`UserError` where the questions lack what it groups by."""
    rule = options.cut.rule
    note = f"Model: {', '.join(dict.fromkeys(run.model for run in runs))}; thresholds by rule '{rule}' on dev."
    if options.layout == "figure8":
        return double_judgement_table(_double(options, runs), note)
    if (options.layout == "table4") != (plug_in is not None):
        raise UserError("table4 and gate_runs belong together: the gates of one model decide for the answers of others")
    names = _groups(options, runs)
    if not any(names):
        raise UserError(f"{options.layout}: no test question has {_BY[options.layout]}")
    judged = judge(runs, options.gates, options.cut, plug_in)
    found = rows(judged, names, _in_order, mean=options.layout in ("table1", "figure5"))
    left_out = sum(name is None for name in names)
    note += f" {left_out} of {len(names)} questions are in no row." if left_out else ""
    if options.layout == "figure5":
        return known_table(found, note)
    table = gate_table(options.layout, found, HEADS.get(options.layout, "data set"), note)
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
    if options.layout == "figure6":
        return quantile_groups(_frequencies(options, questions), options.bins)
    if options.layout == "table4":
        return [f"{question.dataset}, {run.model}" for run in runs for question in run.test.questions]
    return [question.dataset for question in questions]


def _frequencies(options: Options, questions: Sequence[Question]) -> Sequence[float | None]:
    if options.corpus is None:
        return [question.popularity for question in questions]
    return answer_counts(questions, jsonl.read(Passage, options.corpus))


def _double(options: Options, runs: Sequence[RunFolder]) -> list[tuple[str, DoubleJudgement]]:
    """Every run on its own: a row group for each."""
    found = []
    for run in runs:
        again = replace(run, scores=read_scores(run.path / options.references))
        name = ", ".join(dict.fromkeys(question.dataset for question in run.test.questions))
        gates = [gate for gate in options.gates if gate in again.scores]
        if not gates:
            raise UserError(f"{run.path / options.references}: no scores of {', '.join(options.gates)}")
        found += [(name, judge_double([run], [again], gate, options.cut)) for gate in gates]
    return found
