"""SeaKR's prompts: golden strings, demonstrations that are true, sentences and answers cut where they should be."""

import json
import os
from pathlib import Path

import pytest
from tiny_kbm import make_tokenizer

from kbtrain.answers.words import normalise
from kbtrain.prompts.kbm import encode, evidence_text
from kbtrain.prompts.seakr import (
    ANSWER,
    chain,
    clean_answer,
    demonstrations,
    encode_head,
    final_answer,
    first_sentence,
    reasoning,
    step_prompt,
)
from kbtrain.records import Hit

DATA = os.environ.get("KBTRAIN_TEST_DATA")


def test_a_prompt_to_the_letter():
    hits = [Hit("p", "Oslo {x}", "A city.", 1.0), Hit("r", "Rome", "Another.", 1.0)]
    assert step_prompt('What is "{it}"?', hits, n_shots=1) == (
        "Answer each question with a few short sentences, one a line, each of which states one fact. "
        "Then end with a line that begins with 'So the answer is:'.\n\n"
        "Question: When was the writer of Hamlet baptised?\nHamlet is a tragedy by William Shakespeare.\n"
        "William Shakespeare was baptised on 26 April 1564.\nSo the answer is: 26 April 1564.\n\n"
        'Documents:\n[1] Oslo {x}: A city.\n[2] Rome: Another.\n\nQuestion: What is "{it}"?\n'
    )
    assert reasoning(("A.", "B.")) == "A.\nB.\n" and reasoning((), answer=True) == "So the answer is:"


def test_titles_are_shown_by_the_rule_of_sampling():
    """Before, every document had its title, also one whose text begins with it."""
    hits = [Hit("p", "Oslo", "OSLO is a city.", 1.0), Hit("r", "Rome", "A city.", 1.0), Hit("s", "", "A town.", 1.0)]
    for rule in ("missing", "always", "never"):
        shown = evidence_text(hits, rule).split("\n")
        assert step_prompt("Where?", hits, n_shots=0, titles=rule).endswith(
            f"Documents:\n[1] {shown[0]}\n[2] {shown[1]}\n[3] {shown[2]}\n\nQuestion: Where?\n"
        )
    assert "[1] OSLO is a city.\n[2] Rome: A city.\n[3] A town." in step_prompt("Where?", hits)


def test_there_are_ten_demonstrations_of_both_kinds_that_end_in_their_answer():
    shown = demonstrations()
    assert [d["kind"] for d in shown].count("bridge") == 5 and [d["kind"] for d in shown].count("comparison") == 5
    assert len({d["question"] for d in shown}) == 10
    for d in shown:
        assert len(d["sentences"]) == 2 and d["facts"]
        said = normalise(" ".join([d["question"], *d["sentences"]]))
        assert d["answer"] in {"yes", "no"} or normalise(d["answer"]) in said
        assert all(first_sentence(s) == s and final_answer(s) is None for s in d["sentences"])


@pytest.mark.skipif(DATA is None, reason="KBTRAIN_TEST_DATA does not name a folder with passages.jsonl")
def test_every_demonstration_stands_in_the_passages_and_is_no_question_of_hotpotqa():
    texts: dict[str, list[str]] = {}
    for line in (Path(DATA) / "passages.jsonl").open(encoding="utf-8"):
        passage = json.loads(line)
        texts.setdefault(passage["title"], []).append(passage["text"])
    n = 0
    for demonstration in demonstrations():
        for fact in demonstration["facts"]:
            for word in fact["words"]:
                n += 1
                assert any(word in text for text in texts[fact["title"]]), (fact["title"], word)
    assert n >= 20
    asked = {normalise(d["question"]) for d in demonstrations()}
    for name in ("hotpot_dev_v1_simplified.json", "hotpotqa_train100_native.json"):
        rows = json.loads((Path(DATA) / name).read_text(encoding="utf-8"))
        assert len(rows) >= 100 and not asked & {normalise(row["question"]) for row in rows}


@pytest.mark.parametrize("chat", [True, False])
def test_every_prompt_begins_with_the_head(chat):
    tokenizer = make_tokenizer(chat=chat)
    head = encode_head(tokenizer, 3)
    assert len(head) > 50
    for documents in ([], [Hit("p", "T", "x", 1.0)]):
        for said in ("", "A sentence.\n", ANSWER):
            ids = encode(tokenizer, step_prompt("Where?", documents, 3), reply=said)
            assert ids[: len(head)] == head and len(ids) > len(head)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So the answer is: 26 April 1564.", "26 April 1564"), ("so the answer is Paris", "Paris"),
        ("Therefore, the final answer is: the U.S.", "the U.S."), ("So the answer is:", ""),
        ("The answer is not known to him.", "not known to him"), ("He said the answer is Paris.", None),
        ("Paris is a city.", None),
    ],
)  # fmt: skip
def test_final_sentences(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("He was born in Rome. He died there.", "He was born in Rome."),
        ("Dr. Smith met J. R. Tolkien in St. Louis. Then he left.", "Dr. Smith met J. R. Tolkien in St. Louis."),
        ("It costs 3.85 million. So what?", "It costs 3.85 million."), (" one line\nanother", "one line"),
        ("No stop", "No stop"), ("", ""),
    ],
)  # fmt: skip
def test_first_sentences(text, first):
    assert first_sentence(text) == first


def test_answers_are_cleaned_without_harming_abbreviations():
    assert clean_answer(' "Paris." ') == "Paris" and clean_answer("U.S.") == "U.S." and clean_answer(" ") == ""


def test_a_chain_is_read_line_by_line_up_to_its_own_answer():
    thoughts = ("Ann wrote it.", "Ann is old.")
    assert chain("Ann wrote it.\n\n Ann is old. \nThus the answer is Ann.\nMore.") == (thoughts, "Ann")
    assert chain("Ann wrote it.") == (("Ann wrote it.",), None)
    assert chain("So the answer is:") == chain("") == ((), None)


@pytest.mark.parametrize(
    "sentence",
    [
        "Mr. Smith v. Jones is a case.", "Smith v. United States was decided in 1997.", "Rev. Ann Lee was born.",
        "Gen. George S. Patton died.", "It opened on Oct. 3 in the U.S. Senate.", "He is a.k.a. Bob.",
        "The firm is Brown Bros. Harriman.", "She (b. 1950) sang.", "It began c. 1500 in Mt. Vernon.",
        "Lt. Col. Bill Kilgore is a role.", "See vol. 3 of it.",
    ],
)  # fmt: skip
def test_an_abbreviation_does_not_end_a_sentence(sentence):
    assert first_sentence(f"{sentence} Then it rained.") == sentence
    assert first_sentence(f"{sentence} 12 people came.") == sentence
