"""tau as a number or a quantile, and the refusal of one that leaves a class empty."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest

from kbtrain.errors import UserError
from kbtrain.labeling.label_stage import Quantile, choose_tau, quantile


def test_quantile_equals_numpys_inverted_cdf() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 31, size=500) / 30
    counted = Counter(float(value) for value in values)
    for share in (0.01, 0.25, 0.3, 0.5, 0.77, 0.99):
        assert quantile(counted, share) == np.quantile(values, share, method="inverted_cdf")


def test_a_quantile_puts_that_share_at_or_below_tau() -> None:
    counted = Counter({i / 10: 1 for i in range(10)})
    for share in (0.1, 0.3, 0.5, 0.9):
        tau = choose_tau("tau_mastery", Quantile(quantile=share), counted)
        assert sum(value <= tau for value in counted) == round(share * 10)
    hundred = Counter({i / 100: 1 for i in range(100)})
    assert quantile(hundred, 0.07) == 0.06  # 0.07 * 100 is a little more than 7


def test_a_number_is_taken_as_it_is() -> None:
    assert choose_tau("tau_mastery", 0.2, Counter({0.0: 3, 0.5: 1})) == 0.2
    assert choose_tau("tau_mastery", 0.8, Counter()) == 0.8


def test_a_quantile_without_training_questions_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^key 'tau_mastery': a quantile needs labelled training questions"):
        choose_tau("tau_mastery", Quantile(quantile=0.5), Counter())


@pytest.mark.parametrize(
    ("setting", "values", "which"),
    [
        (0.8, Counter({0.0: 70, 1 / 30: 20, 0.4: 10}), "none"),
        (0.1, Counter({0.2: 70, 1 / 3: 30}), "all"),
        (Quantile(quantile=0.99), Counter({0.0: 50, 0.5: 50}), "none"),
    ],
)
def test_an_empty_class_is_one_line_with_the_distribution_and_a_tau_that_works(
    setting: float | Quantile, values: Counter[float], which: str
) -> None:
    with pytest.raises(UserError) as caught:
        choose_tau("tau_mastery", setting, values)
    message = str(caught.value)
    assert message.startswith(f"key 'tau_mastery': {which} of 100 training questions lie above") and "\n" not in message
    assert f"range from {min(values):.3g} to {max(values):.3g}" in message
    advice = re.search(r"tau_mastery: (\S+) would put (\d+)% above$", message)
    assert advice is not None
    tau = float(advice[1])
    assert choose_tau("tau_mastery", tau, values) == tau
    assert sum(n for value, n in values.items() if value > tau) == int(advice[2])


def test_equal_values_cannot_be_separated_and_it_says_so() -> None:
    with pytest.raises(UserError, match=r"no tau can separate them$"):
        choose_tau("tau_certainty", 0.5, Counter({0.0: 9}))


def test_the_middle_is_the_cut_nearest_to_halves_whatever_the_ties() -> None:
    for values, tau in (
        (Counter({0.0: 10, 0.859: 39, 1.0: 51}), 0.859),
        (Counter({0.0: 90, 0.5: 5, 1.0: 5}), 0.0),
        (Counter({0.2: 49, 0.4: 2, 0.6: 49}), 0.2),
    ):
        assert choose_tau("tau_mastery", "middle", values) == tau
    with pytest.raises(UserError, match="no tau can separate them"):
        choose_tau("tau_mastery", "middle", Counter({1.0: 9}))
