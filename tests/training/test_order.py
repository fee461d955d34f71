from hypothesis import given
from hypothesis import strategies as st

from kbtrain.training.base_trainer import epoch_order


@given(st.integers(1, 60), st.integers(1, 8), st.integers(0, 3))
def test_every_row_comes_once_and_a_step_holds_neighbours_in_length(n, group, epoch):
    lengths = [(7 * i) % n for i in range(n)]  # all different if 7 does not divide n
    order = epoch_order(lengths, group, 0, epoch)
    assert sorted(order) == list(range(n))
    rank = {i: r for r, i in enumerate(sorted(range(n), key=lambda i: lengths[i]))}
    if n % 7:
        for start in range(0, n, group):
            step = [rank[i] for i in order[start : start + group]]
            assert max(step) - min(step) < 2 * group  # where the rest was taken out there is a gap


def test_the_order_is_a_function_of_seed_and_epoch_and_differs_between_them():
    lengths = [i % 7 for i in range(40)]
    assert epoch_order(lengths, 4, 1, 2) == epoch_order(lengths, 4, 1, 2)
    assert len({tuple(epoch_order(lengths, 4, seed, epoch)) for seed in range(2) for epoch in range(3)}) == 6
