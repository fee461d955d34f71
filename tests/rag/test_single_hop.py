"""The single-hop rule: the direct answer if sure, else that of the document with the lowest U."""

import pytest
from seakr_stand_ins import Script, Shelf, question

from kbtrain.rag.seakr_lockstep import answer_all
from kbtrain.rag.seakr_loops import SelfAwareSettings, single_hop

ASKED = question(text="Book")


def run(say, shelf, **settings):
    chosen = SelfAwareSettings(threshold=0.0, **settings)
    script = Script(say)
    (trace,) = answer_all([ASKED], lambda q: single_hop(q, chosen), script, shelf, method="s", threshold=0.0)
    return trace, script


def test_a_sure_direct_answer_needs_no_search():
    trace, _ = run(lambda ask: (" Ann.", 0.0), Shelf(Book=("a",)))
    assert (trace.answer, trace.stopped, trace.spent.searches, trace.spent.requests) == ("Ann", "sure", 0, 1)


@pytest.mark.parametrize("silence", ["", "Unknown.", "It is not mentioned."])
def test_a_direct_answer_that_says_nothing_is_searched_for_however_certain(silence):
    trace, _ = run(lambda ask: ("Ann", 0.5) if ask.documents else (silence, -9.0), Shelf(Book=("a",)))
    assert (trace.answer, trace.stopped, trace.spent.searches) == ("Ann", "searched", 1)


def test_an_unsure_one_gives_way_to_the_least_uncertain_document():
    us = {"a": 0.9, "b": -0.5, "c": 0.2}

    def say(ask):
        return (
            (f"From {ask.documents[0].passage_id}", us[ask.documents[0].passage_id]) if ask.documents else ("Ann", 0.1)
        )

    trace, script = run(say, Shelf(Book=("a", "b", "c")), documents=10)
    assert trace.answer == "From b" and [len(ask.documents) for ask in script.asks] == [0, 1, 1, 1]
    assert [(c.passage_id, c.kept) for c in trace.steps[0].candidates] == [("a", False), ("b", True), ("c", False)]
    assert (trace.spent.searches, trace.spent.passages, trace.spent.requests) == (1, 3, 4)
    assert [s.name for s in trace.strategies] == ["document a", "document b", "document c", "direct"]


def test_nothing_found_or_only_unknown_answers_leave_the_direct_one():
    trace, _ = run(lambda ask: ("Ann", 1.0), Shelf())
    assert (trace.answer, trace.stopped) == ("Ann", "nothing found")
    trace, _ = run(lambda ask: ("unknown", -1.0) if ask.documents else ("Ann", 1.0), Shelf(Book=("a", "b")))
    assert trace.answer == "Ann" and [s.chosen for s in trace.strategies] == [False, False, True]


def test_an_answer_that_says_unknown_in_a_sentence_loses_to_a_name():
    said = {"a": ("The answer is unknown.", -2.0), "b": ("Ann", 0.5)}
    trace, _ = run(
        lambda ask: said[ask.documents[0].passage_id] if ask.documents else ("Bob", 1.0), Shelf(Book=("a", "b"))
    )
    assert trace.answer == "Ann"


def test_without_re_ranking_only_the_first_hit_is_read():
    trace, _ = run(lambda ask: ("Ann", 1.0), Shelf(Book=("a", "b")), rerank=False)
    assert trace.spent.passages == 1


@pytest.mark.parametrize("n", [1, 2, 5])
def test_as_many_documents_are_searched_for_as_wanted_and_each_prompt_asks_for_the_answer(n):
    trace, script = run(lambda ask: ("Ann", 1.0), Shelf(Book=("a", "b", "c", "d", "e")), documents=n)
    assert trace.spent.passages == n and len(trace.steps[0].candidates) == n
    assert {ask.kind for ask in script.asks} == {"answer"}


def test_the_direct_answer_competes_with_none_that_read_a_document():
    trace, _ = run(lambda ask: ("From a", 0.9) if ask.documents else ("Ann", 0.1), Shelf(Book=("a",)))
    assert trace.answer == "From a" and [s.chosen for s in trace.strategies] == [True, False]
    assert [c.kept for c in trace.steps[0].candidates] == [True]
