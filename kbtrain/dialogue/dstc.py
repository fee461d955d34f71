"""DSTC9 track 1 and DSTC11 track 5: partial dialogues, labelled by whether the next system turn seeks knowledge.

A folder with train, val and test, each with logs.json and labels.json, and knowledge.json beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from kbtrain.dialogue.base import Dialogue, Together, Turn, load_list, parsed, split_of
from kbtrain.errors import UserError, at
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import read_value
from kbtrain.records import Snippet, Speaker, Split, Utterance

_SPEAKERS: dict[str, Speaker] = {"U": "USER", "S": "SYSTEM"}


class _Said(BaseModel):
    speaker: Literal["U", "S"]
    text: str


class _Log(BaseModel):
    turns: list[_Said]


class _Reference(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)
    domain: str
    entity_id: str
    doc_id: str
    doc_type: str | None = None
    sent_id: str | None = None


class _Label(BaseModel):
    target: bool
    knowledge: list[_Reference] = []
    response: str = ""


def dstc_dialogues(path: Path, split: Split | None = None) -> Iterator[Dialogue]:
    """One record per instance; its last turn is the labelled one. Without labels.json labels are unknown. Instances
    that continue one dialogue share its name (:class:`~kbtrain.dialogue.base.Together`).

    All snippets come with the first dialogue: they belong to no dialogue alone. Raises :class:`UserError` naming the
    instance (number from 0, as the data sets count).
    """
    snippets = tuple(dstc_snippets(path / "knowledge.json"))
    snippet_ids, names = {snippet.id for snippet in snippets}, Together()
    for folder in sorted(file.parent for file in path.glob("*/logs.json")):
        name = split_of(folder.name, folder)
        if split not in (None, name):
            continue
        for dialogue in _instances(folder, name, snippet_ids, names):
            yield replace(dialogue, snippets=snippets)
            snippets = ()


def _instances(folder: Path, split: Split, snippet_ids: set[str], names: Together) -> Iterator[Dialogue]:
    logs = load_list(folder / "logs.json")
    labels = load_list(folder / "labels.json") if path_exists(folder / "labels.json") else [None] * len(logs)
    if len(logs) != len(labels):
        raise UserError(f"{at(folder)}: {len(logs)} dialogues in logs.json but {len(labels)} in labels.json")
    for i, (log, label) in enumerate(zip(logs, labels, strict=True)):
        place = f"{folder}: dialogue {i}"
        log_turns = parsed(_Log, {"turns": log}, place).turns
        if not log_turns or log_turns[-1].speaker != "U":
            raise UserError(f"{place}: does not end with the user's turn")
        turns = [Turn(Utterance(_SPEAKERS[turn.speaker], turn.text)) for turn in log_turns]
        name = f"{split}-{i}"
        dialogue_name = names.name([turn.said for turn in turns], name, split)
        turns.append(_last(None if label is None else parsed(_Label, label, place), snippet_ids, place))
        yield Dialogue(name, split, tuple(turns), place, only_last=True, of=dialogue_name)


def _last(label: _Label | None, snippet_ids: set[str], place: str) -> Turn:
    if label is None:
        return Turn(Utterance("SYSTEM", ""))
    gold = tuple(_name(reference) for reference in label.knowledge)
    unknown = next((name for name in gold if name not in snippet_ids), None)
    if unknown is not None:
        raise UserError(f"{place}: its knowledge '{unknown}' is not in knowledge.json")
    return Turn(Utterance("SYSTEM", label.response), label.target, label.response or None, gold)


def _name(reference: _Reference) -> str:
    parts = [reference.domain, reference.entity_id, reference.doc_type, reference.doc_id, reference.sent_id]
    return "/".join(part for part in parts if part is not None)


def dstc_snippets(path: Path) -> Iterator[Snippet]:
    """knowledge.json: DSTC9's documents (title, body); DSTC11's reviews (by sentence) and FAQs."""
    knowledge = read_value(path)
    try:
        for domain, entities in knowledge.items():
            for entity, data in entities.items():
                name = f"{domain}/{entity}"
                yield from _documents(name, data.get("name") or domain, data)
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{at(path)}: not laid out as DSTC9's or DSTC11's knowledge ({error!r:.60})") from None


def _documents(name: str, title: str, data: dict[str, Any]) -> Iterator[Snippet]:
    for i, doc in data.get("docs", {}).items():
        yield Snippet(f"{name}/{i}", None, title, f"{doc['title']} {doc['body']}")
    for i, review in data.get("reviews", {}).items():
        for j, sentence in review["sentences"].items():
            yield Snippet(f"{name}/review/{i}/{j}", None, title, sentence)
    for i, faq in data.get("faqs", {}).items():
        yield Snippet(f"{name}/faq/{i}", None, title, f"{faq['question']} {faq['answer']}")
