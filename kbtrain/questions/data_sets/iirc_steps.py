"""IIRC questions with annotated reasoning steps (IRCoT's ``iirc.jsonnet``; Trivedi et al. 2023).

``[{"question_id", "question_text", "reasoning_steps": [{"paragraphs": [{"title", "text_substring"}], "cot_sent"}]}]``
with comments and trailing commas. Small files: they are read whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from kbtrain.errors import UserError, at
from kbtrain.questions.base import Loaded, context, ids
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.rows import Row
from kbtrain.questions.reading.text import text_chunks
from kbtrain.records import Passage, Question

_ANSWER = re.compile(r"^So the answer is: (.+?)\.?$")


def iirc_steps(file: DataFile) -> Iterator[Loaded]:
    """The answer is the last step's sentence; the passages are the steps' paragraphs, hops their number."""
    for row in _rows(file):
        steps = row.rows("reasoning_steps")
        if not steps:
            raise row.error("reasoning_steps", "empty list")
        found = _ANSWER.match(steps[-1].text("cot_sent"))
        if not found:
            raise steps[-1].error("cot_sent", "the last step must read 'So the answer is: ...'")
        passages = tuple(passage for step in steps for passage in _passages(step))
        question = Question(
            id=row.identifier("question_id"),
            text=row.text("question_text"),
            answers=(found.group(1).strip(),),
            split=file.split,
            dataset="iirc",
            hops=len(ids(passages)),
            gold_passages=ids(passages),
            context_passages=ids(passages),
        )
        yield Loaded(question, row.file, row.line, passages)


def _passages(step: Row) -> Iterator[Passage]:
    for paragraph in step.rows("paragraphs"):
        if paragraph.has("text_substring"):
            yield context("iirc", paragraph.text_or_empty("title"), paragraph.text("text_substring"))


def _rows(file: DataFile) -> Iterator[Row]:
    """This much of jsonnet is YAML: comments with #, commas before a closing bracket."""
    text = "".join(text_chunks(file))
    try:
        node = yaml.compose(text, Loader=yaml.CSafeLoader)
        values = yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or getattr(error, "reason", None) or "not jsonnet"
        raise UserError(f"{at(file.name, mark.line + 1 if mark else 1)}: broken jsonnet ({what})") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{at(file.name, 1)}: broken jsonnet ({str(error) or 'nested too deeply'})") from None
    if not isinstance(node, yaml.SequenceNode):
        raise UserError(f"{at(file.name, 1)}: expected a list of questions, found {type(values).__name__}")
    for inner, value in zip(node.value, values, strict=True):
        yield _row(file, inner.start_mark.line + 1, value)


def _row(file: DataFile, line: int, value: Any) -> Row:
    if not isinstance(value, dict):
        raise UserError(f"{at(file.name, line)}: expected an object, found {type(value).__name__}")
    return Row(value, file.name, line)
