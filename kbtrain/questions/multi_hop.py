"""Questions of several hops with the paragraphs to read: HotpotQA, 2WikiMultiHopQA, MuSiQue and IIRC."""

from __future__ import annotations

import html
import json
import re
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kbtrain.questions.base import (
    Loaded,
    Reading,
    answers_or_hidden,
    context,
    ids,
    join_sentences,
    load_row,
    marked_passages,
    native,
)
from kbtrain.questions.files import DataFile, data_files
from kbtrain.questions.rows import SourceRecord, unique
from kbtrain.questions.tables import OBJECTS, any_rows, jsonl_rows
from kbtrain.records import Passage


def hotpotqa(file: DataFile) -> Iterator[Loaded]:
    """HotpotQA (Yang et al. 2018) with its paragraphs, and files of its questions without them: ``{"_id", "question",
    "answer", "type", "level", "supporting_facts": [[title, i]], "context": [[title, [sentence]]]}``. Also as the
    Hugging Face hub has it: ``id``, ``context`` with lists ``title`` and ``sentences``, ``supporting_facts`` with
    lists ``title`` and ``sent_id``.

    Two hops each; the relation is the question's type (bridge, comparison).
    """
    for number, row in enumerate(any_rows(file), 1):
        passages = _titled_passages(row, "hotpotqa")
        answers, gold = answers_or_hidden(row)
        yield load_row(row, file, "hotpotqa", passages,
                       id=_row_id(row) if row.has("_id") or row.has("context") else f"hotpotqa/{file.label}/{number}",
                       text=row.text("question"), answers=answers, relation=row.text_or_empty("type") or None, hops=2,
                       gold_passages=_supporting(row, passages), gold=gold)  # fmt: skip


def _row_id(row: SourceRecord) -> str:
    """The id under ``_id``, or ``id`` as on the hub."""
    return row.identifier("id" if row.has("id") and not row.has("_id") else "_id")


def _titled_passages(row: SourceRecord, dataset: str) -> tuple[Passage, ...]:
    """``context``: pairs of title and sentences. Without the field there are none."""
    if not row.has("context"):
        return ()
    passages = []
    for i, (title, sentences) in enumerate(_pairs(row, "context", ("sentences", "content"))):
        key = f"context[{i}]"
        if not isinstance(sentences, list):
            raise row.error(key, "expected [title, [sentence, ...]]")
        parts = row.having({f"{key}[0]": title} | {f"{key}[1][{j}]": text for j, text in enumerate(sentences)})
        for name, value in parts.data.items():
            if not isinstance(value, str):
                raise parts.wrong(name, "text")
            parts.check_text(name, value)
        if text := join_sentences(sentences):  # a few paragraphs of the release are empty
            passages.append(context(dataset, _unescaped(title), text))
    return tuple(passages)


def _pairs(row: SourceRecord, key: str, second: tuple[str, ...]) -> Iterator[tuple[Any, Any]]:
    """The pairs of a list; the hub has objects with ``title`` and one of the names ``second``."""
    for i, value in enumerate(row.values(key)):
        if isinstance(value, dict):
            value = [value.get("title"), next((value[name] for name in second if name in value), None)]
        if not (isinstance(value, list) and len(value) == 2):
            raise row.error(f"{key}[{i}]", f"expected [title, {second[0]}]")
        yield value[0], value[1]


def _unescaped(title: str) -> str:
    """A title without HTML's entities, which the release has as in a page's source: "Simon &amp; Simon"."""
    return re.sub(r"&#?\w+;", lambda entity: html.unescape(entity[0]), title.strip())


def _supporting(row: SourceRecord, passages: tuple[Passage, ...]) -> tuple[str, ...]:
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
        titles.append(_unescaped(title))
    return unique(by_title[title] for title in titles) if by_title.keys() >= set(titles) else ()


ALIASES = "id_aliases.json"
_HOPS = {"comparison": 2, "inference": 2, "compositional": 2, "bridge_comparison": 4}
Names = Callable[[str], tuple[str, ...]]


def two_wiki(path: Path, reading: Reading) -> Iterator[Loaded]:
    """2WikiMultiHopQA (Ho et al. 2020), a file, archive or folder: HotpotQA's layout and entity ids.

    With the release of April 2021 each answer may have an ``answer_id``; ``id_aliases.json`` (JSON Lines in the archive
    or beside the file) gives ``{"Q_id", "aliases", "demonyms"}``, which count as right in the data set's own evaluation
    (version 1.1). Copies on the hub are read as HotpotQA's; lists may be JSON texts there.
    """
    names: Names | None = None
    place = path if path.is_dir() or zipfile.is_zipfile(path) else path.parent / ALIASES
    for file in data_files(place, (ALIASES,), required=False) if place.exists() else ():
        names = _known_names(file)
    yield from native(lambda file: _two_wiki_rows(file, names), *OBJECTS, leave_out=ALIASES)(path, reading)


def _two_wiki_rows(file: DataFile, names: Names | None) -> Iterator[Loaded]:
    """``names`` gives the aliases of an entity id, None without their file. The relation is the question's type."""
    for row in any_rows(file):
        passages = _titled_passages(row, "2wikimultihopqa")
        answers, gold = answers_or_hidden(row)
        kind = row.text("type").replace("-", "_")
        entity = row.text_or_empty("answer_id") if answers else ""
        if entity and names is None:
            raise row.error("answer_id", f"'{entity}' may have aliases; put {ALIASES} of the release beside the file")
        yield load_row(row, file, "2wikimultihopqa", passages, id=_row_id(row), text=row.text("question"),
                       answers=unique([*answers, *(names(entity) if entity and names else ())]), relation=kind,
                       hops=_HOPS.get(kind),
                       entities=tuple(part for part in row.text_or_empty("entity_ids").split("_") if part),
                       gold_passages=_supporting(row, passages), gold=gold)  # fmt: skip


def _known_names(file: DataFile) -> Names:
    """The aliases and demonyms of ``id_aliases.json``, in a temporary database: the file may have a million lines."""
    db = sqlite3.connect("", isolation_level=None)
    db.executescript("CREATE TABLE names (id TEXT PRIMARY KEY, names TEXT) WITHOUT ROWID; BEGIN")
    for row in jsonl_rows(file):
        texts = [text for key in ("aliases", "demonyms") if row.has(key) for text in row.gold_answers(key)]
        db.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (row.text("Q_id"), json.dumps(texts)))

    def names(entity: str) -> tuple[str, ...]:
        texts = db.execute("SELECT names FROM names WHERE id = ?", (entity,)).fetchone()
        return tuple(json.loads(texts[0])) if texts else ()

    return names


def musique(file: DataFile) -> Iterator[Loaded]:
    """MuSiQue (Trivedi et al. 2022): ``{"id", "question", "answer", "answer_aliases", "answerable", "paragraphs":
    [{"title", "paragraph_text", "is_supporting"}], "question_decomposition": [...]}``.

    Hops and relation come from the id ("3hop1__..."). MuSiQue-Full's unanswerable twins share their partner's id;
    here theirs ends in "/unanswerable", and they have ``gold`` "none".
    """
    for row in any_rows(file):
        name = row.identifier("id")
        answerable = not row.has("answerable") or row.flag("answerable")
        passages, gold = marked_passages(row.rows("paragraphs"), "musique", "paragraph_text")
        answers, state = answers_or_hidden(row)
        aliases = row.gold_answers("answer_aliases") if row.has("answer_aliases") else ()
        prefix = re.match(r"(\d)hop\w*?(?=__)", name)
        yield load_row(row, file, "musique", passages, id=name if answerable else f"{name}/unanswerable",
                       text=row.text("question"),
                       answers=unique([*answers, *aliases]) if answers and answerable else (),
                       relation=prefix.group() if prefix else None, hops=int(prefix.group(1)) if prefix else None,
                       gold_passages=gold if answerable else (), gold=state if answerable else "none")  # fmt: skip


def iirc(file: DataFile) -> Iterator[Loaded]:
    """IIRC (Ferguson et al. 2020), questions over the beginning of an article, answered from the articles it links to:
    ``[{"title", "text", "questions": [{"qid", "question", "answer": {"type": "span" | "value" | "binary" | "none",
    "answer_spans": [{"text"}], "answer_value", "answer_unit"}, "context": [{"passage": "main" | title, "text"}]}]}]``.
    The linked articles themselves are their own file in the release; the passages here are the marked snippets.

    Questions of type "none" (and "bad") have ``gold`` "none". Several spans are one answer, joined by commas; hops are
    the passages that are marked as needed.
    """
    for article in any_rows(file):
        main = context("iirc", article.text_or_empty("title"), article.text("text"))
        for row in article.rows("questions"):
            answer = row.row("answer") if row.has("answer") else None
            answers = _iirc_answers(answer) if answer else ()
            snippets = row.rows("context") if row.has("context") else ()
            linked = [snippet for snippet in snippets if snippet.text("passage") != "main"]
            passages = (main, *(context("iirc", snippet.text("passage"), snippet.text("text")) for snippet in linked))
            yield load_row(row, file, "iirc", passages, id=row.identifier("qid"), text=row.text("question"),
                           answers=answers, relation=answer.text("type") if answer else None,
                           hops=len(ids(passages)) if answers else None, gold_passages=ids(passages) if answers else (),
                           gold="given" if answers else "none" if answer else "hidden")  # fmt: skip


def _iirc_answers(answer: SourceRecord) -> tuple[str, ...]:
    kind = answer.one_of("type", ("span", "value", "binary", "none", "bad"))
    if kind in {"none", "bad"}:
        return ()
    if kind == "span":
        spans = unique(span.text("text") for span in answer.rows("answer_spans"))
        if not spans:
            raise answer.error("answer_spans", "empty list")
        return (", ".join(spans),)
    value = answer.identifier("answer_value")
    return unique([value, f"{value} {answer.text_or_empty('answer_unit')}".strip()])
