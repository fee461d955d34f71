"""Outcomes from stored answers, and the definitions of "retrieval is needed", worked by hand."""

import pytest

from kbtrain.evaluation.outcomes import (
    answers,
    entities_of,
    grade,
    greedy_wrong,
    has_expected,
    is_needed,
    outcome,
    summarise,
    unmastered,
)
from kbtrain.records import Outcome, Question, Sample, SampleSet

ASKED = Question("q", "Capital?", ("Paris",), "test", "d")


def one(llm, rag, llm_expected=None, rag_expected=None):
    return Outcome("q", "test", None, llm, rag, llm_expected, rag_expected, 1, 1)


def stored(*texts, greedy=None, finish="eos"):
    made = None if greedy is None else Sample(-1, greedy, 4, finish, -1.0)
    return SampleSet("q", "llm", tuple(Sample(i, text, 2, "eos", -1.0) for i, text in enumerate(texts)), made, 20)


def test_retrieval_is_needed_where_it_alone_is_right():
    every = [one(a, b) for a in (False, True) for b in (False, True)]
    assert is_needed(every).tolist() == [False, True, False, False]
    assert greedy_wrong(every)[1].tolist() == [True, True, False, False]


def test_unmastered_is_not_above_tau_and_without_samples_the_greedy_answer_says_so():
    sampled = [one(True, True, m, 0.0) for m in (0.2, 0.5, 0.6)]
    name, truth = unmastered(sampled, 0.5)
    assert name == "unmastered" and truth.tolist() == [True, True, False]
    assert unmastered([*sampled, one(False, True)], 0.5)[0] == "llm_greedy_wrong"


def test_the_expected_accuracy_needs_samples_under_both_conditions():
    both, half = one(True, False, 0.25, 0.75), one(True, False, 0.25, None)
    assert has_expected([both]) and not has_expected([both, half]) and not has_expected([])
    found = answers([both], "expected")
    assert (found.llm.tolist(), found.rag.tolist()) == ([0.25], [0.75])
    assert answers([half], "greedy").llm.tolist() == [1.0]
    with pytest.raises(ValueError, match="'q' has no samples"):
        answers([half], "expected")


def test_stored_answers_are_graded_and_what_the_judge_would_not_say_is_left_out():
    verdicts = {"paris": True, "rome": False, "city": None}
    found = grade(ASKED, stored("Paris", "Rome", "city", "city", greedy="Paris", finish="length"), verdicts)
    assert (found.correct, found.mastery, found.tokens, found.prompt_tokens) == (True, 0.5, 4, 20)
    assert found.cut_off and not found.empty
    whole = grade(ASKED, stored(greedy=" "))
    assert (whole.correct, whole.mastery, whole.cut_off, whole.empty) == (False, None, False, True)
    assert grade(ASKED, stored("Paris")).correct is None
    with pytest.raises(ValueError, match="no greedy answer"):
        outcome(ASKED, found, grade(ASKED, stored("Paris")))


def test_a_greedy_answer_that_was_cut_before_it_began_is_neither_right_nor_wrong():
    for finish in ("length", "thought"):
        found = grade(ASKED, stored("Paris", greedy="", finish=finish))
        assert (found.correct, found.left_out, found.empty, found.mastery) == (None, True, False, 1.0)
    assert grade(ASKED, stored(greedy="")).left_out is False


def test_a_condition_s_summary_is_over_what_was_asked_for():
    made = [grade(ASKED, stored("Paris", "Rome", greedy="Paris")), grade(ASKED, stored(greedy="Rome"))]
    found = summarise(made)
    assert (found.n, found.accuracy, found.n_sampled, found.expected_accuracy) == (2, 0.5, 1, 0.5)
    assert (found.generated_tokens, found.n_empty, found.n_cut_off) == (8, 0, 0)


def test_a_question_s_cluster_is_its_first_entity_or_itself():
    with_entities = Question("a", "?", ("x",), "test", "d", entities=("e1", "e2"))
    assert entities_of([with_entities, ASKED]) == ("e1", "q")
