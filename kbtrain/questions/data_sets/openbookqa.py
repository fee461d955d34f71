"""OpenBookQA (Mihaylov et al. 2018), and ARC in the same layout.

``{"id", "question": {"stem", "choices": [{"label", "text"}]}, "answerKey", "fact1"?}`` in JSON Lines. On the Hugging
Face hub: ``{"id", "question_stem" or "question", "choices": {"text": [...], "label": [...]}, "answerKey"}``.
"""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import LETTERS, Loaded, context, ids, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.rows import SourceRecord, format_value
from kbtrain.questions.reading.tables import any_rows


def openbookqa(file: DataFile) -> Iterator[Loaded]:
    """The fact of the "complete" files is the gold passage."""
    for row in any_rows(file):
        inner = row if row.has("choices") else row.row("question")
        stem = next((key for key in ("question_stem", "question") if inner is row and row.has(key)), "stem")
        choices = inner.rows("choices")
        fact = row.text_or_empty("fact1")
        passages = (context("openbookqa", "", fact),) if fact else ()
        answers = (_letter(row, choices),) if row.text_or_empty("answerKey") else ()
        yield load_row(row, file, "openbookqa", passages, id=row.identifier("id"), text=inner.text(stem),
                       answers=answers, options=tuple(choice.text("text") for choice in choices),
                       gold_passages=ids(passages), gold="given" if answers else "hidden")  # fmt: skip


def _letter(row: SourceRecord, choices: tuple[SourceRecord, ...]) -> str:
    """Choices are lettered by their place; a few of ARC's are labelled 1 to 4."""
    labels = [choice.text("label") for choice in choices]
    key = row.text("answerKey")
    if labels.count(key) != 1:
        raise row.error("answerKey", f"expected one of {', '.join(labels)}, found {format_value(key)}")
    return LETTERS[labels.index(key)]
