"""Which questions are taken: first ones, seeded draws, and what becomes of those without a known answer."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Literal

from kbtrain.io import jsonl
from kbtrain.questions.base import Loaded, context
from kbtrain.questions.collect import CollectCounts, PickRule, pick_questions, write_questions
from kbtrain.records import Passage, Question, Split

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
QUESTIONS = [
    Loaded(Question(f"q{i}", f"What is {i}?", ("a",), SPLITS[i % 3], "d"), "x.jsonl", i + 1) for i in range(300)
]  # fmt: skip


def ids(wanted: PickRule, questions: list[Loaded] = QUESTIONS, tally: CollectCounts | None = None) -> list[str]:
    return [one.question.id for one in pick_questions(lambda: iter(questions), wanted, tally or CollectCounts())]


def test_the_first_ones_up_to_each_limit() -> None:
    tally = CollectCounts()
    assert ids(PickRule({"train": 2, "dev": 0, "test": 1}), tally=tally) == ["q0", "q2", "q3"]
    assert (tally.splits, tally.dropped) == ({"train": 2, "test": 1}, {"beyond": 297})
    assert ids(PickRule({"all": 4})) == ["q0", "q1", "q2", "q3"]
    assert len(ids(PickRule({}))) == 300


def test_a_draw_has_the_wanted_size_and_does_not_depend_on_the_order() -> None:
    wanted = PickRule({"train": 20, "dev": 7, "test": None}, "random", 3)
    drawn = ids(wanted)
    assert Counter(int(name[1:]) % 3 for name in drawn) == {0: 20, 1: 7, 2: 100}
    assert drawn == sorted(drawn, key=lambda name: int(name[1:]))
    assert set(ids(wanted, QUESTIONS[::-1])) == set(drawn)
    assert set(ids(PickRule({"train": 20, "dev": 7, "test": None}, "random", 4))) != set(drawn)
    assert len(ids(PickRule({"all": 50}, "random"))) == 50
    assert ids(PickRule({"all": 0}, "random")) == []
    assert len(ids(PickRule({"all": 1000}, "random"))) == 300


def test_a_draw_is_uniform() -> None:
    counts = Counter(name for seed in range(200) for name in ids(PickRule({"all": 30}, "random", seed)))
    assert len(counts) == 300 and min(counts.values()) >= 4 and max(counts.values()) <= 40  # 20 each, deviation 4.2


def without(gold: Literal["none", "hidden"]) -> Loaded:
    return Loaded(dataclasses.replace(QUESTIONS[0].question, id=gold, answers=(), gold=gold), "x.jsonl", 1)


def test_questions_without_a_known_answer_are_dropped_or_kept_and_counted() -> None:
    tally = CollectCounts()
    questions = [*QUESTIONS[:2], without("none"), without("hidden")]
    assert ids(PickRule({}, drop=frozenset({"hidden"})), questions, tally) == ["q0", "q1", "none"]
    assert str(tally) == "skipped: 1 with hidden answers; 1 of the collected are impossible"
    tally = CollectCounts()
    assert ids(PickRule({"all": 1}, "random", drop=frozenset({"none", "hidden"})), questions, tally) in (
        ["q0"],
        ["q1"],
    )
    assert str(tally) == "skipped: 1 with hidden answers, 1 impossible, 1 beyond the limits"
    assert str(CollectCounts()) == "skipped: none"


def test_a_passage_is_written_once(tmp_path: Path) -> None:
    first, second = context("d", "T", "x"), context("d", "T", "y")
    assert first.id != second.id and first == context("d", "T", "x")
    of_each = (first, second, first), (second,)
    stream = [dataclasses.replace(one, passages=own) for one, own in zip(QUESTIONS, of_each, strict=False)]
    assert write_questions(tmp_path / "run", stream, [second], CollectCounts()) == (2, 2)
    assert list(jsonl.read(Passage, tmp_path / "run" / "passages.jsonl")) == [first, second]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"passages.jsonl", "questions.jsonl"}
