"""Usefulness of the snippets that augmented responses read, by a judge model (RAGate, appendix B).

Where people named gold snippets these say it; elsewhere a judge of :mod:`kbtrain.labeling.judges` is asked. It sees the
dialogue so far and the snippets, not the response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbtrain.dialogue.responses import AugmentedResponse, history_question
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.labeling.judges import PromptJudge
from kbtrain.prompts.kbm import SnippetsQuestion
from kbtrain.records import Evidence, Hit, TurnExample

VERDICTS = "useful.jsonl"
Verdicts = Mapping[tuple[str, str], bool | None]  # by turn and augmentation; None: the judge abstained


@dataclass(frozen=True)
class UsefulSnippets:
    """A judge's verdict on what one augmentation showed for one turn; ``useful`` None: it abstained."""

    turn_id: str
    augmentation: str
    useful: bool | None
    p_useful: float | None = None


@dataclass(frozen=True)
class ReadSnippets:
    """Snippets that one augmentation showed for one turn, as a judge is asked about them."""

    augmentation: str
    question: SnippetsQuestion


def read_snippets(
    turns: Sequence[TurnExample],
    responses: Sequence[AugmentedResponse],
    texts: Mapping[tuple[str, str], Hit],
    words: int,
) -> list[ReadSnippets]:
    """One for each response that read snippets; ``texts``: hits by (turn, snippet), ``words`` of the context."""
    by_id = {turn.id: turn for turn in turns}
    return [
        ReadSnippets(
            response.augmentation,
            _question(
                by_id[response.turn_id], [texts[response.turn_id, snippet] for snippet in response.snippets], words
            ),
        )
        for response in responses
        if response.snippets and response.turn_id in by_id
    ]


def verdicts_of(judge: PromptJudge, read: Sequence[ReadSnippets]) -> list[UsefulSnippets]:
    """The judge's verdicts, in their order."""
    opinions = judge.judge_prompts([snippets.question for snippets in read])
    return [
        UsefulSnippets(snippets.question.id, snippets.augmentation, opinion.right, opinion.p_right)
        for snippets, opinion in zip(read, opinions, strict=True)
    ]


def _question(turn: TurnExample, hits: Sequence[Hit], words: int) -> SnippetsQuestion:
    context = history_question(turn, words)
    texts = tuple(f"{hit.title}: {hit.text}" if hit.title else hit.text for hit in hits)
    return SnippetsQuestion(turn.id, context.text, (), turn.split, turn.dialogue_id, context_passages=texts)


def read_texts(path: Path, responses: Sequence[AugmentedResponse]) -> dict[tuple[str, str], Hit]:
    """A ranker's hits by (turn, snippet). Raises :class:`UserError` where one lacks that a response has read."""
    hits = {(row.question_id, hit.passage_id): hit for row in jsonl.read(Evidence, path) for hit in row.hits}
    missing = next(((row.turn_id, s) for row in responses for s in row.snippets if (row.turn_id, s) not in hits), None)
    if missing is not None:
        raise UserError(f"{at(path)}: no text of snippet '{missing[1]}', which the response to turn '{missing[0]}' "
                        "read; run data_gen/respond.py again")  # fmt: skip
    return hits


def read_verdicts(folder: Path) -> dict[tuple[str, str], bool | None]:
    """The stored verdicts of a folder of responses; empty where nothing was judged."""
    path = folder / VERDICTS
    rows = jsonl.read(UsefulSnippets, path) if path_exists(path) else ()
    return {(row.turn_id, row.augmentation): row.useful for row in rows}
