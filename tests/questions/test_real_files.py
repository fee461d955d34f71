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


def test_nq_with_gold_passages() -> None:
    found = loaded("nq_open", "nq-open-oracle_gold_passage.jsonl.gz")
    assert len(found) == 2655
    assert [answers for _, _, answers in three(found)] == [
        ("Wilhelm Conrad Röntgen",), ("The ulnar nerve", "ulnar nerve"), ("1980s",)
    ]  # fmt: skip
    assert gold(found[0]) == [("List of Nobel laureates in Physics", "The first Nobel Prize in Physi")]
    assert gold(found[1327]) == [("Ulnar nerve", "This nerve can cause an electr")]
    assert gold(found[2654]) == [("Home computer", "Home computers were a class of")]


def test_triviaqa() -> None:
    (only,) = loaded("triviaqa", "triviaqa_native_sample.json")
    aliases = ("Sunset Boulevard", "Sunset Blvd", "West Sunset Boulevard", "Sunset Bulevard", "Sunset Blvd.")
    assert (only.question.id, only.question.answers) == ("tc_33", aliases)
    assert only.question.text == "Which Lloyd Webber musical premiered in the US on 10th December 1993?"


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


def test_freshqa() -> None:
    found = loaded("freshqa", "freshqa.csv")
    assert splits(found) == {"test": 500, "dev": 100}
    assert Counter(one.question.fact_type for one in found) == {
        "slow-changing": 223, "never-changing": 223, "fast-changing": 154
    }  # fmt: skip
    assert Counter(one.question.hops for one in found) == {1: 463, 2: 137}
    assert sum(bool(one.question.false_premise) for one in found) == 150
    assert three(found) == [
        ("freshqa/0", "What is the name of the first animal to land on the moon?",
         ("No animal has ever landed on the moon yet.", "Since humans are animals, one could say Neil Armstrong.")),
        ("freshqa/300", "Where was Emily Joanna Carey born?",
         ("Barnet", "The London Borough of Barnet", "London", "North London")),
        ("freshqa/599", "When was the most recent winner of the Tour de France born?",
         ("1996", "10-Dec-96", "12/10/1996", "10/12/1996")),
    ]  # fmt: skip


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


def test_hotpotqa_with_contexts() -> None:
    found = loaded("hotpotqa", "hotpotqa_train100_native.json")
    assert splits(found) == {"train": 100}
    assert [(name, answers) for name, _, answers in three(found)] == [
        ("5a77ec115542992a6e59dff7", ("a spirit",)), ("5a8b07ef55429971feec4624", ("Sandra Miju Oh",)),
        ("5a8501655542997175ce1f58", ("Alice Nelson",)),
    ]  # fmt: skip
    assert Counter(len(one.passages) for one in found) == {10: 99, 4: 1}
    assert [[title for title, _ in gold(found[i])] for i in (0, 50, 99)] == [
        ["Alû", "Lilu (mythology)"], ["Barrier Device", "Sandra Oh"], ["Lover Come Back (1961 film)", "Ann B. Davis"]
    ]  # fmt: skip


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


def test_squad_zh() -> None:
    found = loaded("squad_zh", "squad-zh.dev-v1.1.json")
    assert splits(found) == {"dev": 7192}
    assert three(found) == [
        ("56be4db0acb8001400a502ec", "哪支NFL球队代表亚足联参加了50强赛？", ("丹佛野马",)),
        ("57266dd4f1498d1400e8df7b", "在Close、Sandhill和码头区的城镇里有什么样的建筑？", ("现代建筑",)),
        ("5737aafd1c456719005744fd", "公制中很少使用的质量单位是什么？", ("公制弹头",)),
    ]
    assert {one.question.language for one in found} == {"zh"}


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


def test_ceval() -> None:
    found = loaded("ceval", "ceval.zip")
    assert splits(found) == {"train": 260, "dev": 1346, "test": 12342}
    assert Counter(one.question.gold for one in found) == {"given": 1606, "hidden": 12342}
    assert len({one.question.relation for one in found}) == 52
    assert [(name, answers) for name, _, answers in three(found)] == [
        ("ceval/dev/accountant/0", ("B",)), ("ceval/test/ideological_and_moral_cultivation/156", ()),
        ("ceval/val/veterinary_medicine/22", ("C",)),
    ]  # fmt: skip
    assert found[0].question.options == ("增量预算", "零基预算", "固定预算", "弹性预算")
    assert found[-1].question.text == "稀有核苷酸碱基主要见于____。"


def test_xiezhi() -> None:
    found = loaded("xiezhi", "xiezhi_train_chn.v1.1.json")
    assert splits(found) == {"train": 2478}
    assert [(one.question.answers, one.question.options[-1], one.question.relation) for one in
            (found[0], found[1239], found[-1])] == [
        (("C",), "①③④", "历史学"), (("D",), "梯田直播法", "工学"), (("A",), "依替莫啡", "医学")
    ]  # fmt: skip


def test_openbookqa_as_instructions() -> None:
    found = loaded("commonsense", "openbookqa_test_nonnative.json")
    assert splits(found) == {"test": 500}
    assert Counter(one.question.answers[0] for one in found) == {"A": 138, "C": 132, "B": 126, "D": 104}
    assert [(one.question.text[:40], one.question.options) for one in (found[0], found[250], found[-1])] == [
        ("A person wants to start saving money so ",
         ("make more phone calls", "quit eating lunch out", "buy less with monopoly money", "have lunch with friends")),
        ("Rain is usually guaranteed when all are ",
         ("cirrus clouds", "cumulus clouds", "hail stones", "direct sunshine")),
        ("Some animals use a liquid coming from th", ("cold", "water", "heat", "humidity")),
    ]  # fmt: skip


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


def test_gate_labels_by_columns() -> None:
    path = Path(FOLDER or "") / "gate_labels_llama3_8b.jsonl"
    found = list(load("jsonl", path, Reading(split="test", columns=Columns({"id": "qid"}))))
    assert Counter(one.question.dataset for one in found) == {"nq": 999, "hotpotqa": 1000}
    assert [(name, answers) for name, _, answers in three(found)] == [
        ("single_nq_dev_2389", ("Elton John",)), ("5ac07327554299012d1db5f2", ("an American football quarterback",)),
        ("5ab2c418554299545a2cfa67", ("Mle 1914 Hotchkiss machine gun",)),
    ]  # fmt: skip
