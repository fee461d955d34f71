"""Where the rows of questions with unequal numbers of answers sit: on the rows' own device."""

import pytest
import torch

from kbtrain.llm.sampler.shared_prefix import Layout


def test_rows_go_to_their_questions_places_and_come_back():
    layout = Layout.from_rows([0, 0, 1], 2)
    rows = torch.tensor([[1.0], [2.0], [3.0]])
    assert layout.to_grid(rows).tolist() == [[[1.0], [2.0]], [[3.0], [0.0]]]
    assert torch.equal(layout.to_rows(layout.to_grid(rows)), rows)


@pytest.mark.parametrize("questions", [[0, 0, 1], [1, 0, 0]])
def test_places_are_on_the_device_of_the_rows(questions):
    """A GPU refuses an index on the CPU. ``meta`` is the second device that every machine has."""
    layout = Layout.from_rows(questions, 2, "meta")
    assert layout.slots is not None and layout.slots.device.type == "meta"
    grid = layout.to_grid(torch.zeros(3, 4, device="meta"))
    assert layout.to_rows(grid).shape == (3, 4)
