"""2WikiMultiHopQA (Ho et al. 2020): HotpotQA's layout, entity ids, and aliases in ``id_aliases.json``.

With the release of April 2021 each answer may have an ``answer_id``; ``id_aliases.json`` (JSON Lines beside it) gives
``{"Q_id", "aliases", "demonyms"}``, which count as right in the data set's own evaluation (version 1.1). Copies on the
Hugging Face hub are read as HotpotQA's; lists may be JSON texts there.
"""

from __future__ import annotations

import json
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from kbtrain.questions.base import Loaded, answers_or_hidden, load_row
from kbtrain.questions.data_set import Reading, native
from kbtrain.questions.data_sets.hotpotqa import row_id, supporting, titled_passages
from kbtrain.questions.reading.files import DataFile, data_files
from kbtrain.questions.reading.json_stream import jsonl_rows
from kbtrain.questions.reading.rows import SourceRecord, unique
from kbtrain.questions.reading.tables import OBJECTS, any_rows

ALIASES = "id_aliases.json"
_HOPS = {"comparison": 2, "inference": 2, "compositional": 2, "bridge_comparison": 4}
Names = Callable[[SourceRecord, str], tuple[str, ...]]


def two_wiki(path: Path, reading: Reading) -> Iterator[Loaded]:
    """A file, archive or folder. ``id_aliases.json`` must be in it or beside it if the questions have answer ids."""
    names: Names = _no_names
    is_container = path.is_dir() or zipfile.is_zipfile(path)
    place = path if is_container else path.parent / ALIASES
    for file in data_files(place, (ALIASES,), required=False) if place.exists() else ():
        names = _known_names(file)
    yield from native(lambda file: _questions(file, names), *OBJECTS, leave_out=ALIASES)(path, reading)


def _questions(file: DataFile, names: Names) -> Iterator[Loaded]:
    """``names`` gives the aliases of an entity id. The relation is the question's type."""
    for row in any_rows(file):
        passages = titled_passages(row, "2wikimultihopqa")
        answers, gold = answers_or_hidden(row)
        kind = row.text("type").replace("-", "_")
        entity = row.text_or_empty("answer_id")
        yield load_row(row, file, "2wikimultihopqa", passages, id=row_id(row), text=row.text("question"),
                       answers=unique([*answers, *(names(row, entity) if answers and entity else ())]), relation=kind,
                       hops=_HOPS.get(kind),
                       entities=tuple(part for part in row.text_or_empty("entity_ids").split("_") if part),
                       gold_passages=supporting(row, passages), gold=gold)  # fmt: skip


def _known_names(file: DataFile) -> Names:
    """The aliases and demonyms of ``id_aliases.json``, in a temporary database: the file may have a million lines."""
    db = sqlite3.connect("", isolation_level=None)
    db.execute("CREATE TABLE names (id TEXT PRIMARY KEY, names TEXT) WITHOUT ROWID")
    db.execute("BEGIN")
    for row in jsonl_rows(file):
        texts = [
            text
            for key in ("aliases", "demonyms")
            if row.has(key) and row.values(key)
            for text in row.gold_answers(key)
        ]
        db.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (row.text("Q_id"), json.dumps(texts)))

    def names(row: SourceRecord, entity: str) -> tuple[str, ...]:
        texts = db.execute("SELECT names FROM names WHERE id = ?", (entity,)).fetchone()
        return tuple(json.loads(texts[0])) if texts else ()

    return names


def _no_names(row: SourceRecord, entity: str) -> tuple[str, ...]:
    raise row.error("answer_id", f"'{entity}' may have aliases; put {ALIASES} of the release beside the file")
