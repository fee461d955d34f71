"""WebQA (Li et al. 2016) and SogouQA (CIPS-SOGOU 2018): Chinese questions with passages found in the web.

WebQA's own files: ``{ID: {"question", "evidences": {ID: {"answer": [...], "evidence": ...}}}}`` ("no_answer" where a
passage has none). Both as circulated together: ``[{"id", "question", "passages": [{"passage", "answer"}]}]``. The
contest's own: ``{"query_id", "query", "answer", "passages": [{"passage_text"}]}`` in JSON Lines.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.answers.grading import is_empty
from kbtrain.questions.base import Loaded, context, ids, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import rows_by_key
from kbtrain.questions.reading.rows import SourceRecord, unique
from kbtrain.questions.reading.tables import any_rows
from kbtrain.records import Passage

_NO_ANSWER = "no_answer"
AnsweredPassages = list[tuple[Passage, tuple[str, ...]]]


def webqa(file: DataFile) -> Iterator[Loaded]:
    """The answers are those of all passages; passages with one are gold. None at all: ``gold`` "none"."""
    for key, row in rows_by_key(file):
        name = key or row.identifier("id")
        passages = _evidences(row) if "evidences" in row.data else _passages(row, "webqa")
        yield _question(file, row, f"webqa/{name}", row.text("question"), passages)


def sogouqa(file: DataFile) -> Iterator[Loaded]:
    """As :func:`webqa`; in the contest's own layout a passage is gold if it holds the answer."""
    for row in any_rows(file):
        if "query" in row.data:
            name, text, passages = row.identifier("query_id"), row.text("query"), _contest(row)
            yield _question(file, row, f"sogouqa/{name}", text, passages, (row.gold_answer("answer"),))
        else:
            name, text, passages = row.identifier("id"), row.text("question"), _passages(row, "sogouqa")
            yield _question(file, row, f"sogouqa/{name}", text, passages)


def _question(
    file: DataFile, row: SourceRecord, name: str, text: str, answered: AnsweredPassages, answers: tuple[str, ...] = ()
) -> Loaded:
    answers = answers or unique(answer for _, its_answers in answered for answer in its_answers)
    passages = tuple(passage for passage, _ in answered)
    return load_row(row, file, name.partition("/")[0], passages, id=name, text=text, answers=answers, language="zh",
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


def _passages(row: SourceRecord, dataset: str) -> AnsweredPassages:
    passages: AnsweredPassages = []
    for inner in row.rows("passages"):
        if not inner.has("answer"):
            raise inner.wrong("answer", "text")
        answer = inner.text_or_empty("answer")
        answers = (answer,) if _is_answer(answer) else ()
        passages.append((context(dataset, "", inner.text("passage")), answers))
    return passages


def _contest(row: SourceRecord) -> AnsweredPassages:
    answer = row.gold_answer("answer")
    texts = [inner.text("passage_text") for inner in row.rows("passages")]
    return [
        (context("sogouqa", "", text), (answer,) if not is_empty(answer) and answer in text else ()) for text in texts
    ]


def _is_answer(text: str) -> bool:
    return not is_empty(text) and text != _NO_ANSWER
