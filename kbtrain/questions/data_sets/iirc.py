"""IIRC (Ferguson et al. 2020): questions over the beginning of an article, answered from the articles it links to.

``[{"title", "text", "questions": [{"qid", "question", "answer": {"type": "span" | "value" | "binary" | "none",
"answer_spans": [{"text"}], "answer_value", "answer_unit"}, "context": [{"passage": "main" | title, "text"}]}]}]``.
The linked articles themselves are a file of their own in the release; the passages here are the marked snippets.

IIRC questions with annotated reasoning steps (IRCoT's ``iirc.jsonnet``; Trivedi et al. 2023).

``[{"question_id", "question_text", "reasoning_steps": [{"paragraphs": [{"title", "text_substring"}], "cot_sent"}]}]``
with comments and trailing commas. Small files: they are read whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from kbtrain.errors import UserError, at
from kbtrain.questions.base import Loaded, context, ids, load_row
from kbtrain.questions.reading.files import DataFile, text_chunks
from kbtrain.questions.reading.rows import SourceRecord, unique
from kbtrain.questions.reading.tables import any_rows
from kbtrain.records import Passage


def iirc(file: DataFile) -> Iterator[Loaded]:
    """Questions of type "none" (and "bad") have ``gold`` "none". Several spans are one answer, joined by commas;
    hops are the passages that are marked as needed.
    """
    for article in any_rows(file):
        title = article.text_or_empty("title")
        main = context("iirc", title, article.text("text"))
        for row in article.rows("questions"):
            answer = row.row("answer") if row.has("answer") else None
            answers = _answers(answer) if answer else ()
            passages = (main, *_snippets(row))
            yield load_row(row, file, "iirc", passages, id=row.identifier("qid"), text=row.text("question"),
                           answers=answers, relation=answer.text("type") if answer else None,
                           hops=len(ids(passages)) if answers else None, gold_passages=ids(passages) if answers else (),
                           gold="given" if answers else "none" if answer else "hidden")  # fmt: skip


def _snippets(row: SourceRecord) -> tuple[Passage, ...]:
    inner = row.rows("context") if row.has("context") else ()
    linked = [snippet for snippet in inner if snippet.text("passage") != "main"]
    return tuple(context("iirc", snippet.text("passage"), snippet.text("text")) for snippet in linked)


def _answers(answer: SourceRecord) -> tuple[str, ...]:
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


_ANSWER = re.compile(r"^So the answer is: (.+?)\.?$")


def iirc_steps(file: DataFile) -> Iterator[Loaded]:
    """The answer is the last step's sentence; the passages are the steps' paragraphs, hops their number."""
    for row in _rows(file):
        steps = row.rows("reasoning_steps")
        if not steps:
            raise row.error("reasoning_steps", "empty list")
        answer = _ANSWER.match(steps[-1].text("cot_sent"))
        if not answer:
            raise steps[-1].error("cot_sent", "the last step must read 'So the answer is: ...'")
        passages = tuple(passage for step in steps for passage in _passages(step))
        yield load_row(row, file, "iirc", passages, id=row.identifier("question_id"), text=row.text("question_text"),
                       answers=(answer.group(1).strip(),), hops=len(ids(passages)),
                       gold_passages=ids(passages))  # fmt: skip


def _passages(step: SourceRecord) -> Iterator[Passage]:
    for paragraph in step.rows("paragraphs"):
        if paragraph.has("text_substring"):
            yield context("iirc", paragraph.text_or_empty("title"), paragraph.text("text_substring"))


def _rows(file: DataFile) -> Iterator[SourceRecord]:
    """This much of jsonnet is YAML: comments with #, commas before a closing bracket."""
    text = "".join(text_chunks(file))
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
        values = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "not jsonnet"
        raise UserError(f"{at(file.name, mark.line + 1 if mark else 1)}: broken jsonnet ({reason})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{at(file.name, 1)}: broken jsonnet ({str(error) or 'nested too deeply'})") from None
    if not isinstance(node, yaml.SequenceNode):
        raise UserError(f"{at(file.name, 1)}: expected a list of questions, found {type(values).__name__}")
    for inner, value in zip(node.value, values, strict=True):
        yield _row(file, inner.start_mark.line + 1, value)


def _row(file: DataFile, line: int, value: Any) -> SourceRecord:
    if not isinstance(value, dict):
        raise UserError(f"{at(file.name, line)}: expected an object, found {type(value).__name__}")
    return SourceRecord(value, file.name, line)
