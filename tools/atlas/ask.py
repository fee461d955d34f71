"""Questions from facts: open ones, and multiple choice about one entity or over several (the largest of four, ...)."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atlas.chance import share, shuffled
from atlas.facts import City, Country, Fact
from atlas.wording import COMPARISONS, SPLIT_SHARES, WORDINGS, wanted, wanted_known
from kbtrain.answers.words import normalise
from kbtrain.records import Question, Split

DATASET, KNOWN = "atlas", "atlas_known"
_LETTERS = {"A", "B", "C", "D"}  # boron's symbol as an option would read as the option's letter


def open_questions(facts: Iterable[Fact]) -> Iterator[Question]:
    """The facts that the shares pick for open questions."""
    for fact in facts:
        picked = share("open", fact.key) < _chances(fact)[0]
        if picked and fact.open_safe:
            yield _question(fact, f"{fact.key}/open", fact.answers)


def known_questions(facts: Iterable[Fact]) -> Iterator[Question]:
    """Open questions of the second set: mostly about well-known subjects, of which a small model knows some."""
    for fact in facts:
        picked = share(KNOWN, fact.key) < wanted_known(fact.relation, fact.kind, fact.hops, fact.popularity)
        if picked and fact.open_safe:
            yield dataclasses.replace(_question(fact, f"{fact.key}/open", fact.answers), dataset=KNOWN)


def choice_questions(facts: Sequence[Fact]) -> Iterator[Question]:
    """The facts picked for multiple choice; the three wrong options answer other facts of the same split."""
    pools: dict[tuple[str, str, str], list[Fact]] = defaultdict(list)
    for fact in facts:
        if fact.answers[0] not in _LETTERS:
            pools[fact.relation, fact.kind, fact.split].append(fact)
    for fact in facts:
        # 1 - share: a fact is rather asked in one form than in both
        picked = 1 - share("open", fact.key) <= _chances(fact)[1]
        if not picked or fact.answers[0] in _LETTERS:
            continue
        wrong = _distractors(fact, pools[fact.relation, fact.kind, fact.split])
        if len(wrong) == 3:
            base = _question(fact, f"{fact.key}/choice", ())
            others = [entity for other in wrong for entity in _answer_entity(other)]
            yield as_choice(base, fact.answers[0], [other.answers[0] for other in wrong], others)


def _chances(fact: Fact) -> tuple[float, float]:
    return wanted(fact.relation, fact.kind, fact.hops, fact.popularity)


def _answer_entity(fact: Fact) -> tuple[str, ...]:
    return fact.entities[1:] if fact.relation in {"capital", "country", "state"} else ()


def _distractors(fact: Fact, pool: list[Fact]) -> list[Fact]:
    """Three other answers, from the same region first."""
    taken = {normalise(a) for a in fact.answers} | {normalise(fact.subject)}
    found: list[Fact] = []
    keyed = {other.key: other for other in pool}
    order = [keyed[key] for key in shuffled(keyed, "wrong", fact.key)]
    for other in sorted(order, key=lambda other: other.region != fact.region):
        names = {normalise(a) for a in other.answers}
        if not names & taken and len(found) < 3:
            found.append(other)
            taken |= names
    return found


def _question(fact: Fact, identity: str, answers: tuple[str, ...]) -> Question:
    wordings = WORDINGS[fact.relation, fact.kind, fact.hops]
    text = wordings[int(share("wording", identity) * len(wordings))].format(x=fact.subject)
    return Question(
        id=identity,
        text=text,
        answers=answers,
        split=fact.split,
        dataset=DATASET,
        relation=fact.relation,
        hops=fact.hops,
        popularity=fact.popularity,
        entities=fact.entities,
        gold_passages=fact.gold,
    )


def as_choice(base: Question, right: str, wrong: Sequence[str], others: Sequence[str]) -> Question:
    """A multiple-choice question, the right option first (:func:`balanced` moves it to its place).

    ``others`` are the entities among the wrong options.
    """
    return dataclasses.replace(
        base,
        form="choice",
        grading="option",
        options=(right, *wrong),
        answers=("A",),
        entities=tuple(dict.fromkeys([*base.entities, *others])),
    )


def balanced(questions: Iterable[Question]) -> Iterator[Question]:
    """Give the right option its letter: A, B, C, D in turn within each relation and split."""
    turn: dict[tuple[str | None, str], int] = defaultdict(int)
    for question in sorted(questions, key=lambda q: (share("letter", q.id), q.id)):
        if question.form == "choice":
            group = (question.relation, question.split)
            start = int(share("first letter", *group) * 4)
            place = (start + turn[group]) % 4
            turn[group] += 1
            rest = list(question.options[1:])
            options = (*rest[:place], question.options[0], *rest[place:])
            question = dataclasses.replace(question, options=options, answers=(chr(65 + place),))
        yield question


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
