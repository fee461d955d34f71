"""Rivals that read the answering model: values by hand."""

from __future__ import annotations

import numpy as np
import pytest
from white_box import disagreement, entropy_cut

from kbtrain.errors import UserError


def test_disagreement_of_drafts_is_one_minus_the_mode_s_share() -> None:
    assert disagreement([[1, 2], [1, 3], [1]]) == pytest.approx((0 + 2 / 3) / 2)  # an ended draft is a token of its own
    assert disagreement([[4], [4], [4]]) == 0.0 == disagreement([[], [], []])


def test_the_cut_of_semantic_entropy_parts_its_two_groups() -> None:
    assert entropy_cut(np.array([0.0, 0.1, 0.1, 1.2, 1.3])) == pytest.approx(0.1)
    with pytest.raises(UserError, match="the same semantic entropy"):
        entropy_cut(np.zeros(3))
