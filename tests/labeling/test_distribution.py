"""Counts over labels, and the printed table."""

import pytest

from kbtrain.labeling.distribution import Distribution, interval
from kbtrain.labeling.label import indicators, label


@pytest.fixture
def seen(capital, answered):
    made, labels = Distribution(), []
    for right, right_rag in ((0, 5), (3, 3), (10, 4)):
        llm = answered(*["Paris"] * right, *["Rome"] * (10 - right))
        rag = answered(*["Paris"] * right_rag, *[""] * (10 - right_rag), condition="rag")
        found = {"llm": indicators(capital, llm)[0], "rag": indicators(capital, rag)[0]}
        labels.append(label(capital, found, tau_mastery=0.3, tau_certainty=0.8))
    assert list(made.counting(labels)) == labels
    return made


def test_counts_means_and_histograms_by_hand(seen):
    made = seen.as_dict()
    group = made["labels"]
    assert (group["n"], group["known"], group["certain"]) == (3, 1, 2)  # 0.3 is not above 0.3
    assert group["mean_mastery_llm"] == pytest.approx(13 / 30)
    assert group["mean_mastery_rag"] == pytest.approx(12 / 30)
    assert group["mean_benefit"] == pytest.approx((0.5 + 0 - 0.6) / 3)
    assert group["effect_mastery"] == {"beneficial": 1, "neutral": 1, "harmful": 1}
    assert made["by_split"] == {"train": group} and made["by_relation"] == {"capital": group}
    # 0.3 belongs to [0.3, 0.4), 1.0 to the last bin
    assert made["histograms"]["mastery_llm"] == [1, 0, 0, 1, 0, 0, 0, 0, 0, 1]
    assert made["histograms"]["mastery_rag"] == [0, 0, 0, 1, 1, 1, 0, 0, 0, 0]


def test_the_table_shows_the_same_numbers(seen):
    lines = seen.lines()
    assert lines[1].split() == ["llm", "1", "0", "0", "1", "0", "0", "0", "0", "0", "1"]
    assert lines[-2].split() == ["capital", "3", "0.43", "0.40", "33%", "67%", "1/1/1"]
    assert lines[-1].split()[0] == "all"


def test_the_certain_are_a_share_of_those_whose_certainty_is_known(capital, answered, seen):
    silent = indicators(capital, answered(*["Paris"] * 4, *[""] * 6))[0]
    assert silent is not None and silent.certainty is None
    list(seen.counting([label(capital, {"llm": silent}, 0.3, 0.8)]))
    group = seen.as_dict()["labels"]
    assert (group["n"], group["certain"], group["without_certainty"]) == (4, 2, 1)
    assert seen.lines()[-1].split()[:6] == ["all", "4", "0.43", "0.40", "50%", "67%"]  # known: 2 of 4, certain: 2 of 3


def test_intervals_are_half_open_and_the_last_one_is_closed():
    assert [interval(v, 5) for v in (0, 0.19, 0.2, 0.6, 0.8, 1.0)] == [0, 0, 1, 3, 4, 4]
    assert interval(0.3, 10) == 3 and interval(1 - 0.9, 10) == 1  # 1 - 0.9 is a little less than 0.1
