"""Dialogues from anywhere as :class:`kbtrain.records.TurnExample`: data sets in their native formats, and own turns.

Own turns are JSON Lines, a JSON list or Parquet: ``{"context": ["...", "..."], "label": true}`` a row is enough.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from kbtrain.answers.writing import is_blank
from kbtrain.dialogue.base import (
    SPLITS,
    Dialogue,
    History,
    Together,
    check_dialogues,
    services_so_far,
    split_files,
    turn_examples,
)
from kbtrain.dialogue.sgd_ketod import ketod_joined, ketod_lines, sgd_dialogues
from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.io import jsonl
from kbtrain.io.text_files import plain_name
from kbtrain.questions.files import data_file
from kbtrain.questions.tables import any_rows
from kbtrain.records import Snippet, Split, TurnExample, Utterance

_DIALOGUES: dict[str, Callable[[Path, Split | None], Iterator[Dialogue]]] = {
    "sgd": sgd_dialogues,  # no labels
    "ketod": ketod_joined,  # as KETOD's own script joins its release with SGD
    "ketod_lines": ketod_lines,  # SGD turns + enrich, one dialogue a line
}
DATASETS = (*_DIALOGUES, "jsonl")


def load_turns(
    name: str,
    path: Path,
    split: Split | None = None,
    source: str | None = None,
    history: History = "plain",
    left_out: Counter[str] | None = None,
) -> Iterator[TurnExample | Snippet]:
    """Stream a data set's turns, each dialogue's snippets before its turns.

    ``split`` takes one split only, or names that of a single file; ``source`` says where the knowledge comes from.
    ``history``: see :func:`~kbtrain.dialogue.base.turn_examples`. ``left_out`` counts the SYSTEM turns that open a
    dialogue: nothing precedes them, so they give no example. Raises :class:`UserError` naming file and dialogue.
    """
    if name not in DATASETS:
        raise UserError(f"unknown data set '{name}'; {did_you_mean(name, DATASETS)}")
    if name == "jsonl":
        yield from (replace(example, source=example.source or source) for example in _distinct(path, split))
        return
    for dialogue in check_dialogues(_DIALOGUES[name](path, split)):
        yield from dialogue.snippets
        if left_out is not None and dialogue.turns[0].said.speaker == "SYSTEM":
            left_out["opening system turns"] += 1
        yield from (replace(example, source=source) for example in turn_examples(dialogue, history))


def _distinct(path: Path, split: Split | None) -> Iterator[TurnExample]:
    """No id and no turn of a named dialogue twice, no dialogue in two splits."""
    turns: set[tuple[str, int]] = set()
    ids: dict[str, str] = {}
    splits: dict[str, Split] = {}
    for place, example, has_name in plain_turns(path, split):
        subject = f"{place}: dialogue '{example.dialogue_id}'"
        if has_name and (example.dialogue_id, example.turn) in turns:
            raise UserError(f"{subject}: duplicate turn {example.turn}; delete one")
        if splits.setdefault(example.dialogue_id, example.split) != example.split:
            splits_text = f"in {example.split} and in {splits[example.dialogue_id]}; keep it in one split"
            raise UserError(
                f"{subject}: {splits_text}" + ("" if has_name else ", or give 'dialogue_id' if another begins alike")
            )
        if (first := ids.setdefault(example.id, place)) != place:
            raise UserError(f"{place}: field 'id': duplicate {example.id!r}, first in {first}")
        turns.add((example.dialogue_id, example.turn))
        yield example


_MARK = re.compile(r"\b(USER|SYSTEM):\s*")
_OWN = frozenset(field.name for field in fields(TurnExample))
_SAID = frozenset(field.name for field in fields(Utterance))


def plain_turns(path: Path, split: Split | None = None) -> Iterator[tuple[str, TurnExample, bool]]:
    """Stream (file and line, example, whether the line names its dialogue).

    Needed a line: ``context``, as a list of texts (the last one the user's, speakers alternating), as a list of
    ``{"speaker": "USER", "text": "..."}``, or as one text ``USER: ... SYSTEM: ... USER: ...``. Any field of
    :class:`TurnExample` are allowed, too. Defaults: ``id`` and ``dialogue_id`` from file name and line (lines that
    continue one dialogue share its first line's: :class:`~kbtrain.dialogue.base.Together`), ``turn`` = turns of
    the line, ``split`` from the file's name. Raises :class:`UserError` with file and line.
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
        *before, last = _context(data.get("context"), place)
        said = [u for u in before if not is_blank(u.text)]  # as a server reads it
        data = {**data, "context": [vars(u) for u in (*said, last)]}
        if last.speaker != "USER" or is_blank(last.text):
            raise UserError(
                f"{place}: ends with the system's words or a blank turn; what follows the user's is not known to a gate"
            )
        dialogue = str(data.get("dialogue_id", name))
        turn = data.get("turn", len(before) + 1)
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
    return [jsonl.parsed(Utterance, turn, f"{place}: turn {n}") for n, turn in enumerate(turns)]


def _from_text(text: str, place: str) -> list[Utterance]:
    start, *parts = _MARK.split(text)
    if start.strip() or not parts:
        raise UserError(f"{place}: the text must begin with 'USER:' or 'SYSTEM:'")
    if twice := next((one for one, other in pairwise(parts[::2]) if one == other), None):
        raise UserError(f"{place}: '{twice}:' twice in a row; give a list of turns where a text contains this word")
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return [Utterance("USER" if speaker == "USER" else "SYSTEM", utterance.strip()) for speaker, utterance in pairs]
