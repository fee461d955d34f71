"""Mastery, certainty and their intervals, the effect of retrieval, and answers that overlap."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binomtest, entropy

from kbtrain.answers.grading import exact_match, token_f1
from kbtrain.labeling.indicators import Graded, certainty, certainty_interval, grade
from kbtrain.labeling.label import effect
from kbtrain.metrics.significance import newcombe, wilson
from kbtrain.records import Question


def test_answers_are_graded_and_grouped_after_normalisation(capital):
    answers = ["Paris", "paris.", "The Paris", "It is Paris", "Lyon", "lyon!", "", " \n"]
    # correct: the three forms of Paris and "It is Paris"; groups: paris x3, "it is paris", lyon x2, each empty one
    assert grade(capital, answers) == Graded(n=8, n_correct=4, n_empty=2, n_unparsed=0, groups=(3, 2, 1, 1, 1))


def test_an_answer_that_names_no_option_is_wrong_and_counted(choice):
    answers = ["B", "b", "B. Africa", "Africa", "A", "I do not know", ""]
    assert grade(choice, answers) == Graded(n=7, n_correct=4, n_empty=1, n_unparsed=1, groups=(4, 1, 1, 1))


def test_answers_that_are_graded_by_their_option_are_not_counted_as_naming_none():
    asked = {"form": "choice", "grading": "option", "options": ("红色", "蓝色")}
    sky = Question("q", "天空？", ("B",), "test", "made", "zh", **asked)
    graded = grade(sky, ["選B", "正確選項：B", "不知道"])
    assert (graded.n_correct, graded.n_unparsed) == (2, 1)


def test_certainty_by_hand():
    assert certainty((30,)) == 1.0
    assert certainty((1,) * 30) == pytest.approx(0.0, abs=1e-12)
    assert certainty((1, 1)) == pytest.approx(0.0, abs=1e-12)
    # two halves: U = ln 2
    assert certainty((15, 15)) == pytest.approx(1 - math.log(2) / math.log(30), abs=1e-12)
    # 2/3 and 1/3: U = ln 3 - 2/3 ln 2
    assert certainty((20, 10)) == pytest.approx(1 - (math.log(3) - 2 / 3 * math.log(2)) / math.log(30), abs=1e-12)


@pytest.mark.parametrize(("groups", "drawn"), [((3, 2), 2), ((3, 2, 1, 1), 4), ((4, 4), 7), ((1,) * 6, 3), ((6, 2), 5)])
def test_on_a_smaller_scale_certainty_is_the_mean_over_all_ways_to_draw_so_many(groups, drawn):
    answers = [group for group, size in enumerate(groups) for _ in range(size)]
    every = [certainty(tuple(Counter(part).values())) for part in itertools.combinations(answers, drawn)]
    assert certainty(groups, drawn) == pytest.approx(np.mean(every), abs=1e-12)
    low, high = certainty_interval(groups, drawn)
    assert 0 <= low <= certainty(groups, drawn) <= high <= 1


def test_the_scale_of_all_answers_is_the_papers_value():
    for groups in ((30,), (15, 15), (20, 9, 1), (1,) * 30):
        assert certainty(groups, 30) == certainty(groups)
        assert certainty_interval(groups, 30) == certainty_interval(groups)


def test_fewer_answers_than_the_scale_have_no_certainty_on_it():
    with pytest.raises(ValueError, match="not 10 of"):
        certainty((4, 1), 10)


def test_certainty_equals_scipys_entropy_for_any_grouping():
    rng = np.random.default_rng(1)
    for n in (2, 7, 30, 100):
        for _ in range(50):
            sizes = rng.multinomial(n, rng.dirichlet(np.full(6, 0.5)))
            groups = tuple(int(size) for size in sizes if size)
            assert certainty(groups) == pytest.approx(1 - entropy(groups) / math.log(n), abs=1e-12)


@pytest.mark.parametrize("groups", [(), (1,), (3, 0)])
def test_one_answer_has_no_certainty(groups):
    with pytest.raises(ValueError, match=r"two answers|empty"):
        certainty(groups)


@pytest.mark.parametrize("groups", [(30,), (1,) * 30, (29, 1), (15, 15), (10, 5, 5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)])
def test_the_interval_holds_the_value_is_repeatable_and_leaves_doubt(groups):
    low, high = certainty_interval(groups)
    assert 0 <= low <= certainty(groups) <= high <= 1
    assert high - low > 0.02
    certainty_interval.cache_clear()
    assert certainty_interval(groups) == (low, high)


SHARES = {
    "certain": [0.98, 0.02], "three": [0.7, 0.2, 0.1], "ten alike": [0.1] * 10,
    "long tail": list(1 / np.arange(1, 101)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARES)
def test_the_interval_covers_the_expected_certainty_where_percentiles_fail(name):
    """Answers drawn from known shares: four in five intervals hold the mean certainty of 30 such answers."""
    shares = np.array(SHARES[name]) / sum(SHARES[name])
    rng = np.random.default_rng(3)
    draws = [tuple(int(c) for c in counts if c) for counts in rng.multinomial(30, shares, size=3000)]
    expected = np.mean([certainty(groups) for groups in draws])
    seen = [certainty_interval(tuple(sorted(groups, reverse=True))) for groups in draws[:150]]
    assert np.mean([low <= expected <= high for low, high in seen]) >= 0.8


def test_the_effect_follows_the_indicator():
    assert (effect(0.2, 0.5), effect(0.5, 0.5), effect(0.5, 0.2)) == ("beneficial", "neutral", "harmful")
    assert effect(0.1 + 0.2, 0.3) == "neutral"


@pytest.mark.parametrize("n", [1, 2, 10, 30, 300])
def test_wilson_equals_scipys_for_every_count(n):
    for k in range(n + 1):
        reference = binomtest(k, n).proportion_ci(0.95, method="wilson")
        assert wilson(k, n) == pytest.approx((reference.low, reference.high), abs=1e-12)


@pytest.mark.parametrize(("k", "n"), [(-1, 30), (31, 30), (0, 0)])
def test_wilson_refuses_what_is_no_share(k, n):
    with pytest.raises(ValueError, match="is not a share"):
        wilson(k, n)


def test_newcombe_equals_the_published_examples():
    """Newcombe 1998 (Stat. Med. 17:873), table II, method 10: p1 - p2 with its interval."""
    published = {
        ((56, 70), (48, 80)): (0.0524, 0.3339),
        ((9, 10), (3, 10)): (0.1705, 0.8090),
        ((10, 10), (0, 10)): (0.6075, 1.0),
    }
    for (larger, smaller), expected in published.items():
        assert newcombe(smaller, larger) == pytest.approx(expected, abs=6e-5)


def test_exact_match_is_after_normalisation_over_all_aliases():
    assert exact_match("The Beatles.", ["Fab Four", "beatles"]) == 1.0
    assert exact_match("Beatles band", ["beatles"]) == 0.0
    assert exact_match("", ["beatles"]) == 0.0


def test_f1_worked_by_hand():
    # 2 of 3 words said are wanted, 2 of 4 wanted are said: 2 * 2 / 7
    assert token_f1("chief of staff", ["chief protocol of office"]) == pytest.approx(4 / 7)
    assert token_f1("Rome Rome", ["Rome"]) == pytest.approx(2 / 3)
    assert token_f1("x", ["Rome", "x y"]) == pytest.approx(2 / 3)
    assert token_f1("", ["Rome"]) == 0.0


def test_yes_and_no_are_never_partly_right():
    assert token_f1("no", ["yes"]) == 0.0 and token_f1("yes it is", ["yes"]) == 0.0 and token_f1("Yes.", ["yes"]) == 1.0


def test_chinese_is_compared_by_character():
    assert token_f1("北京市", ["北京"]) == pytest.approx(0.8)
