"""Multiple choice over several entities: which of four is the largest, which of four borders a country."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kbtrain.questions.atlas_build.ask import DATASET, as_choice
from kbtrain.questions.atlas_build.chance import shuffled
from kbtrain.questions.atlas_build.entities import City, Country
from kbtrain.questions.atlas_build.wording import COMPARISONS, SPLIT_SHARES
from kbtrain.records import Question, Split

MARGIN = 1.5  # sizes closer than this may be the other way round in another source


@dataclass(frozen=True)
class Sized:
    """Something with a size, and the passage that states it."""

    id: str
    said: str
    size: int
    passage: str
    popularity: float


def comparisons(lands: Sequence[Country], places: Sequence[City]) -> Iterator[Question]:
    """All four entities of a comparison are of one split."""
    for split in SPLIT_SHARES:
        towns = [Sized(c.id, c.name, c.population, c.id, c.popularity) for c in places if c.split == split and c.unique]
        here = [land for land in lands if land.split == split]
        grounds = [Sized(x.id, x.said, x.area_km2, f"{x.id}:land", x.popularity) for x in here if x.area_km2]
        yield from _largest("most_people", "Which of these has the most people", towns, split)
        yield from _largest("largest_area", "Which of these has the largest area", grounds, split)
        yield from _borders({land.id: land for land in here}, split)


def _wanted(relation: str, split: Split) -> int:
    return round(COMPARISONS[relation] * SPLIT_SHARES[split])


def _largest(relation: str, ask: str, items: Sequence[Sized], split: Split) -> Iterator[Question]:
    """Fours of which one is clearly the largest."""
    keyed = {item.id: item for item in items}
    left = _wanted(relation, split)
    for first in shuffled(keyed, relation):
        others = [keyed[i] for i in shuffled(set(keyed) - {first}, relation, first)[:3]]
        best, *rest = sorted([keyed[first], *others], key=lambda item: (-item.size, item.id))
        if left and best.size >= MARGIN * rest[0].size:
            left -= 1
            yield _which(relation, ask, first, best, rest, split)


def _which(relation: str, ask: str, name: str, best: Sized, rest: list[Sized], split: Split) -> Question:
    four = [best, *rest]
    said = shuffled((item.said for item in four), "said", relation, name)
    base = Question(
        id=f"{relation}/{name.replace(':', '/')}/choice",
        text=f"{ask}: {', '.join(said[:3])} or {said[3]}?",
        answers=(),
        split=split,
        dataset=DATASET,
        relation=relation,
        hops=1,
        popularity=round(sum(item.popularity for item in four) / 4, 4),
        entities=tuple(item.id for item in four),
        gold_passages=tuple(item.passage for item in four),
    )
    return as_choice(base, best.said, [word for word in said if word != best.said], ())


def _borders(lands: Mapping[str, Country], split: Split) -> Iterator[Question]:
    """A neighbour among three countries of the same continent that are none."""
    left = _wanted("borders", split)
    for first in shuffled(lands, "borders"):
        land = lands[first]
        near = shuffled((i for i in land.neighbours if i in lands), "near", first)
        apart = {i for i in lands if lands[i].continent == land.continent} - {first, *land.neighbours}
        if left and near and len(apart) >= 3:
            left -= 1
            yield _neighbour(land, lands[near[0]], [lands[i] for i in shuffled(apart, "far", first)[:3]])


def _neighbour(land: Country, right: Country, wrong: list[Country]) -> Question:
    base = Question(
        id=f"borders/{land.id.replace(':', '/')}/choice",
        text=f"Which of these countries borders {land.said}?",
        answers=(),
        split=land.split,
        dataset=DATASET,
        relation="borders",
        hops=1,
        popularity=land.popularity,
        entities=(land.id, right.id),
        gold_passages=(f"{land.id}:land",),
    )
    return as_choice(base, right.said, [other.said for other in wrong], [other.id for other in wrong])
