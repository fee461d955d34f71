"""Turns from JSON Lines, a JSON list or Parquet: ``{"context": ["...", "..."], "label": true}`` a row is enough."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kbtrain.dialogue.base import SPLITS, Together, services_so_far, split_files
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.text_files import plain_name
from kbtrain.questions.files import data_file
from kbtrain.questions.tables import any_rows
from kbtrain.records import Split, TurnExample, Utterance

_MARK = re.compile(r"\b(USER|SYSTEM):\s*")
_OWN = frozenset(field.name for field in fields(TurnExample))
_SAID = frozenset(field.name for field in fields(Utterance))


def plain_turns(path: Path, split: Split | None = None) -> Iterator[tuple[str, TurnExample, bool]]:
    """Stream (file and line, example, whether the line names its dialogue).

    Needed a line: ``context``, as a list of texts (the last one the user's, speakers alternating), as a list of
    ``{"speaker": "USER", "text": "..."}``, or as one text ``USER: ... SYSTEM: ... USER: ...``. Any field of
    :class:`TurnExample` are allowed, too. Defaults: ``id`` and ``dialogue_id`` from file name and line (lines that
    continue one dialogue share its first line's: :class:`~kbtrain.dialogue.base.Together`), ``turn`` = turns of
    the context, ``split`` from the file's name. Raises :class:`UserError` with file and line.
    """
    names = Together()
    for name, file in _files(path, split):
        rows = data_file(file)
        for place, row in enumerate(any_rows(rows), 1):
            number = row.line
            data, has_name = _complete(row.data, file, number, name, f"{rows.label}-{place if row.path else number}")
            example = jsonl.record(TurnExample, data, file, number)
            if not has_name:
                dialogue_name = names.name(example.context, example.dialogue_id, example.split)
                example = replace(example, dialogue_id=dialogue_name)
            yield f"{file}:{number}", example, has_name


def _files(path: Path, split: Split | None) -> list[tuple[Split | None, Path]]:
    """A single file may say the split in its lines; the files of a folder say it by their names."""
    if path.is_file():
        stem = plain_name(path.name).rpartition(".")[0]
        return [(split or next((s for s in SPLITS if s == stem), None), path)]
    return list(split_files(path, ".jsonl", split))


def _complete(
    row: dict[str, Any], path: Path, number: int, split: Split | None, name: str
) -> tuple[dict[str, Any], bool]:
    """The row with its defaults, and whether it names its dialogue itself; ``name`` is that of one that does not."""
    data = {key: value for key, value in row.items() if value is not None or key == "label"}
    has_name = "dialogue_id" in data
    if not {"split", *data} - _OWN:
        data |= {name: str(data[name]) for name in ("id", "dialogue_id") if type(data.get(name)) is int}
        place = at(path, number, "context")
        data = {**data, "context": [vars(u) for u in _context(data.get("context"), place)]}
        dialogue = str(data.get("dialogue_id", name))
        turn = data.get("turn", len(data["context"]))
        defaults: dict[str, Any] = {"id": f"{dialogue}:{turn}", "dialogue_id": dialogue, "turn": turn}
        if "services" not in data:
            defaults["services"] = services_so_far(Utterance(**u) for u in data["context"])
        if split is not None:
            defaults["split"] = split
        data = {**defaults, **data}
        if "split" not in data:
            raise UserError(
                f"{at(path, number, 'split')}: missing; name it in each line, by the file's name (train.jsonl, "
                "dev.jsonl, test.jsonl in one folder), or for the whole file: --split train"
            )
        if split is not None and data["split"] != split:
            raise UserError(f"{at(path, number, 'split')}: '{data['split']}' in the file of '{split}'")
    return data, has_name


def _context(turns: object, place: str) -> Sequence[Utterance]:
    if isinstance(turns, str):
        return _from_text(turns, place)
    if not isinstance(turns, list) or not turns:
        raise UserError(f"{place}: give the turns before this one, as a list or as 'USER: ... SYSTEM: ...'")
    if all(isinstance(turn, str) for turn in turns):
        last = len(turns) - 1
        return [Utterance("USER" if (last - i) % 2 == 0 else "SYSTEM", turn) for i, turn in enumerate(turns)]
    if not all(isinstance(turn, dict) and {"speaker", "text"} <= set(turn) <= _SAID for turn in turns):
        raise UserError(f"{place}: each turn needs 'speaker' and 'text'; allowed are {', '.join(sorted(_SAID))}")
    return [Utterance(**turn) for turn in turns]


def _from_text(text: str, place: str) -> list[Utterance]:
    start, *parts = _MARK.split(text)
    if start.strip() or not parts:
        raise UserError(f"{place}: the text must begin with 'USER:' or 'SYSTEM:'")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [Utterance("USER" if speaker == "USER" else "SYSTEM", utterance.strip()) for speaker, utterance in pairs]
