"""Dialogues from anywhere: one loader per native format, all giving :class:`kbtrain.records.TurnExample`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from kbtrain.dialogue.base import Dialogue, History, check_dialogues, domain_of, turn_examples
from kbtrain.dialogue.sgd_ketod import ketod_joined, ketod_lines, ketod_released, sgd_dialogues
from kbtrain.dialogue.turns_jsonl import plain_turns
from kbtrain.errors import UserError, did_you_mean
from kbtrain.records import Snippet, Split, TurnExample

__all__ = ["DATASETS", "History", "domain_of", "load_turns"]

_DIALOGUES: dict[str, Callable[[Path, Split | None], Iterator[Dialogue]]] = {
    "sgd": sgd_dialogues,  # no labels
    "ketod": ketod_joined,  # as KETOD's own script writes it
    "ketod_lines": ketod_lines,  # SGD turns + enrich, one dialogue a line
}
DATASETS = (*_DIALOGUES, "ketod_released", "jsonl")


def load_turns(
    name: str,
    path: Path,
    split: Split | None = None,
    sgd: Path | None = None,
    source: str | None = None,
    history: History = "plain",
    left_out: Counter[str] | None = None,
) -> Iterator[TurnExample | Snippet]:
    """Stream a data set's turns, each dialogue's snippets before its turns.

    ``split`` takes one split only, or names that of a single file; ``sgd`` is the folder that ``ketod_released`` is
    joined with; ``source`` says where the knowledge comes from. ``history``: see
    :func:`~kbtrain.dialogue.base.turn_examples`. ``left_out`` counts the SYSTEM turns that open a dialogue: nothing
    precedes them, so they give no example. Raises :class:`UserError` naming file and dialogue.
    """
    if name not in DATASETS:
        raise UserError(f"unknown data set '{name}'; {did_you_mean(name, DATASETS)}")
    if (name == "ketod_released") != (sgd is not None):
        raise UserError("data set 'ketod_released' needs the folder of SGD (sgd), and no other takes it")
    if name == "jsonl":
        yield from (replace(example, source=example.source or source) for example in _distinct(path, split))
        return
    dialogues = ketod_released(path, sgd, split) if sgd else _DIALOGUES[name](path, split)
    for dialogue in check_dialogues(dialogues):
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
