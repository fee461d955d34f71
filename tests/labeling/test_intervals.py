"""Wilson's and Newcombe's intervals against values worked by hand, a second implementation and published numbers."""

from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest

from kbtrain.metrics.significance import newcombe, wilson


@pytest.mark.parametrize("n", [1, 2, 10, 30, 300])
def test_wilson_equals_scipys_for_every_count(n: int) -> None:
    for k in range(n + 1):
        reference = binomtest(k, n).proportion_ci(0.95, method="wilson")
        assert wilson(k, n) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_wilson_by_hand_for_20_of_30() -> None:
    z = 1.959963984540054
    centre = (20 + z * z / 2) / (30 + z * z)
    half = z / (30 + z * z) * math.sqrt(20 * 10 / 30 + z * z / 4)
    assert wilson(20, 30) == pytest.approx((centre - half, centre + half), abs=1e-12)
    assert wilson(20, 30) == pytest.approx((0.4878, 0.8077), abs=5e-5)


def test_wilson_has_width_at_the_ends_and_stays_inside() -> None:
    assert wilson(0, 30)[0] == 0.0 and wilson(0, 30)[1] == pytest.approx(0.1135, abs=5e-5)
    assert wilson(30, 30)[1] == 1.0 and wilson(30, 30)[0] == pytest.approx(0.8865, abs=5e-5)


@pytest.mark.parametrize(("k", "n"), [(-1, 30), (31, 30), (0, 0)])
def test_wilson_refuses_what_is_no_share(k: int, n: int) -> None:
    with pytest.raises(ValueError, match="is not a share"):
        wilson(k, n)


def test_newcombe_equals_the_published_examples() -> None:
    """Newcombe 1998 (Stat. Med. 17:873), table II, method 10: p1 - p2 with its interval."""
    published = {
        ((56, 70), (48, 80)): (0.0524, 0.3339),
        ((9, 10), (3, 10)): (0.1705, 0.8090),
        ((10, 10), (0, 10)): (0.6075, 1.0),
    }
    for (larger, smaller), expected in published.items():
        assert newcombe(smaller, larger) == pytest.approx(expected, abs=6e-5)


def test_newcombe_is_antisymmetric_and_inside_minus_one_and_one() -> None:
    for k in range(0, 31, 5):
        for m in range(0, 31, 3):
            low, high = newcombe((k, 30), (m, 30))
            back = newcombe((m, 30), (k, 30))
            assert (-back[1], -back[0]) == pytest.approx((low, high), abs=1e-12)
            assert -1 <= low <= (m - k) / 30 <= high <= 1
