"""The three classes of the effect of retrieval, and benefit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kbtrain.labeling.indicators import certainty
from kbtrain.labeling.label import benefit, effect, indicators
from kbtrain.metrics.significance import newcombe
from kbtrain.records import Question, SampleSet


def test_the_effect_follows_the_indicator() -> None:
    assert (effect(0.2, 0.5), effect(0.5, 0.5), effect(0.5, 0.2)) == ("beneficial", "neutral", "harmful")
    assert effect(0.1 + 0.2, 0.3) == "neutral"


def test_groupings_of_equal_entropy_are_neutral() -> None:
    """4 ln 4 = 4 times 2 ln 2, so 4+1+1+1+1 and 2+2+2+2 have the same entropy, whatever floats say."""
    assert effect(certainty((4, 1, 1, 1, 1)), certainty((2, 2, 2, 2))) == "neutral"


def test_benefit_is_mastery_with_minus_without(capital: Question, answered: Callable[..., SampleSet]) -> None:
    llm, _ = indicators(capital, answered(*["Paris"] * 3, *["Rome"] * 7))
    rag, _ = indicators(capital, answered(*["Paris"] * 8, *["Rome"] * 2, condition="rag"))
    value, interval = benefit(llm, rag)
    assert value == pytest.approx(0.5)
    assert interval == newcombe((3, 10), (8, 10)) and interval[0] > 0
    assert benefit(rag, llm)[0] == pytest.approx(-0.5)
