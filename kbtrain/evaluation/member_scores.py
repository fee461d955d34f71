"""Scores of a stack or an average from those of its members that a run folder holds: no model is asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kbtrain.gates.combination import ByName
from kbtrain.gates.handles import GateHandle, Opening, handle
from kbtrain.gates.registry import kind_of, read_card
from kbtrain.gates.score_file import Costs, Timing, costs_of, score_path
from kbtrain.gates.score_stage import Chunk, Engine, ScoredChunk, scored_id
from kbtrain.io import jsonl
from kbtrain.records import GateScore

FromMembers = Callable[[Sequence[ByName]], dict[str, list[float]]]


@dataclass(frozen=True)
class _Stored:
    """A member's scores by (name, id), the names that it gives them itself; what one example took."""

    names: dict[str, str]  # its own name -> the stored one
    scores: dict[tuple[str, str], float]
    costs: Costs

    def scores_of(self, chunk: Chunk) -> ByName:
        return {
            own: [self.scores[name, scored_id(example)] for example in chunk.examples]
            for own, name in self.names.items()
        }

    def took(self, chunk: Chunk) -> tuple[float, dict[str, float]]:
        """Seconds and spent of the chunk; a gate that notes nothing spent makes a request each."""
        name, n = next(iter(self.names.values())), len(chunk.examples)
        spent = self.costs.spent(name, chunk.split) or {"requests": 1.0}
        return n * self.costs.seconds(name, chunk.split), {what: n * value for what, value in spent.items()}


def from_members(opening: Opening, run: Path, stored: Callable[[GateHandle], bool]) -> Engine | None:
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
    found = []
    for part in card.parts():
        one = handle(folder / part, opening.dtype, states=opening.states)
        if not stored(one) or (kind.one_score and len(one.names) > 1):
            return None
        found.append(_read(one, run))

    def engine(gate: GateHandle, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
        for chunk in chunks:
            yield _scored(score, found, gate, chunk)

    return engine


def _read(one: GateHandle, run: Path) -> _Stored:
    rows = jsonl.read(GateScore, score_path(run, one.name))
    own = {name: given for given, name in one.stored.items()}
    names = {own.get(name, name): name for name in one.names}
    return _Stored(names, {(row.gate, row.question_id): row.score for row in rows}, costs_of(run, one))


def _scored(score: FromMembers, members: Sequence[_Stored], gate: GateHandle, chunk: Chunk) -> ScoredChunk:
    made = gate.name_scores(score([one.scores_of(chunk) for one in members]), chunk.examples)
    scores = [GateScore(scored_id(e), n, made[n][i]) for n in gate.names for i, e in enumerate(chunk.examples)]
    seconds, spent = 0.0, Counter[str]()
    for one in members:
        took, used = one.took(chunk)
        seconds += took
        spent.update({what: round(value) for what, value in used.items()})
    device = ", ".join(sorted({one.costs.device() for one in members}))
    timing = Timing(gate.names, chunk.split, len(chunk.examples), seconds, dict(spent), device)
    return ScoredChunk(tuple(scores), timing)
