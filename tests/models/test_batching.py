"""Batches of like length: within their budget, in their own order, and groups kept apart."""

import pytest
import torch

from kbtrain.models.batching import like_length, padded


def test_batches_hold_like_lengths_longest_first_within_the_budget():
    lengths = [3, 9, 1, 8, 2, 9]
    batches = like_length(lengths, 18)
    assert batches == [[1, 5], [3, 0], [4, 2]]
    assert [lengths[i] for batch in batches for i in batch] == sorted(lengths, reverse=True)
    assert all(len(batch) == 1 or len(batch) * lengths[batch[0]] <= 18 for batch in batches)
    assert like_length([50], 18) == [[0]] and like_length([], 18) == []


@pytest.mark.parametrize(
    ("side", "ids", "mask"),
    [("right", [[1, 2], [3, 0]], [[1, 1], [1, 0]]), ("left", [[1, 2], [0, 3]], [[1, 1], [0, 1]])],
)
def test_padding_fills_one_side_and_the_mask_says_what_is_real(side, ids, mask):
    found, real = padded([(1, 2), (3,)], 0, side)
    assert found.tolist() == ids and real.tolist() == mask
    assert found.dtype == real.dtype == torch.int64
    assert padded([(0.5,), (0.25, 1.0)], 1.0, side)[0].dtype == torch.float32
