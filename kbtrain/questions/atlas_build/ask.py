"""Facts into questions: open ones and multiple choice."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from kbtrain.answers.grading import normalise
from kbtrain.questions.atlas_build.chance import share, shuffled
from kbtrain.questions.atlas_build.facts import Fact
from kbtrain.questions.atlas_build.wording import WORDINGS, wanted
from kbtrain.records import Question

DATASET = "atlas"
_LETTERS = {"A", "B", "C", "D"}  # boron's symbol as an option would read as the option's letter


def open_questions(facts: Iterable[Fact]) -> Iterator[Question]:
    """The facts that the shares pick to be asked openly."""
    for fact in facts:
        picked = share("open", fact.key) < _chances(fact)[0]
        if picked and fact.open_safe:
            yield _question(fact, f"{fact.key}/open", fact.answers)


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
