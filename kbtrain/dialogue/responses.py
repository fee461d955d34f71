"""Responses to dialogue turns, stored as they are generated: the feature ``syn-resp``, and those under augmentations.

``syn-resp`` comes from any back end, before the turn. Under an augmentation (RAGate, tables 3 and 4) snippets are put
beside the context; each (turn, augmentation) is generated once, and a gate's row of the tables is a mix of these
responses.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from kbtrain.dialogue.responder import Responder, ResponsePrompt
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.artifact import Artifact, Records
from kbtrain.io.files import beside, has_content, path_exists
from kbtrain.io.provenance import known_sha256
from kbtrain.labeling.judges import PromptJudge
from kbtrain.llm.base import LLM, AnswerRequest
from kbtrain.llm.sample_stage import check_same
from kbtrain.models.batching import windows
from kbtrain.prompts.kbm import SnippetsQuestion
from kbtrain.prompts.ragate import first_kept, turn_text
from kbtrain.records import Evidence, Hit, Question, TurnExample


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


def reference(turn: TurnExample) -> str:
    """Reference response of a turn: the enriched one where people wrote one, else the original; empty: unknown."""
    return turn.enriched_response or turn.response or ""


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

    Raises :class:`UserError` for stored responses of another ``key``: see :class:`~kbtrain.io.artifact.Records`.
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


Way = Literal["top3", "rank1", "rank5"]
WAYS: tuple[Way, ...] = ("top3", "rank1", "rank5")
NONE = "none"
DEEPEST = 5  # hits that the ways need
_SLICES: dict[Way, slice] = {"top3": slice(0, 3), "rank1": slice(0, 1), "rank5": slice(4, 5)}


@dataclass(frozen=True)
class AugmentedResponse:
    """One turn's greedy response. ``snippets``: ids of what it read, none where the ranker found nothing at that
    rank; the least logit and probability of its tokens (without the end token) are None for an empty response."""

    turn_id: str
    augmentation: str
    text: str
    n_tokens: int
    minimum_logit: float | None
    minimum_probability: float | None
    snippets: tuple[str, ...] = ()
    turns_cut: int = 0
    knowledge_cut: int = 0


def snippets_of(way: Way, hits: Sequence[Hit]) -> tuple[Hit, ...]:
    """The first three, the first or the fifth alone; empty where there are fewer."""
    return tuple(hits[_SLICES[way]])


def responses_path(folder: Path, augmentation: str) -> Path:
    """File of an augmentation's responses: ``none.jsonl``, ``tfidf_top3.jsonl``, ..."""
    return folder / f"{augmentation}.jsonl"


def check_turns_replaceable(turns: Artifact, places: frozenset[str]) -> None:
    """As :func:`~kbtrain.llm.sample_stage.check_replaceable`, for turns with responses in the run folder."""
    folder = turns.path.parent
    paths = [folder / "responses.jsonl", *sorted((folder / "responses").glob("*.jsonl"))]
    for path in paths if path_exists(turns.path) else ():
        has_responses = has_content(path) and path_exists(beside(path, ".key"))
        if has_responses and read_key(path).get("turns") == known_sha256(turns.path):
            reason = f"{path.relative_to(folder)} holds responses to these turns"
            check_same(turns, places, reason)


def read_key(path: Path) -> dict[str, Any]:
    """Settings and inputs of stored responses. Raises :class:`UserError` if they are not known."""
    try:
        return jsonl.read_json(beside(path, ".key"))
    except UserError as error:
        raise UserError(f"{error}; run data_gen/respond.py again") from None


def augment(
    responder: Callable[[], Responder],
    turns: Sequence[TurnExample],
    hits: Sequence[Sequence[Hit]],
    path: Path,
    key: Mapping[str, Any],
    without: Mapping[str, AugmentedResponse],
    batch_size: int,
    watch: Callable[[int], object] = lambda n: None,
) -> dict[str, AugmentedResponse]:
    """Every turn's response with these hits: stored ones, and the rest generated and stored. ``path`` names the
    augmentation; a turn without hits takes its response of ``without``. ``watch`` is called with the number of new
    ones.

    Batches are a function of all turns, so that a resumed run ends in the same bytes as an uninterrupted one. Raises
    :class:`UserError` for stored responses of another model, other turns or other snippets.
    """
    name = path.stem
    with Records(path, key, "choose another --out, or move or delete this file", growing=True) as file:
        stored = {response.turn_id: response for response in jsonl.read(AugmentedResponse, path)}
        watch(len(stored))

        def store(responses: Sequence[AugmentedResponse]) -> None:
            file.add(*responses)
            stored.update({response.turn_id: response for response in responses})
            watch(len(responses))

        pairs = list(zip(turns, hits, strict=True))
        bare = [replace(without[turn.id], augmentation=name) for turn, turn_hits in pairs if not turn_hits and without]
        store([response for response in bare if response.turn_id not in stored])
        to_read = [(turn, turn_hits) for turn, turn_hits in pairs if turn_hits or not without]
        if any(turn.id not in stored for turn, _ in to_read):
            opened = responder()
            prompts = [(turn, turn_hits, opened.prompts.prompt(turn, turn_hits)) for turn, turn_hits in to_read]
            prompts.sort(key=lambda entry: (-len(entry[2].ids), entry[0].id))
            for batch in windows(prompts, batch_size):
                if any(turn.id not in stored for turn, _, _ in batch):
                    store([response for response in _batch(opened, name, batch) if response.turn_id not in stored])
    return stored


def _batch(
    responder: Responder, name: str, batch: Sequence[tuple[TurnExample, Sequence[Hit], ResponsePrompt]]
) -> list[AugmentedResponse]:
    answers = responder.respond([prompt.ids for _, _, prompt in batch])
    return [
        AugmentedResponse(
            turn_id=turn.id,
            augmentation=name,
            snippets=tuple(hit.passage_id for hit in hits),
            turns_cut=prompt.turns_cut,
            knowledge_cut=prompt.knowledge_cut,
            **vars(answer),
        )
        for (turn, hits, prompt), answer in zip(batch, answers, strict=True)
    ]


VERDICTS = "useful.jsonl"
Verdicts = Mapping[tuple[str, str], bool | None]  # by turn and augmentation; None: the judge abstained


@dataclass(frozen=True)
class UsefulSnippets:
    """A judge's verdict on the snippets that one augmentation showed for one turn (RAGate, appendix B).

    The judge reads the dialogue so far and the snippets, not the response. ``useful`` None: it abstained.
    """

    turn_id: str
    augmentation: str
    useful: bool | None
    p_useful: float | None = None


def read_snippets(
    turns: Sequence[TurnExample],
    responses: Sequence[AugmentedResponse],
    texts: Mapping[tuple[str, str], Hit],
    words: int,
) -> list[tuple[str, SnippetsQuestion]]:
    """Augmentation and judge's question of each response that read snippets.

    ``texts``: hits by (turn, snippet); ``words`` of the context.
    """
    by_id, questions = {turn.id: turn for turn in turns}, []
    for response in responses:
        if response.snippets and (turn := by_id.get(response.turn_id)) is not None:
            hits = [texts[turn.id, snippet] for snippet in response.snippets]
            passages = tuple(f"{hit.title}: {hit.text}" if hit.title else hit.text for hit in hits)
            context = history_question(turn, words).text
            question = SnippetsQuestion(turn.id, context, (), turn.split, turn.dialogue_id, context_passages=passages)
            questions.append((response.augmentation, question))
    return questions


def verdicts_of(judge: PromptJudge, read: Sequence[tuple[str, SnippetsQuestion]]) -> list[UsefulSnippets]:
    """The judge's verdicts, in their order."""
    opinions = judge.judge_prompts([question for _, question in read])
    return [
        UsefulSnippets(question.id, augmentation, opinion.right, opinion.p_right)
        for (augmentation, question), opinion in zip(read, opinions, strict=True)
    ]


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
