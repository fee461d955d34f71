"""Benefit as targets: stretched over the training questions' range, and over no others'."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from kbtrain.labeling.examples import PLAIN, BenefitTarget
from kbtrain.labeling.label import indicators, label
from kbtrain.records import Label, Question, SampleSet, Split


@pytest.fixture
def made(capital: Question, answered: Callable[..., SampleSet]) -> Callable[..., Label]:
    def labelled(benefit: float | None, split: Split = "train") -> Label:
        llm = indicators(capital, answered("Paris", "Rome"))[0]
        return dataclasses.replace(label(capital, {"llm": llm}, 0.5, 0.5), benefit=benefit, split=split)

    return labelled


def test_a_benefit_that_equals_tau_is_not_above_it_by_a_rounding() -> None:
    """One answer of ten more, wherever on the scale: .4 - .3 is a little more than .1 in floats, .2 - .1 not."""
    target = BenefitTarget(0.1)
    assert 0.4 - 0.3 > 0.1 >= 0.2 - 0.1
    assert not any(target.hard((right + 1) / 10 - right / 10) for right in range(10))
    assert all(target.hard((right + 1) / 9 - right / 9) for right in range(9))


def test_unstretched_a_benefit_is_half_of_one_plus_itself() -> None:
    assert [PLAIN.soft(b) for b in (-1, 0, 0.5, 1)] == [0, 0.5, 0.75, 1]


def test_the_tails_of_the_training_questions_become_0_and_1(made: Callable[..., Label]) -> None:
    labels = [made(b / 10) for b in range(-2, 8)]  # ten: the 20 % quantile is -0.1, the 80 % one 0.5
    target = BenefitTarget.from_labels([*labels, made(-1.0, "dev"), made(1.0, "test"), made(None)], 0.1, 0.2)
    assert target == BenefitTarget(0.1, -0.1, 0.5)
    assert [target.soft(b) for b in (-0.2, -0.1, 0.2, 0.5, 0.7)] == pytest.approx([0, 0, 0.5, 1, 1])
    assert (target.hard(0.1), target.hard(0.11)) == (False, True)


@pytest.mark.parametrize("values", [[], [0.3, 0.3, 0.3]])
def test_without_a_range_nothing_is_stretched(made: Callable[..., Label], values: list[float]) -> None:
    assert BenefitTarget.from_labels([made(b) for b in values], 0.2, 0.05) == BenefitTarget(0.2)


def test_the_greedy_answers_have_their_weight(made: Callable[..., Label]) -> None:
    def with_greedy(benefit: float, before: bool, after: bool | None) -> Label:
        plain = made(benefit)
        llm = dataclasses.replace(plain.llm, greedy_correct=before)
        return dataclasses.replace(plain, llm=llm, rag=dataclasses.replace(plain.llm, greedy_correct=after))

    half = BenefitTarget(greedy=1.0)
    assert half.gain(with_greedy(0.2, False, True)) == pytest.approx(0.6)  # mended: (0.2 + 1) / 2
    assert half.gain(with_greedy(0.2, True, False)) == pytest.approx(-0.4)
    assert half.gain(with_greedy(0.2, True, True)) == pytest.approx(0.1)
    # .2 - .7 in samples, mended at half a weight: nothing gained, though the sum is not quite 0
    light = BenefitTarget(greedy=0.5)
    nothing = light.gain(with_greedy(0.2 - 0.7, False, True))
    assert nothing is not None and nothing > 0 and not light.hard(nothing)
    assert half.gain(with_greedy(0.2, True, None)) is None and half.gain(made(0.2)) is None
    assert PLAIN.gain(with_greedy(0.2, True, False)) == 0.2
    labels = [with_greedy(0.0, False, True), with_greedy(0.0, True, False), with_greedy(0.0, True, True)]
    assert BenefitTarget.from_labels(labels, 0.0, 0.01, 1.0) == BenefitTarget(0.0, -0.5, 0.5, 1.0)


def test_without_tails_nothing_is_stretched(made: Callable[..., Label]) -> None:
    assert BenefitTarget.from_labels([made(0.1), made(0.6)], 0.0, 0.0) == PLAIN
