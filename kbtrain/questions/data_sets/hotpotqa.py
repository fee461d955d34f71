"""HotpotQA (Yang et al. 2018) with its paragraphs, and files of its questions without them.

``{"_id", "question", "answer", "type", "level", "supporting_facts": [[title, i]], "context": [[title, [sentence]]]}``
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from kbtrain.questions.base import Loaded, answers_or_hidden, context, ids, joined
from kbtrain.questions.reading.files import DataFile
from kbtrain.questions.reading.json_stream import json_rows
from kbtrain.questions.reading.rows import SourceRecord
from kbtrain.records import Passage, Question


def hotpotqa(file: DataFile) -> Iterator[Loaded]:
    """Two hops each; the relation is the question's type (bridge, comparison)."""
    for number, row in enumerate(json_rows(file), 1):
        passages = titled_passages(row, "hotpotqa")
        answers, gold = answers_or_hidden(row)
        question = Question(
            id=row.identifier("_id") if {"_id", "context"} & set(row.data) else f"hotpotqa/{file.label}/{number}",
            text=row.text("question"),
            answers=answers,
            split=file.split,
            dataset="hotpotqa",
            relation=row.text_or_empty("type") or None,
            hops=2,
            gold_passages=supporting(row, passages),
            gold=gold,
            context_passages=ids(passages),
        )
        yield Loaded(question, row.file, row.line, passages)


def titled_passages(row: SourceRecord, dataset: str) -> tuple[Passage, ...]:
    """``context``: pairs of title and sentences. Without the field there are none."""
    if "context" not in row.data:
        return ()
    found = []
    for i, pair in enumerate(row.values("context")):
        key = f"context[{i}]"
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[1], list)):
            raise row.error(key, "expected [title, [sentence, ...]]")
        parts = {f"{key}[0]": pair[0]} | {f"{key}[1][{j}]": sentence for j, sentence in enumerate(pair[1])}
        texts = [_sentence(row.having(parts), name) for name in parts]
        if text := joined(tuple(texts[1:])):  # a few paragraphs of the release are empty
            found.append(context(dataset, _title(texts[0]), text))
    return tuple(found)


def _title(text: str) -> str:
    """Titles stand in the release as in a page's source: "Simon &amp; Simon" is Simon & Simon."""
    return re.sub(r"&#?\w+;", lambda found: html.unescape(found[0]), text.strip())


def _sentence(parts: SourceRecord, name: str) -> str:
    if not isinstance(parts.data[name], str):
        raise parts.wrong(name, "text")
    return parts.checked(name, parts.data[name])


def supporting(row: SourceRecord, passages: tuple[Passage, ...]) -> tuple[str, ...]:
    """Ids of the passages that ``supporting_facts`` names; none unless all of them are in the context.

    (The "fullwiki" files bring retrieved paragraphs, among which the supporting ones may be missing.)
    """
    if not row.has("supporting_facts"):
        return ()
    by_title = {passage.title: passage.id for passage in reversed(passages)}
    titles = []
    for i, fact in enumerate(row.values("supporting_facts")):
        if not (isinstance(fact, list) and len(fact) == 2 and isinstance(fact[0], str)):
            raise row.error(f"supporting_facts[{i}]", "expected [title, sentence number]")
        titles.append(_title(fact[0]))
    if not all(title in by_title for title in titles):
        return ()
    return tuple(dict.fromkeys(by_title[title] for title in titles))
