import pytest

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard
from kbtrain.gates.simple import Always
from kbtrain.rag.three_steps import SecondJudgement, ThreeSteps
from kbtrain.records import Hit, Question, Sample, SampleSet


def answer(questions, *steps, **settings):
    return ThreeSteps(*steps, **settings).answer(questions)


class ByText:
    """Scores 1 - the digit at the end of the question / 10."""

    name, needs_evidence = "by_text", False

    def score(self, examples):
        assert all(e.reference is None for e in examples)
        return [1 - int(e.question[-1]) / 10 for e in examples]


class Echo:
    """Answers with the condition and the evidence it was given; last question first, as a batch may come back."""

    name = "echo"

    def __init__(self):
        self.asked = []

    def answer(self, asks):
        self.asked = list(asks)
        for ask in reversed(self.asked):
            text = f"{ask.condition}:{ask.evidence}"
            greedy = Sample(-1, text, 3 + len(ask.question.id), "eos", 0.0)
            yield [SampleSet(ask.question.id, ask.condition, (), greedy, 10)]


class Shelf:
    def __init__(self):
        self.queries = []

    def search(self, queries, k):
        self.queries += queries
        return [() if "nothing" in q else (Hit("p", "t", f"about {q}", 2.0),)[:k] for q in queries]


QUESTIONS = [Question(f"q{i}", f"number {i}", ("x",), "test", "d") for i in (9, 2, 5)]


def test_known_questions_are_answered_plainly_and_unknown_ones_with_what_was_found():
    llm, shelf = Echo(), Shelf()
    found = answer(QUESTIONS, ByText(), 0.5, llm, shelf)
    assert [a.question_id for a in found] == ["q9", "q2", "q5"]
    assert [a.text for a in found] == ["llm:None", "rag:t: about number 2", "llm:None"]  # 0.5 is not above 0.5
    assert [a.retrieved for a in found] == [False, True, False]
    assert [a.score for a in found] == pytest.approx([0.1, 0.8, 0.5])
    assert shelf.queries == ["number 2"]


def test_a_search_that_finds_nothing_leads_to_the_plain_answer_and_is_still_counted():
    question = Question("q", "nothing here 1", ("x",), "test", "d")
    found = answer([question], Always(), 0.5, Echo(), Shelf())
    assert (found[0].text, found[0].retrieved, found[0].searches, found[0].hits) == ("llm:None", True, 1, ())


def test_a_gate_that_needs_more_than_the_question_is_refused():
    gate = ByText()
    gate.needs_evidence = True
    with pytest.raises(UserError, match="'by_text' needs retrieved text"):
        answer(QUESTIONS, gate, 0.5, Echo(), Shelf())


class WithPassages:
    """Scores the question together with what was found: .8 for number 2, else .3."""

    name, card = "with_passages", None

    def __init__(self):
        self.read = []

    def score(self, examples):
        self.read += [(e.question, e.reference) for e in examples]
        return [0.8 if e.question.endswith("2") else 0.3 for e in examples]


def test_the_second_judgement_reads_the_passages_and_drops_those_with_which_the_model_cannot_answer():
    again, shelf = WithPassages(), Shelf()
    found = answer(QUESTIONS, ByText(), 0.3, Echo(), shelf, second=SecondJudgement(again, 0.5))
    # number 9 is known; 2 is searched for, and its passages are dropped; those of 5 are passed on
    assert again.read == [("number 2", "t: about number 2"), ("number 5", "t: about number 5")]
    assert [a.text for a in found] == ["llm:None", "llm:None", "rag:t: about number 5"]
    assert [(a.retrieved, a.searches, len(a.hits)) for a in found] == [(False, 0, 0), (True, 1, 0), (True, 1, 1)]
    assert [a.second_score for a in found] == [None, 0.8, 0.3]
    kept = answer(QUESTIONS, ByText(), 0.3, Echo(), Shelf(), second=SecondJudgement(again, 0.8))
    assert kept[1].text == "rag:t: about number 2"  # dropped only above the threshold, as in figure 8


def test_a_gate_trained_without_passages_is_no_second_judge():
    gate = WithPassages()
    for rule in ({"with_reference": True}, {}):
        gate.card = GateCard(kind="kbm", label_rule=rule)
        assert SecondJudgement(gate, 0.5).threshold == 0.5
    gate.card = GateCard(kind="kbm", label_rule={"with_reference": False})
    with pytest.raises(UserError, match=r"'with_passages': trained without passages.*build_double_judgement"):
        SecondJudgement(gate, 0.5)
