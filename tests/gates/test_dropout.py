"""Our dropout is dropout: its share, its scale, its gradient, and the generator that seeds decide."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare
from torch import nn

from kbtrain.kernels.lean_training import Dropout


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_a_share_p_is_dropped_wherever_it_stands_and_the_mean_stays(p: float) -> None:
    torch.manual_seed(0)
    n = 400_000
    made = Dropout(p)(torch.ones(n))
    values = made.unique()
    assert values.tolist() == pytest.approx([0.0, 1 / (1 - p)], rel=1e-4)
    dropped = (made == 0).view(-1, 8).sum(0).double().numpy()
    assert chisquare(dropped).pvalue > 1e-4  # each of the numbers that one draw serves
    assert chisquare([dropped.sum(), n - dropped.sum()], [n * p, n * (1 - p)]).pvalue > 1e-4
    pairs = (made == 0).view(-1, 2).all(1).double().sum().item()
    assert chisquare([pairs, n / 2 - pairs], [n / 2 * p**2, n / 2 * (1 - p**2)]).pvalue > 1e-4


def test_the_gradient_passes_where_the_number_did() -> None:
    x = torch.randn(3, 5, 7, requires_grad=True)
    made = Dropout(0.3)(x)
    made.sum().backward()
    kept = made != 0
    assert x.grad is not None and kept.any() and not kept.all()
    torch.testing.assert_close(x.grad, kept / 0.7, rtol=1e-4, atol=0)
    torch.testing.assert_close(made, x * x.grad)


def test_seeds_decide_and_evaluation_leaves_all() -> None:
    x = torch.randn(1001)
    torch.manual_seed(3)
    first = Dropout(0.5)(x)
    assert not torch.equal(Dropout(0.5)(x), first)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.5)(x), first)
    assert torch.equal(Dropout(0.5).eval()(x), x)


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_none_and_all_are_what_torch_makes_of_them(p: float) -> None:
    x = torch.randn(64)
    assert torch.equal(Dropout(p)(x), nn.Dropout(p)(x))


def test_types_and_shapes_stay() -> None:
    for dtype in (torch.bfloat16, torch.float64):
        made = Dropout(0.1)(torch.ones(2, 3, 5, dtype=dtype))
        assert made.shape == (2, 3, 5) and made.dtype is dtype
