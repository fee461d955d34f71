"""Facts into questions: open ones, multiple choice, and comparisons among four."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from kbtrain.labeling.grading import normalise
from kbtrain.questions.atlas_build.entities import City, Country
from kbtrain.questions.atlas_build.facts import Fact
from kbtrain.questions.atlas_build.hashing import share, shuffled
from kbtrain.questions.atlas_build.wording import COMPARISONS, SHARES, SPLIT_SHARES, WORDINGS
from kbtrain.records import Question

DATASET = "atlas"
T = TypeVar("T", City, Country)


def open_questions(facts: Iterable[Fact]) -> Iterator[Question]:
    """The facts that the shares pick to be asked openly."""
    for fact in facts:
        picked = share("open", fact.key) < SHARES[fact.relation, fact.kind, fact.hops][0]
        if picked and fact.open_safe:
            yield _question(fact, f"{fact.key}/open", fact.answers)


def choice_questions(facts: Sequence[Fact]) -> Iterator[Question]:
    """The facts picked for multiple choice; the three wrong options answer other facts of the same split."""
    pools: dict[tuple[str, str, str], list[Fact]] = defaultdict(list)
    for fact in facts:
        pools[fact.relation, fact.kind, fact.split].append(fact)
    for fact in facts:
        # 1 - share: a fact is rather asked in one form than in both
        if 1 - share("open", fact.key) > SHARES[fact.relation, fact.kind, fact.hops][1]:
            continue
        wrong = _distractors(fact, pools[fact.relation, fact.kind, fact.split])
        if len(wrong) == 3:
            others = tuple(e for other in wrong if other.answers != fact.answers for e in _answer_entity(other))
            yield _choice(
                _question(fact, f"{fact.key}/choice", ()), fact.answers[0], [w.answers[0] for w in wrong], others
            )


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


def _choice(base: Question, right: str, wrong: list[str], others: tuple[str, ...]) -> Question:
    """The right option first; :func:`balanced` moves it to its place."""
    return Question(
        **{
            **vars(base),
            "form": "choice",
            "grading": "option",
            "options": (right, *wrong),
            "answers": ("A",),
            "entities": tuple(dict.fromkeys([*base.entities, *others])),
        }
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
            question = Question(**{**vars(question), "options": options, "answers": (chr(65 + place),)})
        yield question


def comparisons(lands: Sequence[Country], places: Sequence[City]) -> Iterator[Question]:
    """Which of four has the most people, the largest area, a border with a country; all four of one split."""
    for split, part in SPLIT_SHARES.items():
        here = [c for c in places if c.split == split and c.unique]
        ground = [land for land in lands if land.split == split and land.area_km2 > 0]
        yield from _largest("most_people", here, part, lambda c: c.population, "", "Which of these has the most people")
        yield from _largest(
            "largest_area", ground, part, lambda x: x.area_km2, ":land", "Which of these has the largest area"
        )
        yield from _borders(ground, part)


def _largest(
    relation: str, items: Sequence[T], part: float, size: Callable[[T], int], page: str, ask: str
) -> Iterator[Question]:
    """Fours of which one is at least 1.5 times as large as the next."""
    keyed = {item.id: item for item in items}
    made = 0
    for first in shuffled(keyed, relation):
        if made >= round(COMPARISONS[relation] * part):
            return
        four = [keyed[first], *(keyed[i] for i in shuffled(set(keyed) - {first}, relation, first)[:3])]
        four.sort(key=lambda item: (-size(item), item.id))
        if size(four[0]) < 1.5 * size(four[1]):
            continue
        made += 1
        said = [_said(item) for item in shuffled({item.id: item for item in four}.values(), "said", first)]
        names = [_said(item) for item in four]
        base = Question(
            id=f"{relation}/{first.replace(':', '/')}/choice",
            text=f"{ask}: {', '.join(said[:3])} or {said[3]}?",
            answers=(),
            split=four[0].split,
            dataset=DATASET,
            relation=relation,
            hops=1,
            popularity=round(sum(item.popularity for item in four) / 4, 4),
            entities=tuple(item.id for item in four),
            gold_passages=tuple(f"{item.id}{page}" for item in four),
        )
        yield _choice(base, names[0], names[1:], ())


def _said(item: City | Country) -> str:
    return item.said if isinstance(item, Country) else item.name


def _borders(lands: Sequence[Country], part: float) -> Iterator[Question]:
    """A neighbour among three countries of the same continent that are none."""
    keyed = {land.id: land for land in lands}
    made = 0
    for first in shuffled(keyed, "borders"):
        land = keyed[first]
        near = [i for i in land.neighbours if i in keyed]
        far = [i for i in keyed if i not in {first, *land.neighbours} and keyed[i].continent == land.continent]
        if made >= round(COMPARISONS["borders"] * part) or not near or len(far) < 3:
            continue
        made += 1
        right, *wrong = [shuffled(near, "near", first)[0], *shuffled(far, "far", first)[:3]]
        base = Question(
            id=f"borders/{first.replace(':', '/')}/choice",
            text=f"Which of these countries borders {land.said}?",
            answers=(),
            split=land.split,
            dataset=DATASET,
            relation="borders",
            hops=1,
            popularity=land.popularity,
            entities=(first, right, *wrong),
            gold_passages=(f"{first}:land",),
        )
        yield _choice(base, keyed[right].said, [keyed[i].said for i in wrong], ())
