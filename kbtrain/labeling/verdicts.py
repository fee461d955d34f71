"""Stored verdicts of a judge, one record a question: made once, read for labels and for end-to-end scores.

Labels, verdicts or evidence are read beside their questions in one pass, without holding either in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kbtrain.answers import grading
from kbtrain.answers.grading import Verdicts, rules_of
from kbtrain.answers.words import text_key
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists, script_of
from kbtrain.io.provenance import check_current, meta_of
from kbtrain.io.store import SampleStore
from kbtrain.questions.checks import read_questions
from kbtrain.records import CONDITIONS, Evidence, Label, Question

if TYPE_CHECKING:
    from kbtrain.labeling.judges import Judge


@dataclass(frozen=True)
class QuestionVerdicts:
    """Key of an answer (:func:`text_key`) -> right, wrong, or None (the judge abstained); no empty answers."""

    question_id: str
    right: dict[str, bool | None]


def check_answers(path: Path, run: str) -> None:
    """Raise :class:`UserError` for a store without answers of this run."""
    with SampleStore(path, read_only=True) as store:
        store.run_meta(run)
        if not store.counts(run):
            raise UserError(f"{at(path)}: no answer of run '{run}' to judge; run data_gen/sample.py first")


def distinct_answers(store: SampleStore, run: str, question: Question) -> dict[str, str]:
    """Key of an answer -> its first spelling, over all conditions, greedy answers included."""
    texts: dict[str, str] = {}
    for stored in filter(None, (store.get(run, question.id, condition) for condition in CONDITIONS)):
        for answer in stored.answers():
            if not grading.is_empty(answer.text):
                texts.setdefault(text_key(answer.text), answer.text)
    return texts


def judge_answers(
    store: SampleStore,
    run: str,
    questions: Iterable[Question],
    judge: Judge,
    batch: int,
    known_verdicts: Callable[[Question], grading.Verdicts] = lambda question: {},
) -> Iterator[QuestionVerdicts]:
    """Verdicts on every distinct answer, in the questions' order, those of ``batch`` answers or questions at once.

    ``known_verdicts``: what the same judge has said of answers to a question, of this run or another; it stays, and
    none of them is judged again. Multiple choice has none: it keeps its own rule
    (:func:`kbtrain.answers.grading.graded`).
    """
    waiting: list[_WaitingVerdict] = []
    for question in questions:
        texts = {} if question.grading == "option" else distinct_answers(store, run, question)
        stored = known_verdicts(question)
        new = {key: text for key, text in texts.items() if key not in stored}
        waiting.append(_WaitingVerdict(question, new, stored))
        if len(waiting) >= batch or sum(len(entry.answers) for entry in waiting) >= batch:
            yield from _judge(waiting, judge)
            waiting = []
    yield from _judge(waiting, judge)


class _WaitingVerdict(NamedTuple):
    question: Question
    answers: dict[str, str]  # to be judged: key of an answer -> its first spelling
    said: grading.Verdicts


def _judge(waiting: list[_WaitingVerdict], judge: Judge) -> Iterator[QuestionVerdicts]:
    cases = [(entry.question, text) for entry in waiting if entry.question.answers for text in entry.answers.values()]
    judged = iter(judge.judge(cases) if cases else [])
    for question, answers, known_verdicts in waiting:
        # without a gold answer there is nothing to compare with
        verdicts = {key: next(judged) if question.answers else None for key in answers}
        yield QuestionVerdicts(question.id, {**known_verdicts, **verdicts})


def count_verdicts(verdicts: Iterable[QuestionVerdicts], questions: Iterable[Question]) -> Counter[str]:
    """Of all questions and their verdicts: ``answers``, ``right`` and ``abstained`` (of distinct answers), and
    ``choice_questions``."""
    counts = Counter[str]()
    for record, question in zip(verdicts, questions, strict=True):
        said = Counter(record.right.values())
        counts.update(answers=said.total(), right=said[True], abstained=said[None])
        counts.update(["choice_questions"] if question.grading == "option" else [])
    return counts


R = TypeVar("R", Label, Evidence, QuestionVerdicts)


class Aligned(Generic[R]):
    """A file of records in the order of the questions, read beside them; it may leave questions out."""

    def __init__(self, kind: type[R], path: Path | str | None) -> None:
        self._path = path or ""  # None: no records
        self._records: Iterator[tuple[int, R]] = iter(()) if path is None else jsonl.read_numbered(kind, path)
        self._line = 0
        self._next: R | None = None
        self._advance()

    def record_of(self, question: Question) -> R | None:
        """The question's record, or None. Raises :class:`UserError` for a label of another split."""
        record: R | None = self._next
        if record is None or record.question_id != question.id:
            return None
        if isinstance(record, Label) and record.split != question.split:
            what = f"question '{question.id}' is in {question.split} now, its label says {record.split}"
            raise UserError(f"{at(self._path, self._line, 'split')}: {what}; run data_gen/label.py again")
        self._advance()
        return record

    def finish(self) -> None:
        """Raise :class:`UserError` if a record is left whose question did not come."""
        if self._next is not None:
            what = f"question '{self._next.question_id}' is missing, repeated or out of order in the questions file"
            raise UserError(f"{at(self._path, self._line, 'question_id')}: {what}; run the stage that wrote this again")

    def _advance(self) -> None:
        self._line, self._next = next(self._records, (0, None))


def verdicts_on(verdicts: Aligned[QuestionVerdicts], question: Question) -> Verdicts:
    """The judge's verdicts on the question's answers."""
    record = verdicts.record_of(question)
    return {} if record is None else record.right


Row = tuple[Question, Label | None, Evidence | None]


def side_by_side(questions: Path, labels: Path | None, evidence: Path | None) -> Iterator[Row]:
    """Each question with its label and its evidence, where files of them are given."""
    label_file, evidence_file = Aligned(Label, labels), Aligned(Evidence, evidence)
    for _, question in read_questions(questions):
        yield question, label_file.record_of(question), evidence_file.record_of(question)
    label_file.finish()
    evidence_file.finish()


ByQuestion = Mapping[str, Verdicts]


def grading_sources(run: Path) -> tuple[Path, Path, Path]:
    """Files of a run folder that its labels and outcomes depend on, if these note them."""
    return run / "questions.jsonl", run / "samples.db", run / "verdicts.jsonl"


def check_rules(path: Path, rules: Mapping[str, Any], questions: Path) -> None:
    """Raise :class:`UserError` for a file whose answers were graded by other ``rules`` than today's.

    A file that notes no rules passes, and a file without its questions beside it.
    """
    if "normalisation" not in rules or not path_exists(questions):
        return
    today = rules_of(jsonl.read(Question, questions))
    old = next((name for name, value in today.items() if rules.get(name) != value), None)
    if old is not None:
        raise UserError(
            f"{at(path)}: its answers were graded by an older rule ({old} {rules.get(old)}, today {today[old]}); run "
            f"{script_of(path)} again"
        )


def verdicts_file(run: Path) -> Path | None:
    """The verdicts of the judge that graded a run folder's labels; it grades outcomes too.

    None without labels, and for labels that each question's own rule graded.
    """
    judged = meta_of(run / "labels.jsonl").get("label_rule", {}).get("judge")
    return run / "verdicts.jsonl" if judged else None


def read_run_verdicts(run: Path) -> ByQuestion | None:
    """The verdicts of :func:`verdicts_file` by question.

    Raises :class:`UserError` for a file that was changed, and for verdicts on other questions.
    """
    if (path := verdicts_file(run)) is None:
        return None
    check_current(path, run / "questions.jsonl")
    return {record.question_id: record.right for record in jsonl.read(QuestionVerdicts, path)}
