"""Turns that teach a response: what is read, what is said, and what the data lacks, counted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kbtrain.dialogue.responder import ResponsePrompts
from kbtrain.dialogue.responses import reference
from kbtrain.errors import UserError, at
from kbtrain.jsonl import read
from kbtrain.records import Hit, Snippet, Split, TurnExample
from kbtrain.training.rows import IGNORE, Row

Know = Literal["none", "enriched", "all"]  # which turns read knowledge while training


@dataclass(frozen=True)
class Lesson:
    """A turn, the knowledge that it reads, and the response that is to be learnt."""

    turn: TurnExample
    hits: tuple[Hit, ...]
    response: str


@dataclass(frozen=True)
class DialogueData:
    """``lacking``: what the data does not have, with how many turns of train and dev it concerns."""

    train: tuple[Lesson, ...]
    dev: tuple[Lesson, ...]
    lacking: dict[str, int]


def read_dialogue_data(path: Path, dev: Path | None, snippets: Path | None, know: Know, k: int) -> DialogueData:
    """Raises :class:`UserError` for a file without turns of its split, or a dialogue in both splits."""
    text = {s.id: Hit(s.id, s.title, s.text, 1.0) for s in read(Snippet, snippets)} if snippets else {}
    turns: dict[Split, list[TurnExample]] = {"train": _of(path, "train"), "dev": _of(dev, "dev") if dev else []}
    held_out = {turn.dialogue_id for turn in turns["dev"]}
    both = next((turn.dialogue_id for turn in turns["train"] if turn.dialogue_id in held_out), None)
    if both is not None:
        raise UserError(f"{at(path)}: dialogue '{both}' stands in train and in dev")
    lessons = {split: tuple(_lessons(found, text, know, k)) for split, found in turns.items()}
    for split, source in (("train", path), ("dev", dev)):
        if source and not lessons[split]:  # type: ignore[index]
            raise UserError(f"{source}: no {split} turn has a response to learn")
    return DialogueData(lessons["train"], lessons["dev"], lacking([*turns["train"], *turns["dev"]], lessons, know))


def _of(path: Path, split: Split) -> list[TurnExample]:
    found = [turn for turn in read(TurnExample, path) if turn.split == split]
    if not found:
        raise UserError(f"{at(path)}: no turn of split '{split}' in it")
    return found


def _lessons(turns: Iterable[TurnExample], snippets: Mapping[str, Hit], know: Know, k: int) -> Iterable[Lesson]:
    """Gold snippets first, then the ranker's, at most ``k`` in all."""
    for turn in turns:
        hits: tuple[Hit, ...] = ()
        if know == "all" or (know == "enriched" and turn.label):
            gold = [snippets[name] for name in turn.gold_snippets if name in snippets]
            found = [hit for hit in turn.knowledge or () if hit.passage_id not in turn.gold_snippets]
            hits = tuple([*gold, *found][:k])
        if reference(turn):
            yield Lesson(turn, hits, reference(turn))


def lacking(turns: Sequence[TurnExample], lessons: Mapping[Split, Sequence[Lesson]], know: Know) -> dict[str, int]:
    """Only what is there to be said: names with a count above 0."""
    enriched = [turn for turn in turns if turn.label]
    given = {lesson.turn.id for split in lessons.values() for lesson in split if lesson.hits}
    wanted = [] if know == "none" else enriched if know == "enriched" else turns
    counts = {
        "turns without a response (left out)": sum(not reference(turn) for turn in turns),
        "enriched turns without their enriched text (the original is learnt)": sum(
            not turn.enriched_response for turn in enriched
        ),
        "enriched turns that name no gold snippet": sum(not turn.gold_snippets for turn in enriched),
        "turns that should read knowledge and have none": sum(turn.id not in given for turn in wanted),
    }
    return {name: count for name, count in counts.items() if count}


@dataclass(frozen=True)
class Lengths:
    """Tokens cut from responses and knowledge, and old turns left out, over all rows of both splits."""

    responses_cut: int
    knowledge_cut: int
    turns_cut: int


def lesson_rows(prompts: ResponsePrompts, lessons: Iterable[Lesson]) -> tuple[list[Row], Lengths]:
    """Loss at the response's tokens and the end token only."""
    rows, cuts = [], [0, 0, 0]
    for lesson in lessons:
        prompt = prompts.prompt(lesson.turn, lesson.hits)
        answer, cut = prompts.response(lesson.response)
        # transformers counts a step's labels from the second on, as if they were yet to be shifted: one goes before
        labels = (IGNORE, *answer)
        rows.append(Row((*prompt.ids, *answer), labels, (0,) * len(labels), (1.0,) * len(labels)))
        cuts = [a + b for a, b in zip(cuts, (cut, prompt.knowledge_cut, prompt.turns_cut), strict=True)]
    return rows, Lengths(*cuts)
