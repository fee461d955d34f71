"""IIRC (Ferguson et al. 2020): questions over the beginning of an article, answered from the articles it links to.

``[{"title", "text", "questions": [{"qid", "question", "answer": {"type": "span" | "value" | "binary" | "none",
"answer_spans": [{"text"}], "answer_value", "answer_unit"}, "context": [{"passage": "main" | title, "text"}]}]}]``.
The linked articles themselves are a file of their own in the release; the passages here are the marked snippets.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import Loaded, context, ids
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import json_rows
from kbtrain.questions.reading.rows import Row, unique
from kbtrain.records import Passage, Question


def iirc(file: DataFile) -> Iterator[Loaded]:
    """Questions of type "none" (and "bad") have ``gold`` "none". Several spans are one answer, joined by commas;
    hops are the passages that are marked as needed.
    """
    for article in json_rows(file):
        title = article.text_or_empty("title")
        main = context("iirc", title, article.text("text"))
        for row in article.rows("questions"):
            answer = row.row("answer") if row.has("answer") else None
            answers = _answers(answer) if answer else ()
            passages = (main, *_snippets(row))
            question = Question(
                id=row.identifier("qid"),
                text=row.text("question"),
                answers=answers,
                split=file.split,
                dataset="iirc",
                relation=answer.text("type") if answer else None,
                hops=len(ids(passages)) if answers else None,
                gold_passages=ids(passages) if answers else (),
                gold="given" if answers else "none" if answer else "hidden",
                context_passages=ids(passages),
            )
            yield Loaded(question, row.file, row.line, passages)


def _snippets(row: Row) -> tuple[Passage, ...]:
    inner = row.rows("context") if row.has("context") else ()
    linked = [snippet for snippet in inner if snippet.text("passage") != "main"]
    return tuple(context("iirc", snippet.text("passage"), snippet.text("text")) for snippet in linked)


def _answers(answer: Row) -> tuple[str, ...]:
    kind = answer.one_of("type", ("span", "value", "binary", "none", "bad"))
    if kind in {"none", "bad"}:
        return ()
    if kind == "span":
        spans = unique(span.text("text") for span in answer.rows("answer_spans"))
        if not spans:
            raise answer.error("answer_spans", "empty list")
        return (", ".join(spans),)
    value = answer.identifier("answer_value")
    unit = answer.text_or_empty("answer_unit")
    return unique([value, f"{value} {unit}".strip()])
