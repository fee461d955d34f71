"""Scores of a stack or an average from those of its members that a run folder holds: no model is asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kbtrain.gate.gate import ByName
from kbtrain.gates.handles import GateHandle, GateOpening, handle
from kbtrain.gates.registry import kind_of, read_card
from kbtrain.gates.scoring import Chunk, Engine, ScoredChunk, Timing, score_path, scored_id
from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta
from kbtrain.records import GateScore

FromMembers = Callable[[Sequence[ByName]], dict[str, list[float]]]


@dataclass(frozen=True)
class _Stored:
    """A member's scores by (name, id), the names that it gives them itself; what one example took."""

    names: dict[str, str]  # its own name -> the stored one
    scores: dict[tuple[str, str], float]
    costs: Mapping[str, Any]  # as the scores' meta data have them

    def scores_of(self, chunk: Chunk) -> ByName:
        return {
            score: [self.scores[name, scored_id(example)] for example in chunk.examples]
            for score, name in self.names.items()
        }

    def took(self, chunk: Chunk) -> tuple[float, dict[str, float]]:
        """Seconds and spent of the chunk; a gate that notes nothing spent makes a request each."""
        name, n = next(iter(self.names.values())), len(chunk.examples)
        seconds, spent = (self.costs[f"{what}_per_question"][name][chunk.split] for what in ("seconds", "spent"))
        return n * seconds, {what: n * value for what, value in (spent or {"requests": 1.0}).items()}


def from_members(opening: GateOpening, run: Path, stored: Callable[[GateHandle], bool]) -> Engine | None:
    """An engine of the stack or average that ``opening`` names, if ``stored`` says of each member that its scores are
    in ``run``.

    None for gates of other kinds, where a member's scores are missing, and for an average of a member with several: by
    which of them it decides may change with a threshold noted later. Costs are the sum of the members'.
    """
    folder = Path(opening.model)
    card, kind = read_card(folder), kind_of(folder)[1]
    if kind.of_members is None:
        return None
    score: FromMembers = partial(kind.of_members, card)
    members = []
    for part in card.parts():
        member = handle(folder / part, opening.dtype, states=opening.states)
        if not stored(member) or (kind.one_score and len(member.names) > 1):
            return None
        members.append(_read(member, run))

    def engine(gate: GateHandle, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
        for chunk in chunks:
            yield _scored(score, members, gate, chunk)

    return engine


def _read(member: GateHandle, run: Path) -> _Stored:
    path = score_path(run, member.name)
    scores = {(row.gate, row.question_id): row.score for row in jsonl.read(GateScore, path)}
    return _Stored(member.own_names, scores, read_meta(path))


def _scored(score: FromMembers, members: Sequence[_Stored], gate: GateHandle, chunk: Chunk) -> ScoredChunk:
    by_name = gate.name_scores(score([member.scores_of(chunk) for member in members]), chunk.examples)
    scores = [GateScore(scored_id(e), n, by_name[n][i]) for n in gate.names for i, e in enumerate(chunk.examples)]
    seconds, spent = 0.0, Counter[str]()
    for member in members:
        took, used = member.took(chunk)
        seconds += took
        spent.update({what: round(value) for what, value in used.items()})
    device = ", ".join(sorted({member.costs["device"] for member in members}))
    timing = Timing(gate.names, chunk.split, len(chunk.examples), seconds, dict(spent), device)
    return ScoredChunk(tuple(scores), timing)
