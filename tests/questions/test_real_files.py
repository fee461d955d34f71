"""The loaders on the data sets' real files: their record counts, and three records of each compared with the source.

The files are not part of the project; KBTRAIN_TEST_DATA names a folder that has them.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from kbtrain.questions.base import Columns, Loaded, Reading
from kbtrain.questions.load import load

FOLDER = os.environ.get("KBTRAIN_TEST_DATA")
pytestmark = pytest.mark.skipif(not FOLDER, reason="KBTRAIN_TEST_DATA names no folder with the data sets' real files")


def loaded(dataset: str, name: str, **columns: str) -> list[Loaded]:
    path = Path(FOLDER or "") / name
    if not path.exists():
        pytest.skip(f"no {name} in KBTRAIN_TEST_DATA")
    return list(load(dataset, path, Reading(columns=Columns(columns))))


def splits(found: list[Loaded]) -> dict[str, int]:
    return dict(Counter(one.question.split for one in found))


def three(found: list[Loaded]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Id, text and answers of the first, the middle and the last question."""
    return [(q.id, q.text, q.answers) for q in (found[i].question for i in (0, len(found) // 2, len(found) - 1))]


def gold(one: Loaded) -> list[tuple[str, str]]:
    """Titles and beginnings of the gold passages."""
    texts = {passage.id: (passage.title, passage.text[:30]) for passage in one.passages}
    return [texts[name] for name in one.question.gold_passages]


def test_nq_open() -> None:
    found = loaded("nq_open", "nq-open.dev.jsonl")
    assert splits(found) == {"dev": 3610}
    assert three(found) == [
        ("nq_open/nq-open.dev/1", "when was the last time anyone was on the moon",
         ("14 December 1972 UTC", "December 1972")),
        ("nq_open/nq-open.dev/1806", "what is dj's boyfriends name on full house",
         ("Steve Hale", 'Steven "Steve" Hale', "rich kid Nelson", "Viper")),
        ("nq_open/nq-open.dev/3610", "what is the meaning of the name comanche", ("enemy",)),
    ]  # fmt: skip
    assert found[0].question.grading == "exact"


def test_popqa() -> None:
    found = loaded("popqa", "popqa.json")
    assert splits(found) == {"test": 1000}
    assert Counter(one.question.relation for one in found) == {"place of birth": 543, "occupation": 457}
    kept = [(one.question.popularity, one.question.entities, one.question.answers[-1]) for one in found]
    assert [kept[i] for i in (0, 500, 999)] == [
        (142.0, ("Q5543720",), "pol"), (23.0, ("Q7182553",), "Birkenhead"), (298.0, ("Q3431148",), "Modern Babylon")
    ]  # fmt: skip
    assert gold(found[0]) == [
        ("George Rankin", "George James Rankin,  (1 May 1"),
        ("Politician", "A politician  is a person who "),
    ]
    assert found[500].question.text == "In what city was Phil Williams born?"


def test_hotpotqa() -> None:
    found = loaded("hotpotqa", "hotpot_dev_v1_simplified.json")
    assert splits(found) == {"dev": 7405}
    assert [(text, answers) for _, text, answers in three(found)] == [
        ("Were Scott Derrickson and Ed Wood of the same nationality?", ("yes",)),
        ("What was the name of the country ran by the president who maintained the mercenary unit, White Legion?",
         ("Zaire",)),
        ("Blackfin is a family of processors developed by the company that is headquartered in what city?",
         ("Norwood, Massachusetts",)),
    ]  # fmt: skip
    assert [found[i].question.relation for i in (0, 3702, 7404)] == ["comparison", "bridge", "bridge"]


def test_musique() -> None:
    found = loaded("musique", "musique_train100_native.json")
    assert splits(found) == {"train": 100}
    assert Counter(one.question.relation for one in found) == {
        "2hop": 68,
        "3hop1": 24,
        "4hop1": 3,
        "3hop2": 3,
        "4hop3": 2,
    }
    assert [(name, answers) for name, _, answers in three(found)] == [
        ("2hop__150763_14904", ("G. Stanley Hall", "Stanley Hall")), ("2hop__161500_15014", ("60th parallel south",)),
        ("2hop__131644_88123", ("Dec. 10, 1817",)),
    ]  # fmt: skip
    assert [[title for title, _ in gold(found[i])] for i in (0, 50, 99)] == [
        ["Journal of Psychotherapy Integration", "Adolescence"], ["Antarctica", "Antarctica"],
        ["Pocahontas Mounds", "History of Mississippi"],
    ]  # fmt: skip


def test_squad_2() -> None:
    found = loaded("squad", "squad2.dev-v2.0.json")
    assert splits(found) == {"dev": 6078}
    assert Counter(one.question.gold for one in found) == {"given": 2910, "none": 3168}
    assert three(found) == [
        ("68cf05f67fd29c6f129fe2fb9", "In what country is Normandy located?", ("France",)),
        ("a8fbc91b4a1beb15e8bcfcfb3", "What did Polo call the Yuan capital?", ("Cambaluc",)),
        ("ddbccaa3c57fee6bb3af0c234", "What force is part of the modern SI system?", ()),
    ]
    assert gold(found[0]) == [("Normans", "The Normans (Norman: Nourmands")]
    assert found[-1].passages[0].text.startswith("The pound-force has a metric counterpart")


def test_mmlu() -> None:
    found = loaded("mmlu", "mmlu.zip")
    assert splits(found) == {"train": 285, "dev": 1531, "test": 14042}
    assert len({one.question.relation for one in found}) == 57
    assert three(found) == [
        ("mmlu/dev/abstract_algebra/0", "Find all c in Z_3 such that Z_3[x]/(x^2 + c) is a field.", ("B",)),
        ("mmlu/test/miscellaneous/260", "Which of these is not an ingredient in Yorkshire pudding?", ("C",)),
        ("mmlu/val/world_religions/18", "Which Jewish group demanded a narrow and literal interpretation of the Torah?",
         ("A",)),
    ]  # fmt: skip
    assert found[-1].question.options == ("Sadducees", "Pharisees", "Essenes", "Zealots")


def test_a_table_with_numpy_lists_by_columns() -> None:
    found = loaded("csv", "adarague_hotpotqa_train.csv", id="qid", text="question_text", answers="reference",
                   relation="type", contexts="context")  # fmt: skip
    assert splits(found) == {"train": 500}
    assert three(found) == [
        ("5ac07327554299012d1db5f2", "Who is Colin Kaepernick and what is his preferred nickname?",
         ("an American football quarterback",)),
        ("5a83316b5542993344745fe5", "What is the name of the show that the man that was drafted eighth overall in the "
         "1995 NFL Draft co-hosts?", ("College Football Scoreboard",)),
        ("5a746ddc55429929fddd8423", "Who is older, Thomas Friedman or English author David Lodge?",
         ("David John Lodge CBE",)),
    ]  # fmt: skip
    assert [[title for title, _ in gold(found[i])] for i in (0, 250, 499)] == [
        ["Kaep (disambiguation)", "Colin Kaepernick"], ["ESPN College Football Friday Primetime", "Joey Galloway"],
        ["Thomas Friedman", "David Lodge (author)"],
    ]  # fmt: skip
    assert {one.question.dataset for one in found} == {"hotpotqa"}
