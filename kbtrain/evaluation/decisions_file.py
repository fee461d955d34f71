"""Decisions of another system, as a file: an id and a score, or a yes or no, for each question."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.io.provenance import meta_of
from kbtrain.questions.checks import FirstSeen
from kbtrain.questions.reading.files import data_files
from kbtrain.questions.reading.rows import SourceRecord, format_value
from kbtrain.questions.reading.tables import OBJECTS, TABLES, any_rows

SHOWN = 8  # columns in a message
WORDS: Mapping[str, float] = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}


@dataclass(frozen=True)
class DecisionRow:
    """One question's number (higher or lower as in the file); ``place`` is file and line, for messages."""

    id: str
    score: float
    place: str


@dataclass(frozen=True)
class Decisions:
    """The rows with a value in their order, and how many rows have none."""

    rows: list[DecisionRow]
    without: int


def read_decisions(
    path: Path, id_column: str, column: str, choices: Mapping[str, float], tools: Sequence[str] = ()
) -> Decisions:
    """``tools``: patterns of names; the column then holds a model's calls, and one of these is a yes, none a no.

    Raises :class:`UserError` with file, line and field: a missing or duplicate id, an invalid value.
    """
    rows: list[DecisionRow] = []
    without = 0
    with FirstSeen() as ids:
        for file in data_files(path, (*OBJECTS, *TABLES)):
            for row in any_rows(file):
                if id_column not in row.data:
                    raise row.error(id_column, missing_id(row))
                name = row.identifier(id_column)
                earlier = ids.add(name, row.file, row.line)
                if earlier is not None:
                    raise row.error(id_column, f"duplicate {name!r}, first in line {earlier[1]}")
                value = row.reached(column)
                if tools:
                    calls = float(_calls_one(row, column, value, tools))
                    rows.append(DecisionRow(name, calls, at(row.file, row.line)))
                elif value is None or (file.suffix in TABLES and not value.strip()):
                    without += 1
                else:
                    rows.append(DecisionRow(name, _number(row, column, value, choices), at(row.file, row.line)))
    if not rows:
        raise UserError(f"{at(path)}: key 'column': no row has '{column}'")
    return Decisions(rows, without)


def missing_id(row: SourceRecord) -> str:
    """Reason and way out for a row without an id."""
    columns = ", ".join(str(name) for name in list(row.data)[:SHOWN])
    return f"missing; there is {columns}; --id names the column; the ids are those of RUN/questions.jsonl"


def added_gates(scores: Path) -> list[str]:
    """Gates whose scores eval/import_decisions.py added to a file, as its meta data note them."""
    meta = meta_of(scores)
    only = [meta["gate"]] if meta.get("stage") == "import_decisions" else []  # before several were noted
    added: list[str] = meta.get("added", only)
    return added


def _calls_one(row: SourceRecord, column: str, value: Any, tools: Sequence[str]) -> bool:
    """True if one of a model's calls, in OpenAI's or Anthropic's form or by their names alone, is of these tools."""
    if not isinstance(value, list | None):
        raise row.error(column, f"expected a list of calls, found {format_value(value)}")
    names = []
    for call in value or ():
        about = call.get("function", call) if isinstance(call, dict) else {"name": call}
        name = about.get("name", about.get("type")) if isinstance(about, dict) else None
        if not isinstance(name, str):
            raise row.error(column, f"expected calls with a name, found {format_value(call)}")
        names.append(name.lower())
    return any(fnmatch.fnmatchcase(name, pattern.lower()) for name in names for pattern in tools)


def _number(row: SourceRecord, column: str, value: Any, choices: Mapping[str, float]) -> float:
    if choices:
        if str(value) not in choices:
            hint = did_you_mean(str(value), choices)
            raise row.error(column, f"no number for {format_value(value)} in choices; {hint}")
        return choices[str(value)]
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, str) and value.strip().lower() in WORDS:
        return WORDS[value.strip().lower()]
    return row.having({column: value}).number(column)
