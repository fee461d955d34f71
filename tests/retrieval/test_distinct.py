"""Passages that are shown: equal texts count once; the data set's own gold passages."""

import dataclasses

import pytest

from kbtrain.errors import UserError
from kbtrain.records import Hit, Passage, Question
from kbtrain.retrieval.base import DistinctSearch, distinct, hit_of, own_hits, refilled
from kbtrain.retrieval.bm25 import BM25
from kbtrain.retrieval.web import WebSearch, WebService
from kbtrain.serve.search import hits_of

LONG = "Travel requests above 500 euro are signed by the head of department."
PASSAGES = [
    *(Passage(f"copy{i}", "Travel", text) for i, text in enumerate([LONG, LONG.upper(), f" {LONG} \u200b"])),
    Passage("other", "Trains", "Travel requests for trains are signed by the desk of travel in each house."),
    Passage("third", "Hotels", "Requests for hotels go to the portal, and are signed there by nobody at all."),
]


def hit(name, text, title=""):
    return Hit(name, title, text, 1.0)


class Counted:
    """A searcher that notes what it is asked for."""

    def __init__(self, hits):
        self.hits, self.numbers = tuple(hits), list[int]()

    def search(self, queries, k):
        self.numbers.append(k)
        return [self.hits[:k] for _ in queries]


def test_three_copies_take_one_place_and_others_move_up():
    searcher = DistinctSearch(BM25.build(PASSAGES))
    (found,) = searcher.search(["Who signs travel requests?"], 3)
    assert sorted(one.passage_id for one in found) in (["copy0", "other", "third"], ["copy1", "other", "third"])
    assert searcher.copies == 2
    assert len(searcher.search(["Who signs travel requests?"], 9)[0]) == 3


def test_no_copies_are_searched_for_once():
    plain = Counted([hit(str(i), f"{i} {LONG}") for i in range(9)])
    searcher = DistinctSearch(plain)
    assert [one.passage_id for one in searcher.search(["a"], 3)[0]] == ["0", "1", "2"]
    assert (plain.numbers, searcher.copies) == ([3], 0)
    copies = Counted([hit(str(i), LONG) for i in range(20)] + [hit("x", f"x {LONG}")])
    searcher = DistinctSearch(copies)
    assert [one.passage_id for one in searcher.search(["a"], 2)[0]] == ["0", "x"]
    assert copies.numbers == [2, 4, 8, 16, 32] and searcher.copies == 19


def test_short_texts_under_other_titles_are_other_passages():
    found, skipped = distinct([hit("a", "Yes.", "Is it?"), hit("b", "Yes.", "Was it?"), hit("c", "yes. ", "is it?")], 5)
    assert ([one.passage_id for one in found], skipped) == (["a", "b"], 1)
    found, skipped = distinct([hit("a", LONG, "Handbook 1"), hit("b", LONG, "Handbook 2")], 5)
    assert ([one.passage_id for one in found], skipped) == (["a"], 1)
    assert [one.passage_id for one in refilled(lambda n: found[:n], 3)[0]] == ["a"]


def test_services_and_functions_give_each_text_once():
    web = WebSearch(WebService(url="http://localhost/?q={query}", results="found", id="id", text="text"))
    reply = {"found": [{"id": f"a{i}", "text": LONG} for i in range(3)] + [{"id": 9, "text": "other"}]}
    assert [one.passage_id for one in web.hits(reply, "q", 2)] == ["a0", "9"] and web.dropped == 2
    assert [one.text for one in hits_of([" ", LONG, LONG, "other"], 2)] == [LONG, "other"]
    zero = {"id": 0, "title": "", "text": LONG, "score": 0.0}  # no missing id, no missing score
    assert hit_of(zero, 1) == Hit("0", "", LONG, 0.0) and hit_of({"text": LONG}, 2) == Hit("2", "", LONG, 0.5)


OF_QUESTIONS = {name: Passage(name, name.upper(), f"text {name}") for name in "abc"}


def with_gold(*gold):
    return Question("q", "?", ("x",), "test", "d", gold_passages=gold)


def test_gold_passages_come_in_the_questions_order():
    hits = (Hit("c", "C", "text c", 1.0), Hit("a", "A", "text a", 1.0))
    assert own_hits(with_gold("c", "a"), "gold_passages", OF_QUESTIONS) == hits
    assert own_hits(with_gold(), "gold_passages", OF_QUESTIONS) == ()
    question = dataclasses.replace(with_gold("c"), context_passages=("b", "c", "a"))  # all that came with it
    assert [hit.passage_id for hit in own_hits(question, "context_passages", OF_QUESTIONS)] == ["b", "c", "a"]


@pytest.mark.parametrize("field", ["gold_passages", "context_passages"])
def test_an_unknown_passage_is_named(field):
    with pytest.raises(UserError, match=f"question 'q': field '{field}': no passage 'z'"):
        own_hits(dataclasses.replace(with_gold(), **{field: ("z",)}), field, OF_QUESTIONS)
