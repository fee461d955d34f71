"""Scores of a stack from those of its members that a run folder holds: no member is opened, no model asked again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbtrain import jsonl
from kbtrain.gates.handles import GateHandle, Opening, handle
from kbtrain.gates.registry import kind_of
from kbtrain.gates.score_stage import Chunk, Costs, Engine, ScoredChunk, Timing, costs_of, score_path, scored_id
from kbtrain.gates.stack.gate import Member, StackCard, combined
from kbtrain.records import GateScore


@dataclass(frozen=True)
class _Stored:
    """A member's scores by (name, id), under the names that the stack's models give them; what one example took."""

    names: dict[str, str]  # the stack's name -> the stored one
    scores: dict[tuple[str, str], float]
    costs: Costs

    def columns(self, chunk: Chunk) -> dict[str, list[float]]:
        return {
            given: [self.scores[name, scored_id(example)] for example in chunk.examples]
            for given, name in self.names.items()
        }

    def took(self, chunk: Chunk) -> tuple[float, dict[str, float]]:
        """Seconds and spent of the chunk; a gate that notes nothing spent makes a request each."""
        name, n = next(iter(self.names.values())), len(chunk.examples)
        spent = self.costs.spent(name, chunk.split) or {"requests": 1.0}
        return n * self.costs.seconds(name, chunk.split), {what: n * value for what, value in spent.items()}


def from_members(opening: Opening, run: Path, stored: Callable[[GateHandle], bool]) -> Engine | None:
    """An engine of the stack that ``opening`` names, if ``stored`` says of each member that its scores are in ``run``.

    None for gates of other kinds, and where a member's scores are missing. Costs are the sum of the members'.
    """
    folder = Path(opening.model)
    kind_name, kind = kind_of(folder)
    card = kind.card.read(folder, kind_name)
    if not isinstance(card, StackCard):
        return None
    found = []
    for member in card.members:
        one = handle(folder / member.folder, opening.dtype)
        if not stored(one):
            return None
        found.append(_read(member, one, run))

    def engine(gate: GateHandle, chunks: Sequence[Chunk]) -> Iterator[ScoredChunk]:
        for chunk in chunks:
            yield _scored(card, found, gate, chunk)

    return engine


def _read(member: Member, one: GateHandle, run: Path) -> _Stored:
    rows = jsonl.read(GateScore, score_path(run, one.name))
    names = {given: one.stored.get(score, score) for score, given in member.inputs().items()}
    return _Stored(names, {(row.gate, row.question_id): row.score for row in rows}, costs_of(run, one))


def _scored(card: StackCard, members: Sequence[_Stored], gate: GateHandle, chunk: Chunk) -> ScoredChunk:
    columns = {name: values for one in members for name, values in one.columns(chunk).items()}
    made = gate.named(combined(card, columns, card.keys), chunk.examples)
    scores = [GateScore(scored_id(e), n, made[n][i]) for n in gate.names for i, e in enumerate(chunk.examples)]
    seconds, spent = 0.0, Counter[str]()
    for one in members:
        took, used = one.took(chunk)
        seconds += took
        spent.update({what: round(value) for what, value in used.items()})
    device = ", ".join(sorted({one.costs.device() for one in members}))
    timing = Timing(gate.names, chunk.split, len(chunk.examples), seconds, dict(spent), device)
    return ScoredChunk(tuple(scores), timing)
