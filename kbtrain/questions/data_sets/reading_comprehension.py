"""Questions about passages: SQuAD and its Chinese kin; WebQA and SogouQA, with passages found in the web."""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.answers.grading import is_empty
from kbtrain.questions.base import Loaded, context, ids, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import first_key, rows_by_key, rows_under
from kbtrain.questions.reading.rows import SourceRecord, unique
from kbtrain.questions.reading.tables import PARQUET, any_rows
from kbtrain.records import Language, Passage

_FLAT = frozenset({"id", "title", "context", "question", "answers"})


def squad(file: DataFile, dataset: str = "squad", language: Language = "en") -> Iterator[Loaded]:
    """SQuAD 1.1 and 2.0 (Rajpurkar et al. 2016, 2018): ``{"data": [{"title", "paragraphs": [{"context", "qas":
    [QA]}]}]}``, QA: ``{"id", "question", "answers": [{"text"}], "is_impossible"}``. On the Hugging Face hub: ``{"id",
    "title", "context", "question", "answers": {"text": [...]}}``.

    Also CMRC 2018, DRCD and machine-translated SQuAD, in Chinese. The paragraph is the gold passage. Impossible
    questions (marked, or without answers) have ``gold`` "none".
    """
    # the hub's rows are flat
    flat = file.suffix == PARQUET or first_key(file) in {None, *_FLAT}
    flat_rows = ((row, row.text_or_empty("title"), row.text("context")) for row in any_rows(file))
    for row, title, text in flat_rows if flat else _nested_rows(file):
        passage = context(dataset, title.replace("_", " "), text)
        answers = unique(answer.gold_answer("text") for answer in row.rows("answers"))
        if row.has("is_impossible") and row.flag("is_impossible"):
            if any(answers):
                raise row.error("answers", "an impossible question has none")
            answers = ()
        yield load_row(row, file, dataset, (passage,), id=row.identifier("id"), text=row.text("question"),
                       answers=answers, language=language, gold_passages=(passage.id,) if answers else (),
                       gold="given" if answers else "none")  # fmt: skip


def _nested_rows(file: DataFile) -> Iterator[tuple[SourceRecord, str, str]]:
    """(question, its article's title, its paragraph) of the release."""
    for article in rows_under(file, "data"):
        title = article.text_or_empty("title")
        for paragraph in article.rows("paragraphs"):
            text = paragraph.text("context")
            for row in paragraph.rows("qas"):
                yield row, title, text


AnsweredPassages = list[tuple[Passage, tuple[str, ...]]]


def webqa(file: DataFile) -> Iterator[Loaded]:
    """WebQA (Li et al. 2016), its own files: ``{ID: {"question", "evidences": {ID: {"answer": [...], "evidence":
    ...}}}}`` ("no_answer" where a passage has none); or as circulated: ``[{"id", "question", "passages": [{"passage",
    "answer"}]}]``.

    The answers are those of all passages; passages with one are gold. None at all: ``gold`` "none".
    """
    for key, row in rows_by_key(file):
        name = key or row.identifier("id")
        passages = _evidences(row) if "evidences" in row.data else _circulated(row, "webqa")
        yield _of_passages(file, row, "webqa", name, row.text("question"), passages)


def sogouqa(file: DataFile) -> Iterator[Loaded]:
    """SogouQA (CIPS-SOGOU 2018), as WebQA is circulated, or the contest's own JSON Lines: ``{"query_id", "query",
    "answer", "passages": [{"passage_text"}]}``, where a passage is gold if it holds the answer.
    """
    for row in any_rows(file):
        if "query" not in row.data:
            passages = _circulated(row, "sogouqa")
            yield _of_passages(file, row, "sogouqa", row.identifier("id"), row.text("question"), passages)
            continue
        name, text, answer = row.identifier("query_id"), row.text("query"), row.gold_answer("answer")
        passages = []
        for content in [inner.text("passage_text") for inner in row.rows("passages")]:
            holds = not is_empty(answer) and answer in content
            passages.append((context("sogouqa", "", content), (answer,) if holds else ()))
        yield _of_passages(file, row, "sogouqa", name, text, passages, (answer,))


def _of_passages(
    file: DataFile,
    row: SourceRecord,
    dataset: str,
    name: str,
    text: str,
    answered: AnsweredPassages,
    answers: tuple[str, ...] = (),
) -> Loaded:
    answers = answers or unique(answer for _, its_answers in answered for answer in its_answers)
    passages = tuple(passage for passage, _ in answered)
    return load_row(row, file, dataset, passages, id=f"{dataset}/{name}", text=text, answers=answers, language="zh",
                    gold_passages=ids(tuple(passage for passage, its_answers in answered if its_answers)),
                    gold="given" if answers else "none")  # fmt: skip


def _evidences(row: SourceRecord) -> AnsweredPassages:
    inner = row.row("evidences")
    passages = []
    for name in inner.data:
        evidence = inner.row(name)
        answers = tuple(answer for answer in evidence.gold_answers("answer") if _is_answer(answer))
        passages.append((context("webqa", "", evidence.text("evidence")), answers))
    return passages


def _circulated(row: SourceRecord, dataset: str) -> AnsweredPassages:
    passages: AnsweredPassages = []
    for inner in row.rows("passages"):
        if not inner.has("answer"):
            raise inner.wrong("answer", "text")
        answer = inner.text_or_empty("answer")
        passages.append((context(dataset, "", inner.text("passage")), (answer,) if _is_answer(answer) else ()))
    return passages


def _is_answer(text: str) -> bool:
    return not is_empty(text) and text != "no_answer"
