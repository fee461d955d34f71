"""The paper's analyses on answers small enough to be worked by hand."""

import math

import pytest
from kbm_paper.tallies import TAUS, Accuracies, Copying, GradedAnswers, Stability, TauSweep, graded_answers, is_mask

from kbtrain.metrics.significance import newcombe, wilson
from kbtrain.records import Question, Sample, SampleSet


@pytest.fixture
def capital():
    return Question("q1", "What is the capital of France?", ("Paris",), "train", "atlas")


@pytest.fixture
def answered():
    def build(*answers, condition="llm", greedy=None, question="q1", cut=0):
        samples = tuple(Sample(i, text, 2, "eos", -1.0) for i, text in enumerate(answers))
        best = None if greedy is None else Sample(-1, greedy, 2, "eos", -1.0)
        return SampleSet(question, condition, samples, best, 20, cut)

    return build


@pytest.fixture
def graded():
    """From letters: capitals are right, small ones wrong, equal letters one group, ? an abstention."""

    def build(letters):
        return GradedAnswers(tuple(None if c == "?" else c.isupper() for c in letters), tuple(letters))

    return build


def test_answers_are_graded_in_their_order(capital, answered):
    made = graded_answers(capital, answered("Paris", "Lyon", "the paris", ""))
    assert made == GradedAnswers((True, False, True, False), ("paris", "lyon", "paris", ""))
    assert made.mastery == 0.5 and made.first(1).mastery == 1 and made.half(True).right == (False, False)
    entropy = -(0.5 * math.log(0.5) + 2 * 0.25 * math.log(0.25))
    assert made.certainty == pytest.approx(1 - entropy / math.log(4))
    assert graded_answers(capital, answered("", " ", "x")).certainty is None
    judged = graded_answers(capital, answered("x", "y"), {"x": None, "y": True})
    assert judged.right == (None, True) and judged.mastery == 1 and judged.counts == (1, 1)
    assert judged.first(1).mastery is None and judged.first(1).certainty is None


def test_conditions_are_compared_on_the_same_questions(capital, answered):
    found = Accuracies(frozenset({"llm", "rag"}))
    for llm, rag in (("Paris", "Paris"), ("Lyon", "Paris"), ("Lyon", "?"), ("Paris", None)):
        sets = {"llm": answered("Paris", "x", greedy=llm)}
        if rag is not None:
            sets["rag"] = answered("Paris", condition="rag", greedy=rag, cut=5)
        answers = {c: graded_answers(capital, made) for c, made in sets.items()}
        greedy = {"llm": llm == "Paris", "rag": None if rag == "?" else rag == "Paris"}
        found.add(sets, answers, {c: greedy[c] for c in sets})
    assert (found.n, found.left_out) == (3, 1)
    llm_found, rag_found = found.conditions["llm"], found.conditions["rag"]
    assert (llm_found.greedy_right, llm_found.greedy_n, llm_found.stored) == (1, 3, 4)
    assert llm_found.greedy == (1 / 3, *wilson(1, 3)) and llm_found.sampled.mean == 0.5
    assert (rag_found.greedy_right, rag_found.greedy_n, rag_found.greedy_abstained) == (2, 2, 1)
    assert (rag_found.cut, rag_found.cut_tokens) == (3, 15)


def test_figure_2_is_the_share_of_masks_among_certain_questions(graded):
    found = Copying()
    found.add(graded("aaaa"), 4, ())  # certain, copied
    found.add(graded("bbbb"), 0, ())  # certain, its own words
    found.add(graded("cccc"), 4, ("Paris",))  # certain, copied, but the answer shows through
    found.add(graded("aaab"), 3, ())  # not certain
    assert (found.n_questions, found.n_certain, found.n_copied) == (4, 3, 2)
    assert found.share == (2 / 3, *wilson(2, 3))
    assert (found.outputs, found.mask_outputs, found.leaking) == (16, 11, 1)
    assert (found.certain_without_leak, found.copied_without_leak) == (2, 1)
    assert Copying().share is None


def test_the_sweep_saves_and_loses_what_is_worked_by_hand(graded):
    sweep = TauSweep()
    sweep.add("mastery", graded("AAAA"), graded("bbAA"))  # known: not retrieving gains .5
    sweep.add("mastery", graded("AAbb"), graded("AAAA"))  # half known: not retrieving loses .5
    sweep.add("mastery", graded("bbbb"), graded("AAAA"))  # unknown
    rows = {row.tau: row for row in TauSweep.rows(sweep.same)}
    assert len(rows) == len(TAUS)
    assert (rows[0.0].saved, rows[0.0].change) == pytest.approx((2 / 3, 0))
    assert (rows[0.5].saved, rows[0.5].change) == pytest.approx((1 / 3, 0.5 / 3))
    assert rows[0.95].saved == pytest.approx(1 / 3)
    assert rows[0.5].change_low is not None and rows[0.5].change_low < rows[0.5].change


def test_stability_compares_the_first_answers_with_all(graded):
    found = Stability(largest=20, tau_mastery=0.5, tau_certainty=0.9)
    steady, changing = "A" * 20, "AAAAA" + "bcdef" * 3
    found.add(graded(steady), graded("b" * 20))
    found.add(graded(changing), graded("A" * 20))
    found.add(graded("AAA"), None)
    assert (found.n, found.fewer) == (2, 1) and sorted(found.sizes) == [5, 10, 20]
    five, ten, all_ = (found.sizes[size] for size in (5, 10, 20))
    low, high = wilson(5, 5)
    assert five.mastery_width.mean == pytest.approx(high - low)
    assert (five.known_flips.mean, ten.known_flips.mean, all_.known_flips.mean) == (0.5, 0, 0)  # 5/5 is known, 5/20 not
    assert five.certain_flips.mean == 0.5 and five.known_disagree.mean == 0.5 and all_.known_disagree.mean is None
    widths = [b - a for a, b in (newcombe((5, 5), (0, 5)), newcombe((5, 5), (5, 5)))]
    assert five.benefit_width.mean == pytest.approx(sum(widths) / 2)
    assert five.effect_flips.mean == 0.5  # neutral with 5 answers, beneficial with all


def test_a_copied_mask_is_recognised():
    copied = ("MASK", " mask.", "**MASK**", "It is MASK, I think", "MASK市")
    own = ("unmask", "a mask", "UNMASKED", "")
    assert [is_mask(answer) for answer in copied + own] == [True] * 5 + [False] * 4
