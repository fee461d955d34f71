"""Responses to dialogue turns under augmentations (RAGate, tables 3 and 4): snippets are put beside the context.

Each (turn, augmentation) is generated once and stored; a gate's row of the tables is a mix of these responses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.files import beside
from kbtrain.io.provenance import Records
from kbtrain.models.batching import windows
from kbtrain.records import Hit, TurnExample
from ragate_responses.responder import Responder, ResponsePrompt


def reference(turn: TurnExample) -> str:
    """Reference response of a turn: the enriched one where people wrote one, else the original; empty: unknown."""
    return turn.enriched_response or turn.response or ""


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


def read_key(path: Path) -> dict[str, Any]:
    """Settings and inputs of stored responses. Raises :class:`UserError` if they are not known."""
    try:
        return jsonl.read_json(beside(path, ".key"))
    except UserError as error:
        raise UserError(f"{error}; run studies/respond.py again") from None


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
