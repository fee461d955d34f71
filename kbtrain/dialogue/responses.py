"""Generated responses, kept as they are finished: the feature ``syn-resp`` (of whatever back end, before the turn), and
a turn's response under an augmentation (RAGate, tables 3 and 4)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbtrain import jsonl
from kbtrain.errors import UserError
from kbtrain.llm.base import LLM, Ask
from kbtrain.prompts.context import first_kept, turn_text
from kbtrain.records import Question, TurnExample


def asked(example: TurnExample, words: int) -> Question:
    """The dialogue so far, its oldest turns cut away so that at most about so many words are left."""
    texts = [turn_text(utterance) for utterance in example.context]
    kept = min(first_kept([len(text.split()) for text in texts], words), len(texts) - 1)
    return Question(example.id, "\n".join(texts[kept:]), (), example.split, example.dialogue_id, form="turn")


def generated(llm: LLM, examples: Sequence[TurnExample], words: int) -> Iterator[dict[str, str]]:
    """Greedy responses by example id, as they are finished. Raises :class:`UserError` if one is missing."""
    asks: Iterable[Ask] = (Ask(asked(example, words), "llm", None, 0) for example in examples)
    missing = {example.id for example in examples}
    for group in llm.answer(asks):
        found = {one.question_id: one.greedy.text.strip() for one in group if one.greedy is not None}
        missing -= set(found)
        yield found
    if missing:
        raise UserError(f"example '{min(missing)}' (and {len(missing) - 1} more): the model gave no response")


def reference(turn: TurnExample) -> str:
    """What the turn should say: its enriched response where people wrote one, else the original; empty: unknown."""
    return turn.enriched_response or turn.response or ""


@dataclass(frozen=True)
class Response:
    """A generated response of one turn."""

    id: str
    text: str


def kept_responses(path: Path, key: Mapping[str, Any]) -> dict[str, str]:
    """The responses that an earlier run left in ``path``, if it was made with the same ``key``; else the file begins
    anew. A line that a killed run left unfinished is cut off."""
    note = path.with_name(path.name + ".key")
    wanted = json.dumps(dict(key), sort_keys=True)
    if not (path.exists() and note.exists() and note.read_text(encoding="utf-8") == wanted):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
        note.write_text(wanted, encoding="utf-8")
    cut_unfinished(path)
    return {response.id: response.text for response in jsonl.read(Response, path)}


def cut_unfinished(path: Path) -> None:
    """Cut off a last line that a killed run left without its end."""
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def keep(path: Path, found: Iterable[Any]) -> None:
    """Append finished records; they survive a kill from here on."""
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(jsonl.dump(record) + "\n" for record in found)
        file.flush()
        os.fsync(file.fileno())


def all_responses(
    path: Path,
    key: Mapping[str, Any],
    open_model: Callable[[], LLM],
    examples: Sequence[TurnExample],
    words: int,
    watch: Callable[[int], object] = lambda n: None,
) -> dict[str, str]:
    """Every example's response by id: kept ones, and the rest generated and kept. ``watch`` is told of new ones."""
    made = kept_responses(path, key)
    rest = [example for example in examples if example.id not in made]
    watch(len(examples) - len(rest))
    for found in generated(open_model(), rest, words) if rest else ():
        keep(path, [Response(name, text) for name, text in found.items()])
        made |= found
        watch(len(found))
    return made
