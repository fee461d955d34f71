"""HotpotQA (Yang et al. 2018) with its paragraphs, and files of its questions without them.

``{"_id", "question", "answer", "type", "level", "supporting_facts": [[title, i]], "context": [[title, [sentence]]]}``

Also as the Hugging Face hub has it, in Parquet or JSON: ``id``, ``context`` with lists ``title`` and ``sentences``,
``supporting_facts`` with lists ``title`` and ``sent_id``.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Any

from kbtrain.questions.base import Loaded, answers_or_hidden, context, join_sentences, load_row
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.rows import SourceRecord
from kbtrain.questions.reading.tables import any_rows
from kbtrain.records import Passage


def hotpotqa(file: DataFile) -> Iterator[Loaded]:
    """Two hops each; the relation is the question's type (bridge, comparison)."""
    for number, row in enumerate(any_rows(file), 1):
        passages = titled_passages(row, "hotpotqa")
        answers, gold = answers_or_hidden(row)
        yield load_row(row, file, "hotpotqa", passages,
                       id=row_id(row) if row.has("_id") or row.has("context") else f"hotpotqa/{file.label}/{number}",
                       text=row.text("question"), answers=answers, relation=row.text_or_empty("type") or None, hops=2,
                       gold_passages=supporting(row, passages), gold=gold)  # fmt: skip


def row_id(row: SourceRecord) -> str:
    """The id under ``_id``, or ``id`` as on the hub."""
    return row.identifier("id" if row.has("id") and not row.has("_id") else "_id")


def titled_passages(row: SourceRecord, dataset: str) -> tuple[Passage, ...]:
    """``context``: pairs of title and sentences. Without the field there are none."""
    if not row.has("context"):
        return ()
    passages = []
    for i, (title, sentences) in enumerate(_pairs(row, "context", ("sentences", "content"))):
        key = f"context[{i}]"
        if not isinstance(sentences, list):
            raise row.error(key, "expected [title, [sentence, ...]]")
        parts = {f"{key}[0]": title} | {f"{key}[1][{j}]": sentence for j, sentence in enumerate(sentences)}
        texts = [_sentence(row.having(parts), name) for name in parts]
        if text := join_sentences(tuple(texts[1:])):  # a few paragraphs of the release are empty
            passages.append(context(dataset, _title(texts[0]), text))
    return tuple(passages)


def _pairs(row: SourceRecord, key: str, second: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """The pairs of a list; the hub has objects with ``title`` and one of the names ``second``."""
    for i, value in enumerate(row.values(key)):
        if isinstance(value, dict):
            value = [value.get("title"), next((value[name] for name in second if name in value), None)]
        if not (isinstance(value, list) and len(value) == 2):
            raise row.error(f"{key}[{i}]", f"expected [title, {second[0]}]")
        yield value[0], value[1]


def _title(text: str) -> str:
    """Unescape a title, which the release has as in a page's source: "Simon &amp; Simon" is Simon & Simon."""
    return re.sub(r"&#?\w+;", lambda entity: html.unescape(entity[0]), text.strip())


def _sentence(parts: SourceRecord, name: str) -> str:
    if not isinstance(parts.data[name], str):
        raise parts.wrong(name, "text")
    return parts.check_text(name, parts.data[name])


def supporting(row: SourceRecord, passages: tuple[Passage, ...]) -> tuple[str, ...]:
    """Ids of the passages that ``supporting_facts`` names; none unless all of them are in the context.

    (The "fullwiki" files bring retrieved paragraphs, among which the supporting ones may be missing.)
    """
    if not row.has("supporting_facts"):
        return ()
    by_title = {passage.title: passage.id for passage in reversed(passages)}
    titles = []
    for i, (title, _) in enumerate(_pairs(row, "supporting_facts", ("sent_id", "sent_idx"))):
        if not isinstance(title, str):
            raise row.error(f"supporting_facts[{i}]", "expected [title, sentence number]")
        titles.append(_title(title))
    if not all(title in by_title for title in titles):
        return ()
    return tuple(dict.fromkeys(by_title[title] for title in titles))
