"""Kinds of utterances that need no search: figures of the docs, and the places that decide."""

import csv
import json
import re
from pathlib import Path

import pytest

from kbtrain.gate.gate import Gate
from kbtrain.rag.use import answer
from kbtrain.records import TurnExample, Utterance
from kbtrain.utterances import decide_by, depends_on_context, input_kind, is_follow_up, last_messages, utterance_kind

ROOT = Path(__file__).resolve().parent.parent.parent


def table(name="utterances"):
    with (Path(__file__).with_name(f"{name}.csv")).open(encoding="utf-8", newline="") as file:
        return [(row["kind"], row["utterance"]) for row in csv.DictReader(file)]


def test_precision_and_recall_on_the_held_out_table_are_those_of_the_docs():
    rows = table()
    matched = [(kind, utterance_kind(text)) for kind, text in rows]
    right = sum(kind != "question" and found is not None for kind, found in matched)
    wrong = sum(kind == "question" and found is not None for kind, found in matched)
    needless = sum(kind != "question" for kind, _ in matched)
    assert len(rows) >= 200 and len({text for _, text in rows}) == len(rows)
    assert (right, wrong, needless) == (98, 2, 126)
    page = re.sub(r"\s+", " ", (ROOT / "docs" / "explanation" / "gates.md").read_text(encoding="utf-8"))
    shown = f"| {needless} | {len(rows) - needless} | {right / (right + wrong):.2f} ({right} of {right + wrong}) | "
    assert shown + f"{right / needless:.2f} ({right} of {needless}) |" in page


def test_a_match_has_the_kind_of_the_table():
    kinds = {(kind, utterance_kind(text)) for kind, text in table() if kind != "question"}
    assert {(kind, found) for kind, found in kinds if found not in (kind, None)} == set()


@pytest.mark.parametrize("name", ["atlas_questions", "atlas_known_questions"])
def test_no_question_of_the_atlas_matches(name):
    lines = (ROOT / "kbtrain" / "questions" / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [row.get("text") or row["question"] for row in map(json.loads, lines)]
    assert len(questions) > 1000
    assert [text for text in questions if utterance_kind(text)] == []


@pytest.mark.parametrize(("kind", "text"), table("kinds"))
def test_a_kind_needs_the_whole_message_or_an_instruction_that_needs_no_fact(kind, text):
    assert (utterance_kind(text) or "none") == kind


def turn(*said):
    context = tuple(Utterance(speaker, text) for speaker, text in said)
    return TurnExample(id="t", dialogue_id="d", split="test", turn=len(context), context=context)


def test_yes_may_accept_an_offer_and_thanks_may_not():
    offer = ("SYSTEM", "Shall I tell you its population?")
    assert input_kind(turn(("USER", "Hi"), offer, ("USER", "Yes"))) is None
    assert input_kind(turn(("USER", "Hi"), offer, ("USER", "No, thanks"))) == "thanks"
    assert input_kind(turn(("USER", "Yes"))) == "acknowledgement"
    assert input_kind(turn(("USER", "Hi"), offer)) is None


def test_a_kind_wins_over_the_score():
    assert decide_by(0.9, 0.5, "greeting") == (False, "greeting")
    assert decide_by(0.9, 0.5, None) == (True, "above-threshold")
    assert decide_by(0.5, 0.5, None) == (False, "below-threshold")


class AlwaysNeeded(Gate):
    name, unit, reads, card = "always", "probability", frozenset({"question"}), None
    needs_evidence = False

    def score_examples(self, examples):
        return [1.0] * len(examples)


def test_every_gate_decides_by_the_kind():
    decided = AlwaysNeeded().decide(["Hi", "What is 2+2?", "Who wrote Emma?"], 0.5)
    told = [(False, "greeting"), (False, "arithmetic"), (True, "above-threshold")]
    assert [(d.retrieve, d.reason) for d in decided] == told and {d.score for d in decided} == {1.0}
    assert [(d.threshold, d.reason) for d in AlwaysNeeded().decide(["Who?"], -0.81)] == [(0.0, "always")]  # as served


def test_an_answer_with_a_gate_is_not_searched_for_by_the_kind():
    searched = []

    def find(question):
        searched.append(question)
        return ["A passage."]

    hi, who = answer(["Hi", "Who wrote Emma?"], AlwaysNeeded(), llm=lambda prompt: "x", search=find, threshold=0.5)
    assert searched == ["Who wrote Emma?"]
    assert (hi.retrieved, hi.reason, who.retrieved, who.reason) == (False, "greeting", True, "above-threshold")


@pytest.mark.parametrize(
    ("text", "depends"),
    [
        ("And can I carry them over into the next year?", True),  # begins as a continuation
        ("Where was he born and raised as a child?", True),  # an open pronoun
        ("Was Napoleon married when he died in exile?", False),  # the name is before it
        ("Does that apply to contractors in the field?", True),
        ("vacation", True),  # under five words
        ("How many?", True),
        ("Who wrote Emma?", False),  # short, with its own name
        ("Is there not any more of this?", True),
        ("And?", True),
        ("What is our parental leave policy?", False),
        ("How does a heat pump work", False),
        ("它的人口是多少？", True),
        ("那北京呢？", True),
        ("乍得的首都是哪里？", False),
        ("谁写了《红楼梦》？", False),
    ],
)
def test_the_cheap_test(text, depends):
    assert depends_on_context(text) is depends


def user(*texts):
    return [Utterance("USER", text) for text in texts]


def test_the_first_message_is_no_follow_up():
    assert not is_follow_up(user("And now?"))
    assert is_follow_up(user("Who wrote Emma?", "And when?"))
    assert not is_follow_up([Utterance("SYSTEM", "How can I help?"), *user("vacation")])


def test_the_window_leaves_small_talk_and_the_assistant_out():
    dialogue = [*user("Hi", "Who wrote\n Emma?"), Utterance("SYSTEM", "Jane Austen."), *user("thanks", "And when?")]
    assert last_messages(dialogue, 3, 1000) == "Who wrote Emma? And when?"
    assert last_messages(user("a1", "b1", "c1"), 2, 1000) == "b1 c1"
    assert last_messages(user("a1", "b1", "c1"), 3, 5) == "b1 c1"
    assert last_messages(user("a1", "b1", "c1"), 3, 4) == "c1"
