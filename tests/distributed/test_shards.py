"""Shards divide a run without rest, and the undivided run's windows stay whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbtrain.errors import UserError
from kbtrain.llm.sample_stage import Shard


@given(st.integers(0, 60), st.integers(1, 9), st.integers(1, 8))
def test_every_window_is_in_exactly_one_shard(total, size, count):
    asks = list(range(total))
    shards = [Shard(i, count) for i in range(1, count + 1)]
    windows = [list(shard.windows(asks, size)) for shard in shards]
    assert sorted(w for part in windows for w in part) == list(Shard().windows(asks, size))
    for shard, part in zip(shards, windows, strict=True):
        assert not part or shard.n_requests(total, size) == sum(map(len, part))


def test_windows_are_dealt_out_in_turn():
    assert list(Shard(2, 3).windows(range(20), 3)) == [[3, 4, 5], [12, 13, 14]]
    assert list(Shard(1, 3).windows(range(20), 3)) == [[0, 1, 2], [9, 10, 11], [18, 19]]


def test_text_and_file_name():
    assert Shard.parse(None) == Shard(1, 1) and Shard.parse(None).is_whole
    assert Shard.parse(" 3/8 ") == Shard(3, 8)
    assert Shard(3, 8).store_name == "samples.shard-3-of-8.db"
    assert Shard().store_name == Shard.parse("1/1").store_name == "samples.db"


@pytest.mark.parametrize("text", ["0/4", "5/4", "2", "a/b", "-1/3", "1/0", ""])
def test_a_wrong_shard_is_one_line(text):
    with pytest.raises(UserError, match=r"expected 1/n to n/n .*--array=1-n"):
        Shard.parse(text)


def test_a_shard_with_nothing_in_it_is_refused():
    assert Shard(3, 3).n_requests(21, 10) == 1
    with pytest.raises(UserError, match="21 question-conditions are 3 windows of 10; use at most 3 shards"):
        Shard(4, 4).n_requests(21, 10)
