"""Xiezhi (Gu et al. 2024): ``{"question", "options": "a\\nb\\nc\\nd", "answer": "c", "labels": [discipline, ...]}``."""

from __future__ import annotations

from collections.abc import Iterator

from kbtrain.questions.base import Loaded, letters_of, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.rows import SourceRecord
from kbtrain.questions.reading.tables import any_rows
from kbtrain.records import Language

# the thirteen fields of Chinese higher education; a question's labels name one of them and finer disciplines
_FIELDS = "哲学 经济学 法学 教育学 文学 历史学 理学 工学 农学 医学 军事学 管理学 艺术学".split()


def xiezhi(file: DataFile) -> Iterator[Loaded]:
    """The relation is the field (医学), or the first discipline where the labels name no field."""
    yield from _questions(file, "xiezhi", "zh")


def xiezhi_en(file: DataFile) -> Iterator[Loaded]:
    """The English half of the benchmark."""
    yield from _questions(file, "xiezhi_en", "en")


def _questions(file: DataFile, dataset: str, language: Language) -> Iterator[Loaded]:
    for number, row in enumerate(any_rows(file), 1):
        options, labels = _options(row), row.texts("labels")
        yield load_row(row, file, dataset, id=f"{dataset}/{file.label}/{number}", text=row.text("question"),
                       answers=letters_of(row, "answer", options), language=language, options=options,
                       relation=next((label for label in labels if label in _FIELDS), labels[0]))  # fmt: skip


def _options(row: SourceRecord) -> tuple[str, ...]:
    lines = row.text("options").split("\n")
    inner = row.having({f"options[{i}]": line for i, line in enumerate(lines)})
    return tuple(inner.text(key) for key in inner.data)
