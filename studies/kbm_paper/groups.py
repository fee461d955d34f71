"""Groups of the KBM paper's tables: knowledge frequency counted in a corpus, and who decides for whose answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from several_runs import decision

from kbm_paper.rows import Cell, GroupRow
from kbtrain.answers.forms import readings
from kbtrain.arrays import Floats
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.decisions import DevRule
from kbtrain.evaluation.outcomes import Correctness
from kbtrain.evaluation.run_folder import RunFolder
from kbtrain.metrics.significance import Delta, interval
from kbtrain.records import Passage, Question

_LONGEST = 8  # words of a gold answer; longer ones are sentences, and no corpus repeats them


def answer_counts(questions: Sequence[Question], passages: Iterable[Passage]) -> list[int | None]:
    """Number of passages that contain one of a question's gold answers, word by word as grading compares them, for each
    question; the passages are streamed once.

    None for multiple choice (a letter is not knowledge) and for answers of more than eight words.
    """
    golds: dict[tuple[str, ...], list[int]] = {}
    for i, question in enumerate(questions):
        for words in _gold(question):
            golds.setdefault(words, []).append(i)
    lengths = sorted({len(words) for words in golds})
    counts = [0] * len(questions)
    for passage in passages:
        texts = [reading.split() for reading in readings(f"{passage.title} . {passage.text}")]
        matched = {
            i
            for text in texts
            for length in lengths
            for start in range(len(text) - length + 1)
            for i in golds.get(tuple(text[start : start + length]), ())
        }
        for i in matched:
            counts[i] += 1
    return [count if _gold(question) else None for question, count in zip(questions, counts, strict=True)]


def _gold(question: Question) -> list[tuple[str, ...]]:
    if question.form == "choice":
        return []
    split = [tuple(reading.split()) for text in question.answers for reading in readings(text)]
    return [words for words in split if 0 < len(words) <= _LONGEST]


def judge_questions(
    runs: Sequence[RunFolder], gates: Sequence[str], cut: DevRule, plug_in: Sequence[RunFolder] | None = None
) -> tuple[Correctness, dict[str, Floats]]:
    """Answers to the test questions of ``runs``, and the gates' decisions on them.

    ``plug_in``: run folders of another model whose gates, with thresholds chosen on their own dev answers, decide for
    ``runs``; the gate ``prompt`` remains the answering model's own, its threshold too (KBM, table 4). Raises
    :class:`UserError`.
    """
    correctness = oc.answers([o for run in runs for o in run.test.outcomes], cut.kind)
    decisions = {}
    for gate in gates:
        if plug_in is None:
            decisions[gate] = decision(runs, gate, cut).retrieve
        elif gate == "prompt":
            decisions[gate] = _model_by_model(runs, gate, cut)
        else:
            decisions[gate] = decision(plug_in, gate, cut, runs).retrieve
    return correctness, decisions


def _model_by_model(runs: Sequence[RunFolder], gate: str, cut: DevRule) -> Floats:
    """Each model's test questions under the threshold of its own dev questions, in the order of the runs."""
    models = np.array([run.model for run in runs for _ in run.test.outcomes])
    retrieve = np.zeros(len(models))
    for model in set(models.tolist()):
        retrieve[models == model] = decision([run for run in runs if run.model == model], gate, cut).retrieve
    return retrieve


def questions_of(runs: Sequence[RunFolder]) -> list[Question]:
    """All test questions with stored answers, run by run: the order of everything here."""
    return [question for run in runs for question in run.test.questions]


def mean_row(built: Sequence[tuple[GroupRow, dict[str, Floats]]]) -> GroupRow:
    """A row in which each group counts the same (KBM, figure 5: mean over all test sets). Gains are averaged draw by
    draw: the groups were drawn independently."""
    table = [row for row, _ in built]
    gates = {}
    for gate in table[0].gates:
        gain = np.mean([drawn[gate] for _, drawn in built], axis=0)
        gates[gate] = _mean_cell([row.gates[gate] for row in table], interval(gain))
    llm, rag = (float(np.mean([getattr(row, key) for row in table])) for key in ("llm_only", "all_rag"))
    return GroupRow("mean", sum(row.n for row in table), llm, rag, gates)


def _mean_cell(cells: Sequence[Cell], gain: Delta) -> Cell:
    def mean(key: str) -> float | None:
        values = [getattr(cell, key) for cell in cells if getattr(cell, key) is not None]
        return float(np.mean(values)) if values else None

    ratio, accuracy, random = (float(mean(key) or 0.0) for key in ("ratio", "accuracy", "random"))
    n_known = sum(cell.n_known for cell in cells)
    return Cell(ratio, accuracy, random, gain, n_known, mean("known"), mean("unknown"))


def ranked_within(values: Sequence[float | None], sets: Sequence[str]) -> list[float | None]:
    """Rank shares in (0, 1) within each data set, equal values alike: popularities of several sets have different units
    (page views, rank shares), and only their order can be compared."""
    ranks: list[float | None] = [None] * len(values)
    for name in set(sets):
        at = [i for i, value in enumerate(values) if value is not None and sets[i] == name]
        column = np.array([values[i] for i in at], dtype=np.float64)
        order = np.sort(column)
        below, upto = np.searchsorted(order, column, "left"), np.searchsorted(order, column, "right")
        for i, share in zip(at, (below + upto) / 2 / max(1, len(at)), strict=True):
            ranks[i] = float(share)
    return ranks


def quantile_groups(values: Sequence[float | None], parts: int) -> list[str | None]:
    """Groups of about equal size from low to high, named "1 (low)" ... "5 (high)"; equal values stay together."""
    numbers = np.array([value for value in values if value is not None], dtype=np.float64)
    if len(numbers) == 0:
        return [None] * len(values)
    cuts = np.unique(np.quantile(numbers, np.arange(1, parts) / parts))
    cuts = cuts[cuts < numbers.max()]  # the last group would be empty
    ends = {0: " (low)", len(cuts): " (high)"} if len(cuts) else {}
    return [
        None if value is None else f"{place + 1}{ends.get(place, '')}"
        for value in values
        for place in [0 if value is None else int(np.searchsorted(cuts, value, side="left"))]
    ]
