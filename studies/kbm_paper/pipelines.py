"""Pipelines (SeaKR's loops) beside stored answers, on the same questions: accuracy, EM, F1, and each cost.

A gate only chooses between two stored answers; a pipeline writes its own and searches as often as it likes. So every
gate is cut to as many searches as the pipeline made, at most one a question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from kbtrain.answers.grading import exact_match, is_correct, token_f1
from kbtrain.answers.thoughts import is_left_out
from kbtrain.arrays import Floats
from kbtrain.evaluation.scores import NOTHING, ByGate, Seen, StoredScores, seen_of
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.metrics.significance import Delta, interval, resampled_means
from kbtrain.rag.seakr_traces import FOLDER, Trace, grades
from kbtrain.records import Condition, Evidence, Question, Sample
from kbtrain.report.tables import Column, Table, Value, as_text
from kbtrain.report.words import gate_name, points_interval

COSTS = ("searches", "passages", "requests", "samples", "tokens", "seconds")
DRAWS = 5_000
SEED = 20_243


@dataclass(frozen=True)
class PipelineRow:
    """One way to answer the pipeline's questions. ``spent``: totals; seconds only where they were measured.

    ``f1_minus`` and ``accuracy_minus``: the method's figure minus this row's, paired 95 % bootstrap interval; None
    for the method itself. ``seen``: test questions that a gate's training knew.
    """

    name: str
    n: int
    accuracy: float
    exact_match: float
    f1: float
    searched: float
    spent: dict[str, float]
    accuracy_minus: Delta | None = None
    f1_minus: Delta | None = None
    seen: Seen = NOTHING


@dataclass(frozen=True)
class PipelineResult:
    """A pipeline and its reference rows; ``left_out`` of its questions have no stored answers in this evaluation (all
    of them: there are no rows).
    """

    method: str
    left_out: int
    rows: list[PipelineRow]


@dataclass
class _Row:
    """Figures of each question: correct, exact match, F1, searched; totals of costs, and of stored answers each
    question's own."""

    name: str
    table: Floats  # (n, 4)
    spent: dict[str, float] = field(default_factory=dict)
    each: dict[str, Floats] = field(default_factory=dict)  # (n,)

    def row(self, accuracy: Delta | None = None, f1: Delta | None = None) -> PipelineRow:
        """The means; ``accuracy`` and ``f1``: the method's minus these."""
        right, exact, overlap, searched = (float(value) for value in self.table.mean(axis=0))
        return PipelineRow(self.name, len(self.table), right, exact, overlap, searched, self.spent, accuracy, f1)


@dataclass(frozen=True)
class Alternatives:
    """The comparison of a pipeline: the questions' stored answers of a ``run``, and gates' scores.

    ``spent``: a gate's own requests, samples, tokens and seconds per question; ``hits``: number of passages in a
    question's ``rag`` prompt; ``entities``: the one of each question, which intervals draw with all its questions
    (None: they draw questions).
    """

    questions: Mapping[str, Question]
    store: SampleStore
    run: str
    scores: ByGate
    spent: Mapping[str, Mapping[str, float]]
    hits: Mapping[str, int]
    entities: Mapping[str, str] | None = None


def measure_pipeline(name: str, traces: Sequence[Trace], others: Alternatives) -> PipelineResult:
    """Rows for the pipeline, LLM only, one-step RAG, and every gate with a score for all of its questions.

    Traces are graded again, as stored answers are.
    """
    questions, store, run = others.questions, others.store, others.run
    pairs = [(t, _greedy(store, run, t.question_id, "llm"), _greedy(store, run, t.question_id, "rag")) for t in traces]
    both = [(t, llm, rag) for t, llm, rag in pairs if llm and rag and t.question_id in questions]
    if not both:
        return PipelineResult(name, len(traces), [])
    evaluated = [questions[t.question_id] for t, _, _ in both]
    regraded = [replace(t, **grades(q, t.answer)) for q, (t, _, _) in zip(evaluated, both, strict=True)]
    llm = _stored_answers("llm_only", evaluated, [answer for _, answer, _ in both], None)
    rag = _stored_answers("one_step_rag", evaluated, [answer for _, _, answer in both], others.hits)
    method = _Row(name, np.array([(t.correct, t.exact_match, t.f1, t.retrieved) for t in regraded], dtype=np.float64))
    method.spent = {cost: float(sum(getattr(t.spent, cost) for t in regraded)) for cost in COSTS}
    searches = min(len(regraded), round(method.spent["searches"]))
    gated = [
        _gated(gate, [by_question[q.id] for q in evaluated], searches, llm, rag, others.spent.get(gate, {}))
        for gate, by_question in others.scores.items()
        if all(q.id in by_question for q in evaluated)
    ]
    clusters = None if others.entities is None else [others.entities[q.id] for q in evaluated]
    return PipelineResult(name, len(traces) - len(regraded), _rows(method, [llm, rag, *gated], clusters))


def _greedy(store: SampleStore, run: str, question_id: str, condition: Condition) -> Sample | None:
    answers = store.get(run, question_id, condition)
    return None if answers is None or answers.greedy is None or is_left_out(answers.greedy) else answers.greedy


def _stored_answers(
    name: str, questions: Sequence[Question], answers: Sequence[Sample], hits: Mapping[str, int] | None
) -> _Row:
    """Stored greedy answers of one condition; ``hits`` None: without retrieval."""
    searched = float(hits is not None)
    rows = [
        (is_correct(q, a.text), exact_match(a.text, q.answers), token_f1(a.text, q.answers), searched)
        for q, a in zip(questions, answers, strict=True)
    ]
    # searches, passages, requests, samples and tokens, in the order of COSTS
    costs = [(searched, (hits or {}).get(q.id, 0), 1, 0, a.n_tokens) for q, a in zip(questions, answers, strict=True)]
    each = dict(zip(COSTS, np.array(costs, dtype=np.float64).T, strict=False))
    return _Row(name, np.array(rows, dtype=np.float64), {cost: float(of.sum()) for cost, of in each.items()}, each)


def _gated(name: str, scores: Sequence[float], searches: int, llm: _Row, rag: _Row, costs: Mapping[str, float]) -> _Row:
    """RAG for the ``searches`` questions of the highest score (of equal ones the first), else the plain answer; its
    costs are those of the answers it chose, and its own."""
    n = len(scores)
    retrieve = np.zeros(n, dtype=bool)
    retrieve[np.argsort(-np.asarray(scores), kind="stable")[:searches]] = True
    spent = {cost: float(np.where(retrieve, rag.each[cost], llm.each[cost]).sum()) for cost in llm.each}
    for cost, each in ({"requests": 1.0} | dict(costs)).items():
        if cost in COSTS:
            spent[cost] = spent.get(cost, 0.0) + n * each
    return _Row(name, np.where(retrieve[:, None], rag.table, llm.table), spent)


def _rows(method: _Row, others: Sequence[_Row], clusters: Sequence[str] | None) -> list[PipelineRow]:
    tables = np.concatenate([way.table[:, [0, 2]] for way in (method, *others)], axis=1)
    accuracy, f1, *means = resampled_means(tables, DRAWS, SEED, clusters).T
    differences = zip(others, means[::2], means[1::2], strict=True)
    return [method.row(), *(way.row(interval(accuracy - a), interval(f1 - f)) for way, a, f in differences)]


def traces_minus(traces: Sequence[Trace], others: Sequence[Trace]) -> tuple[Delta, Delta]:
    """Right answers and F1 of ``traces`` minus those of ``others``, over the questions that both have answered and that
    can be graded; paired 95 % bootstrap intervals. Raises ``ValueError`` without such a question.
    """
    of_other = {trace.question_id: trace for trace in others}
    pairs = [(row, of_other[row.question_id]) for row in traces if row.answers and row.question_id in of_other]
    if not pairs:
        raise ValueError("no question that both have answered")
    table = np.array([[row.correct - other.correct, row.f1 - other.f1] for row, other in pairs], dtype=np.float64)
    right, f1 = resampled_means(table, DRAWS, SEED).T
    return interval(right), interval(f1)


def pipelines_of_run(
    run: Path,
    sampling_run: str,
    questions: Sequence[Question],
    stored: StoredScores,
    clusters: Sequence[str] | None = None,
) -> list[PipelineResult]:
    """Results of every pipeline with traces in a run folder, beside its gates' scores; ``clusters`` of the questions,
    which intervals draw as a whole (None: they draw questions).

    All rows are graded by each question's own rule: a judge's verdicts are about stored answers alone.
    """
    pipelines = {path.stem: list(jsonl.read(Trace, path)) for path in sorted((run / FOLDER).glob("*.jsonl"))}
    if not pipelines:
        return []
    by_id = {question.id: question for question in questions}
    hits = {evidence.question_id: len(evidence.hits) for evidence in jsonl.read(Evidence, run / "evidence.jsonl")}
    timed = [gate for gate, by_split in stored.meta.get("seconds_per_question", {}).items() if "test" in by_split]
    spent = {gate: {**(stored.took(gate, "spent_per_question") or {})} for gate in stored.by_gate}
    spent |= {gate: {**spent[gate], "seconds": float(stored.took(gate) or 0.0)} for gate in timed if gate in spent}
    entities = None if clusters is None else dict(zip(by_id, clusters, strict=True))
    with SampleStore(run / "samples.db", read_only=True) as store:
        store.run_meta(sampling_run)  # raises for an unknown run: it would look like one without answers
        others = Alternatives(by_id, store, sampling_run, stored.by_gate, spent, hits, entities)
        measured = [measure_pipeline(name, traces, others) for name, traces in pipelines.items() if traces]
    return [
        replace(part, rows=[replace(row, seen=seen_of(stored.meta, row.name)) for row in part.rows])
        for part in measured
    ]


def pipelines_text(results: Sequence[PipelineResult], drawn: str) -> str:
    """A table for each pipeline, for a terminal; ``drawn``: what its intervals' bootstrap draws."""
    tables = [method_table(result, drawn) for result in results]
    return "\n\n".join(as_text(table) if table.rows else table.note for table in tables)


_MINUS = (Column("method minus this", "points"), Column("95 % interval", "text"))


METHOD_COLUMNS = [
    *(Column("answers", "text"), Column("accuracy"), *_MINUS, Column("EM"), Column("F1"), *_MINUS, Column("retrieved")),
    *(Column(name, "count") for name in ("searches", "passages", "LLM requests", "samples", "generated tokens")),
    Column("seconds", "count"),
]


def method_table(result: PipelineResult, drawn: str) -> Table:
    """A pipeline beside stored answers, ``drawn``: what its intervals' bootstrap draws.

    Without rows where none of its questions has stored answers: the note says so.
    """
    name = gate_name(result.method)
    if not result.rows:
        note = f"{name}: none of its {result.left_out} questions has stored answers here."
        return Table(result.method, name, note, METHOD_COLUMNS, [])
    left_out = f"; {result.left_out} more have no stored answers and are skipped" if result.left_out else ""
    note = (
        f"{name} beside stored answers to the same {result.rows[0].n} questions{left_out}. Greedy answers, "
        f"graded by each question's own rule; shares and "
        f"F1 in percent, differences in points, with 95 % intervals (paired bootstrap over {drawn}, {DRAWS} draws; not "
        "corrected for the number of rows). Gates search for as many questions as the method made searches, at most "
        "one each, those of the highest scores first. Costs are of all questions together; seconds: of the method all "
        "its work, of a gate its scores alone, for stored answers were not timed."
    )
    return Table(result.method, name, note, METHOD_COLUMNS, [_method_row(row) for row in result.rows])


def _method_row(row: PipelineRow) -> list[Value]:
    def minus(value: Delta | None) -> list[Value]:
        return [None, None] if value is None else [value.mean, points_interval(value)]

    costs = [f"{row.spent[cost]:.{2 * (cost == 'seconds')}f}" if cost in row.spent else None for cost in COSTS]
    return [
        gate_name(row.name) + row.seen.mark, row.accuracy, *minus(row.accuracy_minus), row.exact_match, row.f1,
        *minus(row.f1_minus), row.searched, *costs,
    ]  # fmt: skip
