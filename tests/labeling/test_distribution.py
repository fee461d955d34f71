"""Counts over labels: the printed table and the statistics of the report."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from kbm_paper.analysis_page import _correlation

from kbtrain.labeling.distribution import Distribution, interval, statistics
from kbtrain.labeling.label import effect, indicators, label
from kbtrain.records import Condition, Indicators, Label, Question, SampleSet, Split


@pytest.fixture
def seen(capital: Question, answered: Callable[..., SampleSet]) -> Distribution:
    made = Distribution()
    for right, right_rag in ((0, 5), (3, 3), (10, 4)):
        llm = answered(*["Paris"] * right, *["Rome"] * (10 - right))
        rag = answered(*["Paris"] * right_rag, *[""] * (10 - right_rag), condition="rag")
        found = {"llm": indicators(capital, llm)[0], "rag": indicators(capital, rag)[0]}
        made.add(label(capital, found, tau_mastery=0.3, tau_certainty=0.8))
    return made


def test_counts_means_and_histograms_by_hand(seen: Distribution) -> None:
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
    assert made["answers"] == {"n_llm": 30, "n_empty_llm": 0, "n_rag": 30, "n_empty_rag": 18}


def test_the_table_shows_the_same_numbers(seen: Distribution) -> None:
    lines = seen.lines()
    assert lines[1].split() == ["llm", "1", "0", "0", "1", "0", "0", "0", "0", "0", "1"]
    assert lines[-2].split() == ["capital", "3", "0.43", "0.40", "33%", "67%", "1/1/1"]
    assert lines[-1].split()[0] == "all"


def test_the_certain_are_a_share_of_those_whose_certainty_is_known(
    capital: Question, answered: Callable[..., SampleSet], seen: Distribution
) -> None:
    silent = indicators(capital, answered(*["Paris"] * 4, *[""] * 6))[0]
    assert silent is not None and silent.certainty is None
    seen.add(label(capital, {"llm": silent}, 0.3, 0.8))
    group = seen.as_dict()["labels"]
    assert (group["n"], group["certain"], group["without_certainty"]) == (4, 2, 1)
    assert seen.lines()[-1].split()[:6] == ["all", "4", "0.43", "0.40", "50%", "67%"]  # known: 2 of 4, certain: 2 of 3


def _found(condition: Condition, mastery: float, certainty: float | None) -> Indicators:
    return Indicators(
        condition, 10, round(10 * mastery), mastery, 0, 1, certainty, 0, 1, n_groups=2, n_empty=0, greedy_correct=None
    )


def _label(llm: tuple[float, float | None], rag: tuple[float, float | None] | None, split: Split = "train") -> Label:
    given = None if rag is None else _found("rag", *rag)
    certain = llm[1] is not None
    effects = (None, None) if rag is None else (effect(llm[0], rag[0]), effect(llm[1], rag[1]) if certain else None)
    hard = (0.8, 0.7, llm[0] > 0.8, llm[1] > 0.7 if certain else None, None, None)
    return Label("q", split, _found("llm", *llm), given, None, *hard, None, None, None, *effects)


def test_intervals_are_half_open_and_the_last_one_is_closed() -> None:
    assert [interval(v, 5) for v in (0, 0.19, 0.2, 0.6, 0.8, 1.0)] == [0, 0, 1, 3, 4, 4]
    assert interval(0.3, 10) == 3 and interval(1 - 0.9, 10) == 1  # 1 - 0.9 is a little less than 0.1


def test_panels_histograms_and_sweep() -> None:
    found = statistics(
        [
            _label((0.0, 0.5), (1.0, 0.9)),
            _label((0.9, 0.9), (0.4, 0.9)),
            _label((0.5, 0.2), (0.5, 0.1)),
            _label((0.5, 0.2), None),
            _label((1.0, 1.0), (0.0, 0.0), split="dev"),  # not counted
        ]
    )
    assert (found.n, found.n_with_rag, found.tau_mastery) == (4, 3, 0.8)
    assert found.panels["mastery", "llm", 0, "beneficial"] == 1
    assert found.panels["mastery", "rag", 4, "beneficial"] == 1
    assert found.panels["mastery", "llm", 4, "harmful"] == 1
    assert found.panels["mastery", "llm", 2, "neutral"] == 1
    assert found.panels["certainty", "rag", 4, "neutral"] == 1
    assert sum(found.panels.values()) == 3 * 2 * 2
    assert found.histograms["mastery", "llm", 5] == 2
    assert (found.count("mastery", "llm"), found.count("certainty", "rag"), found.split) == (4, 3, "train")
    assert (found.compared("mastery", "llm"), found.compared("certainty", "rag")) == (3, 3)  # without the one of no rag
    sweep = {round(tau, 1): (saved, change) for tau, saved, change in found.sweep()}
    # masteries with retrieval: 1, .4, .5; at tau 0.7 only the second question is kept from retrieval: .9
    assert sweep[0.7] == pytest.approx((1 / 3, (0.9 - 0.4) / 3))
    assert sweep[0.9] == pytest.approx((0, 0))
    assert sweep[0.0] == pytest.approx((2 / 3, (0.9 - 0.4) / 3))


def test_pearson_equals_numpy() -> None:
    rng = np.random.default_rng(0)
    values = rng.random((50, 2))
    found = statistics([_label((float(m), float(c)), None) for m, c in values])
    assert found.pearson() == pytest.approx(np.corrcoef(values.T)[0, 1])
    assert statistics([_label((0.5, 0.1), None), _label((0.5, 0.9), None)]).pearson() is None


def test_labels_from_one_greedy_answer_have_mastery_alone() -> None:
    found = statistics([_label((1.0, None), (0.0, None)), _label((0.0, None), (1.0, None))])
    assert (found.n, found.n_certainty, found.pearson()) == (2, 0, None)
    assert found.count("mastery", "llm") == 2 and found.count("certainty", "llm") == 0
    assert found.sweep()[0][2] == 0.5  # the one right without retrieval is spared it: both right, All RAG one of two


def test_the_table_of_the_correlation_counts_the_questions_with_both() -> None:
    labels = [_label((m, c), None) for m, c in ((0.1, 0.2), (0.4, 0.5), (0.5, 0.4), (0.6, None))]
    run: Any = SimpleNamespace(name="model", statistics=statistics(labels))
    assert _correlation([run]).tables[0].rows[0][:2] == ("model", "3")
