"""From a run folder to the inputs of RAGate's tables: turns, stored responses, rankers' hits; and what is missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbtrain import jsonl
from kbtrain.dialogue.augmentations import NONE, WAYS, AugmentedResponse, read_key, responses_path
from kbtrain.dialogue.responses import reference
from kbtrain.errors import UserError, at
from kbtrain.evaluation.stored import first_ids
from kbtrain.provenance import file_sha256
from kbtrain.records import Evidence, Hit, TurnExample
from kbtrain.retrieval.ranker_data import Candidates, recall

EVIDENCE = ".evidence.jsonl"


@dataclass(frozen=True)
class Recall:
    """Table 1, over the ``turns`` that name gold snippets; ``reason``: why it has no figures."""

    ranker: str
    turns: int
    recall_1: float | None
    recall_3: float | None
    reason: str | None = None


@dataclass(frozen=True)
class DialogueInputs:
    """``turns``: test turns that have a reference; responses by augmentation, in their order; ``lacking``: what the
    data does not have, in words, with counts."""

    turns: list[TurnExample]
    references: list[str]
    responses: dict[str, list[AugmentedResponse]]
    recalls: list[Recall]
    lacking: list[str]
    files: list[Path]


def read_dialogue(folder: Path, source: Path, turns: Sequence[TurnExample]) -> DialogueInputs:
    """``folder``: of data_gen/respond.py; ``turns``: the labelled test turns of ``source``. Raises :class:`UserError`
    if responses are missing (count, first ids), of several models, or of another file of turns."""
    kept = [turn for turn in turns if reference(turn)]
    if not kept:
        raise UserError(f"none of the {len(turns)} labelled test turns has a response to compare with")
    rankers = sorted(path.name.removesuffix(EVIDENCE) for path in folder.glob(f"*{EVIDENCE}"))
    names = [f"{ranker}_{way}" for ranker in rankers for way in WAYS]
    files = [responses_path(folder, name) for name in [NONE, *names]]
    files = [path for path in files if path.exists() or path.stem == NONE]
    responses = {path.stem: _in_order(path, kept) for path in files}
    _check_keys(files, source)
    if len(files) == 1:
        raise UserError(f"{at(folder)}: no response with knowledge there; run data_gen/respond.py with a ranker")
    found = {ranker: _evidence(folder / f"{ranker}{EVIDENCE}") for ranker in rankers}
    recalls = [recall_of(ranker, kept, hits) for ranker, hits in found.items()]
    notes = [*lacking(turns), *(note for name, made in responses.items() for note in _notes(name, made))]
    files += [folder / f"{ranker}{EVIDENCE}" for ranker in rankers]
    return DialogueInputs(kept, [reference(turn) for turn in kept], responses, recalls, notes, files)


def _in_order(path: Path, turns: Sequence[TurnExample]) -> list[AugmentedResponse]:
    stored = {one.turn_id: one for one in jsonl.read(AugmentedResponse, path)}
    missing = [turn.id for turn in turns if turn.id not in stored]
    if missing:
        told = first_ids(missing).replace("question", "turn")
        raise UserError(f"{at(path)}: no response of {told}; run data_gen/respond.py again, it goes on")
    return [stored[turn.id] for turn in turns]


def _check_keys(files: Sequence[Path], source: Path) -> None:
    """Responses that are put side by side must differ in their knowledge alone."""
    turns, model = file_sha256(source), None
    for path in files:
        key = read_key(path)
        if key["turns"] != turns:
            raise UserError(f"{at(path)}: responses of another turns.jsonl than {source}; generate them again")
        if model not in (None, key["model"]):
            raise UserError(f"{at(path)}: responses of another model than {files[0].name}'s; generate them again")
        model = key["model"]


def _evidence(path: Path) -> dict[str, tuple[Hit, ...]]:
    return {evidence.question_id: evidence.hits for evidence in jsonl.read(Evidence, path)}


def recall_of(ranker: str, turns: Sequence[TurnExample], hits: Mapping[str, Sequence[Hit]]) -> Recall:
    """Mean share of a turn's gold snippets among the first one and three."""
    gold = [turn for turn in turns if turn.gold_snippets]
    if not gold:
        return Recall(ranker, 0, None, None, "no test turn names a gold snippet")
    if ranker == "bm25":
        return Recall(ranker, 0, None, None, "it searches a corpus, whose passages are no gold snippets")
    found = recall(gold, Candidates([]), lambda turn, _, k: hits.get(turn.id, ()))
    return Recall(ranker, len(gold), found["recall@1"], found["recall@3"])


def lacking(turns: Sequence[TurnExample]) -> list[str]:
    """What test turns do not have, each with a count; nothing that is complete."""
    enriched = [turn for turn in turns if turn.label]
    counts = {
        f"of {len(turns)} test turns have no response text and are left out": sum(not reference(t) for t in turns),
        f"of {len(enriched)} enriched test turns have no enriched text: their reference is the original response": sum(
            not turn.enriched_response for turn in enriched
        ),
        f"of {len(enriched)} enriched test turns name no gold snippet: table 1 leaves them out": sum(
            not turn.gold_snippets for turn in enriched
        ),
        f"of {len(turns)} test turns have no position: figure 3 leaves them out": sum(
            t.position is None for t in turns
        ),
        f"of {len(turns)} test turns name no service: figure 4 calls their domain none": sum(
            not turn.services for turn in turns
        ),
    }
    return [f"{count} {text}" for text, count in counts.items() if count]


def _notes(name: str, made: Sequence[AugmentedResponse]) -> list[str]:
    """What the responses of one augmentation lack."""
    bare = sum(not one.snippets for one in made) if name != NONE else 0
    counts = {
        f"of {len(made)} turns found no snippet: their response is that without knowledge": bare,
        f"of {len(made)} responses are empty: they score 0 and have no confidence": sum(not one.text for one in made),
        f"of {len(made)} turns read less than the whole dialogue": sum(one.turns_cut > 0 for one in made),
        f"of {len(made)} turns read snippets that were cut": sum(one.knowledge_cut > 0 for one in made),
    }
    return [f"{name}: {count} {text}" for text, count in counts.items() if count]
