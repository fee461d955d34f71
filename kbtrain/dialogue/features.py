"""Features of dialogue turns: ``syn-resp`` (a generated response) and ``know`` (passages for the context).

Only what was said before a turn is read. Responses are stored as they are generated.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.files import beside, has_content, path_exists
from kbtrain.io.provenance import Artifact, Records, file_sha256
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.llm.sample_stage import check_same
from kbtrain.prompts.ragate import context_text, first_kept, turn_text
from kbtrain.records import Hit, Question, TurnExample
from kbtrain.retrieval.base import DistinctSearch
from kbtrain.retrieval.retrieve_stage import open_index


def history_question(example: TurnExample, words: int) -> Question:
    """The dialogue so far, its oldest turns cut away so that at most about that many words are left."""
    texts = [turn_text(utterance) for utterance in example.context]
    first = min(first_kept([len(text.split()) for text in texts], words), len(texts) - 1)
    return Question(example.id, "\n".join(texts[first:]), (), example.split, example.dialogue_id, form="turn")


def generated(llm: LLM, examples: Sequence[TurnExample], words: int) -> Iterator[dict[str, str]]:
    """Greedy responses by example id, as they are finished; empty where the server refuses the dialogue.

    Raises :class:`UserError` if one is missing.
    """
    requests: Iterable[AnswerRequest] = (
        AnswerRequest(history_question(example, words), "llm", None, 0) for example in examples
    )
    missing = {example.id for example in examples}
    for group in llm.answer(requests):
        texts = {answers.question_id: answers.greedy.text.strip() for answers in group if answers.greedy is not None}
        refused = {answers.question_id: answers.refused for answers in group if answers.refused is not None}
        for name, reason in refused.items():
            warnings.warn(f"example '{name}': refused by the server ({reason}); its response is empty", stacklevel=2)
        texts |= dict.fromkeys(refused, "")
        missing -= set(texts)
        yield texts
    if missing:
        raise UserError(f"example '{min(missing)}' (and {len(missing) - 1} more): the model gave no response")


@dataclass(frozen=True)
class Response:
    """A generated response of one turn."""

    id: str
    text: str


def all_responses(
    path: Path,
    key: Mapping[str, Any],
    open_model: Callable[[], LLM],
    examples: Sequence[TurnExample],
    words: int,
    watch: Callable[[int], object] = lambda n: None,
) -> dict[str, str]:
    """Every example's response by id: stored ones, and the rest generated and stored. ``watch`` is called with the
    number of new ones.

    Raises :class:`UserError` for stored responses of another ``key``: see :class:`~kbtrain.io.provenance.Records`.
    """
    with Records(path, key, "move or delete this file to generate again", growing=True) as file:
        stored = {response.id: response.text for response in jsonl.read(Response, path)}
        missing = [example for example in examples if example.id not in stored]
        watch(len(examples) - len(missing))
        for texts in generated(open_model(), missing, words) if missing else ():
            file.add(*(Response(name, text) for name, text in texts.items()))
            stored |= texts
            watch(len(texts))
    return stored


def search_turns(run: Path, corpus: Path, examples: Iterable[TurnExample], k: int) -> list[tuple[Hit, ...]]:
    """BM25's ``k`` best passages for each turn's context; the corpus' index is kept in the run folder."""
    searcher = DistinctSearch(open_index(corpus, run / "bm25_turns"))
    return searcher.search([context_text(example.context) for example in examples], k)


def check_turns_replaceable(turns: Artifact, places: frozenset[str]) -> None:
    """As :func:`~kbtrain.llm.sample_stage.check_replaceable`, for turns with responses in the run folder."""
    folder = turns.path.parent
    paths = [folder / "responses.jsonl", *sorted((folder / "responses").glob("*.jsonl"))]
    for path in paths if path_exists(turns.path) else ():
        has_responses = has_content(path) and path_exists(beside(path, ".key"))
        if has_responses and jsonl.read_json(beside(path, ".key")).get("turns") == file_sha256(turns.path):
            reason = f"{path.relative_to(folder)} holds responses to these turns"
            check_same(turns, places, reason)
