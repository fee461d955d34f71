"""SeaKR's loops: both pipelines with each branch and fault, their queries, and questions in lockstep."""

from dataclasses import replace

import pytest
from seakr_stand_ins import Script, Shelf, question

from kbtrain.errors import UserError
from kbtrain.rag.seakr_lockstep import PipelineOutcome, answer_all
from kbtrain.rag.seakr_loops import (
    SelfAwareSettings,
    build_query,
    confident_words,
    content_words,
    multi_hop,
    single_hop,
)

SETTINGS = SelfAwareSettings(threshold=0.0)
FINAL = "So the answer is: Ann."


def run(script, shelf, questions=None, settings=SETTINGS, **more):
    asked = questions or [question()]
    found = answer_all(asked, lambda q: multi_hop(q, settings), script, shelf, method="m", threshold=0.0, **more)
    return list(found)


def test_sure_sentences_go_into_the_rationale_and_the_final_one_stops():
    said = ["Book was written by Ann.", "So the answer is: Ann."]

    def say(ask):
        return (" Ann.", -3.0) if ask.kind != "sentence" else (said[len(ask.rationales)], -1.0)

    script = Script(say)
    (trace,) = run(script, Shelf())
    assert [step.sentence for step in trace.steps] == said and trace.stopped == "final answer"
    assert [ask.rationales for ask in script.asks] == [(), (said[0],), (said[0],)]
    assert trace.answer == "Ann" and trace.correct and trace.exact_match == 1.0 and trace.f1 == 1.0
    assert [(s.name, s.chosen) for s in trace.strategies] == [("rationales", True)]
    assert (trace.spent.searches, trace.spent.passages) == (0, 0)
    spent = trace.spent
    assert (spent.requests, spent.samples, spent.tokens, spent.prompt_tokens) == (3, 60, 630, 300)
    assert trace.empty_samples == 3 and not trace.retrieved


def test_an_unsure_sentence_is_dropped_and_the_document_that_lowers_u_most_is_kept():
    def say(ask):
        if ask.kind != "sentence":
            return ("Bob", 0.5) if ask.documents else ("Ann", 0.4)
        if not ask.documents:
            return "Guess wrote Book.", 1.0
        u = {"a": 0.9, "b": 0.2, "c": 0.8}[ask.documents[-1].passage_id]
        return (f"With {ask.documents[-1].passage_id}.", u) if not ask.rationales else ("So the answer is: Ann.", 0.1)

    script, shelf = Script(say), Shelf(Guess_wrote_Book=("a", "b", "c"))
    (trace,) = run(script, shelf)
    first = trace.steps[0]
    assert first.text == "Guess wrote Book." and first.query == "Guess wrote Book" and first.sentence == "With b."
    assert [(c.passage_id, c.uncertainty, c.kept) for c in first.candidates] == [
        ("a", 0.9, False), ("b", 0.2, True), ("c", 0.8, False),
    ]  # fmt: skip
    assert [ask.documents[0].passage_id for ask in script.asks if ask.rationales and ask.documents] == ["b", "b"]
    # self-aware reasoning: A (rationales) is less uncertain than B (documents)
    assert [(s.name, s.answer, s.chosen) for s in trace.strategies] == [
        ("rationales", "Ann", True), ("documents", "Bob", False),
    ]  # fmt: skip
    assert trace.spent.searches == 1
    assert trace.spent.passages == 3 + 1 + 2  # each tried, the next step, strategy B's chain and answer
    assert trace.document_tokens_cut == 2 * 6


@pytest.mark.parametrize(
    ("chain", "reasoned", "answer"),
    [
        ("Ann wrote Book.\nBook is old.\nSo the answer is: Cid.\nQuestion", ("Ann wrote Book.", "Book is old."), "Cid"),
        ("Ann wrote Book.\n\nBook is old.", ("Ann wrote Book.", "Book is old."), "Bob"),  # forced
        ("So the answer is:", (), "Bob"),
        ("", (), "Bob"),
    ],
)
def test_b_reasons_over_the_kept_documents_before_its_answer_and_both_ways_are_measured_there(chain, reasoned, answer):
    """Before, B's turn began with "So the answer is:", as A's does: it did not reason."""

    def say(ask):
        if ask.kind == "chain":
            return chain, float("nan")
        if ask.kind == "answer":
            return ("Bob", 0.1) if ask.documents else ("Ann", 0.4)
        return ("So the answer is: x", 0.0) if ask.documents else ("Guess.", 1.0)

    script = Script(say)
    (trace,) = run(script, Shelf(Guess=("a",)))
    ways = {way.name: way for way in trace.strategies}
    assert (ways["documents"].chain, ways["documents"].answer) == (reasoned, answer)
    assert ways["documents"].uncertainty == 0.1 and ways["documents"].chosen and trace.answer == answer
    *_, asked, a, b = script.asks
    assert asked.kind == "chain" and asked.rationales == () and [d.passage_id for d in asked.documents] == ["a"]
    assert a.kind == b.kind == "answer" and a.documents == () and b.documents == asked.documents
    assert b.rationales == reasoned


def test_a_missing_or_unknown_answer_loses_whatever_its_uncertainty():
    def say(ask):
        if ask.kind != "sentence":
            return ("Ann", 5.0) if ask.documents else ("Unknown.", -5.0)
        return "So the answer is: x", 1.0 if ask.documents else -1.0

    def unsure_first(ask):
        if ask.kind == "sentence" and not ask.documents and not ask.rationales:
            return "Guess.", 1.0
        return say(ask)

    (trace,) = run(Script(unsure_first), Shelf(Guess=("a",)))
    assert trace.answer == "Ann" and [s.chosen for s in trace.strategies] == [False, True]


def test_all_ways_missing_give_an_empty_answer_not_a_crash():
    (trace,) = run(Script(lambda ask: ("", -1.0)), Shelf())
    assert trace.answer == "" and not trace.correct and trace.stopped == "nothing found"


@pytest.mark.parametrize(
    "silence",
    [
        "", "So the answer is: unknown.", "So the answer is: not mentioned", "So the answer is:",
        "The documents do not mention the author.", "No one knows who wrote it.",
    ],
)  # fmt: skip
def test_a_sentence_that_says_nothing_is_searched_for_however_certain(silence):
    """An empty thought has the lowest uncertainty there is: before, it ended the loop without a search."""

    def say(ask):
        if ask.kind != "sentence":
            return "Ann", 0.0
        return ("So the answer is: Ann.", -1.0) if ask.documents else (silence, -9.0)

    shelf = Shelf(wrote=("a",))
    (trace,) = run(Script(say), shelf)
    assert shelf.queries == ["wrote"] and trace.steps[0].query == "wrote"  # of the question, not of "unknown"
    assert trace.stopped == "final answer" and trace.answer == "Ann" and trace.retrieved


def test_a_document_on_which_the_model_falls_silent_comes_last():
    us = {"a": -9.0, "b": -9.0, "c": -9.0, "d": 0.9}
    texts = {"a": "", "b": "So the answer is: unknown.", "c": "No information about Book is found.", "d": FINAL}

    def say(ask):
        if ask.kind != "sentence" or not ask.documents:
            return ("Ann", 0.0) if ask.kind != "sentence" else ("Guess wrote it.", 1.0)
        return texts[ask.documents[-1].passage_id], us[ask.documents[-1].passage_id]

    (trace,) = run(Script(say), Shelf(Guess_wrote=("a", "b", "c", "d")), settings=SelfAwareSettings(0.0, documents=4))
    kept = [(c.passage_id, c.kept) for c in trace.steps[0].candidates]
    assert kept == [("a", False), ("b", False), ("c", False), ("d", True)]
    assert trace.stopped == "final answer"


def test_a_search_that_finds_nothing_ends_the_loop_and_says_so():
    (trace,) = run(Script(lambda ask: ("Ann", 1.0) if ask.kind != "sentence" else ("Guess wrote it.", 1.0)), Shelf())
    assert trace.stopped == "nothing found" and trace.steps[0].sentence is None
    assert trace.spent.searches == 1 and trace.answer == "Ann"


def test_a_repeated_query_is_not_searched_for_again():
    shelf = Shelf(Guess_wrote=("a",))
    (trace,) = run(Script(lambda ask: ("Ann", 1.0) if ask.kind != "sentence" else ("Guess wrote.", 1.0)), shelf)
    assert trace.stopped == "repeated query" and shelf.queries == ["Guess wrote"] and trace.spent.searches == 1


def test_documents_that_are_all_kept_already_end_the_loop():
    def say(ask):
        return ("Ann", 1.0) if ask.kind != "sentence" else (f"Guess{len(ask.rationales)} wrote.", 1.0)

    (trace,) = run(Script(say), Shelf(Guess0_wrote=("a",), Guess1_wrote=("a",)))
    assert trace.stopped == "no new document" and trace.spent.searches == 2


@pytest.mark.parametrize(("steps", "documents", "stopped"), [(2, 9, "2 steps"), (9, 2, "2 documents")])
def test_the_loop_ends_after_its_steps_or_documents(steps, documents, stopped):
    def say(ask):
        return ("Ann", 1.0) if ask.kind != "sentence" else (f"Guess{len(ask.rationales)} wrote.", 1.0)

    shelf = Shelf(Guess0_wrote=("a",), Guess1_wrote=("b",), Guess2_wrote=("c",))
    settings = SelfAwareSettings(0.0, max_steps=steps, max_documents=documents)
    (trace,) = run(Script(say), shelf, settings=settings)
    assert trace.stopped == stopped and len(trace.steps) == 2


def test_without_re_ranking_the_best_hit_is_kept_untried_and_without_reasoning_the_rationales_alone_answer():
    def say(ask):
        if ask.kind == "answer":
            assert not ask.documents  # a final sentence that read them is not the answer
            return "Ann", 0.3
        if ask.documents:
            return "So the answer is: Ann.", 0.3
        return "Guess wrote.", 1.0

    script = Script(say)
    (trace,) = run(script, Shelf(Guess_wrote=("a", "b")), settings=SelfAwareSettings(0.0, rerank=False, reason=False))
    assert [(c.passage_id, c.kept, c.uncertainty) for c in trace.steps[0].candidates] == [
        ("a", True, 0.3),
        ("b", False, None),
    ]
    assert trace.answer == "Ann" and [way.name for way in trace.strategies] == ["rationales"]
    assert trace.spent.requests == 3 and len(script.asks) == 3


def test_a_state_that_is_no_number_fails_its_own_question_only():
    class Broken(Script):
        def think(self, asks):
            if any(ask.id.startswith("bad") for ask in asks):
                raise UserError("'bad/0/sentence': hidden states of 3 of 20 samples are not numbers; try dtype fp32")
            return super().think(asks)

    def say(ask):
        return ("Ann", -1.0) if ask.kind != "sentence" else ("So the answer is: Ann.", -1.0)

    traces = run(Broken(say), Shelf(), [question("a"), question("bad"), question("c")], at_once=3)
    by = {t.question_id: t for t in traces}
    assert by["bad"].error and "not numbers" in by["bad"].error and by["bad"].stopped == "error"
    assert by["a"].correct and by["c"].correct and by["a"].error is None


@pytest.mark.parametrize("silence", ["", "So the answer is: unknown.", "The documents do not mention who wrote it."])
def test_an_aided_sentence_that_says_nothing_goes_into_no_rationale_and_ends_nothing(silence):
    def say(ask):
        if ask.kind != "sentence":
            return "Ann", 0.0
        return (silence, 0.0) if ask.documents else ("Guess wrote.", 1.0)

    def then(ask):
        return ("So the answer is: Ann.", -1.0) if ask.id == "q/1/sentence" else say(ask)

    script = Script(then)
    (trace,) = run(script, Shelf(Guess_wrote=("a",)))
    assert [step.sentence for step in trace.steps] == [None, "So the answer is: Ann."]
    reasoned = {ask.rationales for ask in script.asks if not ask.id.endswith("/documents")}  # B has its own chain
    assert trace.stopped == "final answer" and reasoned == {()}


ASKED = question(text="Book")


def run_single(say, shelf, **settings):
    chosen = SelfAwareSettings(threshold=0.0, **settings)
    script = Script(say)
    (trace,) = answer_all([ASKED], lambda q: single_hop(q, chosen), script, shelf, method="s", threshold=0.0)
    return trace, script


def test_a_sure_direct_answer_needs_no_search():
    trace, _ = run_single(lambda ask: (" Ann.", 0.0), Shelf(Book=("a",)))
    assert (trace.answer, trace.stopped, trace.spent.searches, trace.spent.requests) == ("Ann", "sure", 0, 1)


@pytest.mark.parametrize("silence", ["", "Unknown.", "It is not mentioned."])
def test_a_direct_answer_that_says_nothing_is_searched_for_however_certain(silence):
    trace, _ = run_single(lambda ask: ("Ann", 0.5) if ask.documents else (silence, -9.0), Shelf(Book=("a",)))
    assert (trace.answer, trace.stopped, trace.spent.searches) == ("Ann", "searched", 1)


def test_an_unsure_one_gives_way_to_the_least_uncertain_document():
    us = {"a": 0.9, "b": -0.5, "c": 0.2}

    def say(ask):
        return (
            (f"From {ask.documents[0].passage_id}", us[ask.documents[0].passage_id]) if ask.documents else ("Ann", 0.1)
        )

    trace, script = run_single(say, Shelf(Book=("a", "b", "c")), documents=10)
    assert trace.answer == "From b" and [len(ask.documents) for ask in script.asks] == [0, 1, 1, 1]
    assert [(c.passage_id, c.kept) for c in trace.steps[0].candidates] == [("a", False), ("b", True), ("c", False)]
    assert (trace.spent.searches, trace.spent.passages, trace.spent.requests) == (1, 3, 4)
    assert [s.name for s in trace.strategies] == ["document a", "document b", "document c", "direct"]


def test_nothing_found_or_only_unknown_answers_leave_the_direct_one():
    trace, _ = run_single(lambda ask: ("Ann", 1.0), Shelf())
    assert (trace.answer, trace.stopped) == ("Ann", "nothing found")
    trace, _ = run_single(lambda ask: ("unknown", -1.0) if ask.documents else ("Ann", 1.0), Shelf(Book=("a", "b")))
    assert trace.answer == "Ann" and [s.chosen for s in trace.strategies] == [False, False, True]


def test_the_direct_answer_competes_with_none_that_read_a_document():
    trace, _ = run_single(lambda ask: ("From a", 0.9) if ask.documents else ("Ann", 0.1), Shelf(Book=("a",)))
    assert trace.answer == "From a" and [s.chosen for s in trace.strategies] == [True, False]
    assert [c.kept for c in trace.steps[0].candidates] == [True]


PIECES = (
    (" Mo", 0.9), ("zart", 0.8), (" was", 0.9), (" born", 0.7), (" in", 0.9), (" 17", 0.2), ("56", 0.9), (".", 1.0),
)  # fmt: skip
SENTENCE = "Mozart was born in 1756."


def test_content_words_keep_their_order_each_once():
    assert content_words("Who is the Author of the book, and of the Book's author?") == ["Author", "book", "Book's"]
    assert content_words("北京是哪国的首都") == ["北京是哪国的首都"]


def test_a_word_is_as_confident_as_its_least_probable_token():
    assert confident_words(PIECES, SENTENCE, 0.4) == ["Mozart", "born"]
    assert confident_words(PIECES, SENTENCE, 0.1) == ["Mozart", "born", "1756"]
    assert confident_words(PIECES, SENTENCE, 0.7) == ["Mozart", "born"]  # as confident as is asked for
    assert confident_words(PIECES, SENTENCE, 0.8) == ["Mozart"]


def test_without_a_confident_word_the_question_is_asked():
    assert build_query(PIECES, SENTENCE, "When was Mozart born?", 0.95) == "Mozart born"
    assert build_query(PIECES, SENTENCE, "Who was it?", 0.95) == "Who was it?"
    assert build_query((), "", "When was Mozart born?", 0.4) == "Mozart born"


UNSURE = Script(lambda ask: ("Ann", 1.0))


class Calls(Shelf):
    """A shelf that notes its calls."""

    def __init__(self, **found):
        super().__init__(**found)
        self.calls = []

    def search(self, queries, k):
        self.calls.append((tuple(queries), k))
        return super().search(queries, k)


def test_no_more_than_at_once_are_in_work_and_the_next_one_begins_when_one_is_finished():
    working, most = set(), []

    def begin(asked):
        working.add(asked.id)
        most.append(len(working))
        return single_hop(asked, SelfAwareSettings(0.0))

    for trace in answer_all(
        [question(f"q{i}") for i in range(5)], begin, UNSURE, Shelf(), method="m", threshold=0.0, at_once=2
    ):
        working.remove(trace.question_id)
    assert most == [1, 2, 1, 2, 1]  # both of a pair are finished in one round


def test_searches_with_one_k_share_a_call_and_each_question_counts_its_own():
    def asking(k):
        def coroutine():
            hits = yield ("it", k)
            return PipelineOutcome(f"{len(hits)} hits", "done")

        return coroutine()

    wanted = {"a": 1, "b": 3, "c": 1}
    shelf = Calls(it=("x", "y", "z"))
    begin = lambda asked: asking(wanted[asked.id])  # noqa: E731
    traces = list(answer_all([question(n) for n in wanted], begin, UNSURE, shelf, method="m", threshold=0.0))
    assert shelf.calls == [(("it", "it"), 1), (("it",), 3)]
    assert {t.question_id: t.answer for t in traces} == {"a": "1 hits", "b": "3 hits", "c": "1 hits"}
    assert [t.spent.searches for t in traces] == [1, 1, 1] and all(t.retrieved for t in traces)


@pytest.mark.parametrize(
    ("said", "figures"), [("Ann", (True, 1.0, 1.0)), ("It is Ann", (True, 0.0, 0.5)), ("Bob", (False, 0.0, 0.0))]
)
def test_correct_is_by_the_question_s_rule_and_exact_match_and_f1_beside_it(said, figures):
    asked = replace(question(), grading="contains")
    begin = lambda one: single_hop(one, SelfAwareSettings(0.0))  # noqa: E731
    (trace,) = answer_all([asked], begin, Script(lambda ask: (said, -1.0)), Shelf(), method="m", threshold=0.0)
    assert (trace.correct, trace.exact_match, trace.f1) == figures
