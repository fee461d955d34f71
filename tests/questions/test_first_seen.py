"""The index of keys seen so far."""

from __future__ import annotations

from kbtrain.questions.checks import FirstSeen


def test_the_first_place_of_a_key_is_kept() -> None:
    with FirstSeen() as seen:
        assert seen.add("key", "a", 1) is None
        assert seen.add("other", "b", 2) is None
        assert seen.add("key", "c", 3) == ("a", 1)
        assert seen.add("key", "d", 4) == ("a", 1)
        assert seen.find("other") == ("b", 2)
        assert seen.find("") is None


def test_any_text_is_a_key() -> None:
    keys = ["", " ", "苏黎世", "a\x00b", "a\x00c", "\ud800", "x" * 10_000]
    with FirstSeen() as seen:
        assert [seen.add(key, str(i), i) for i, key in enumerate(keys)] == [None] * len(keys)
        assert [seen.find(key) for key in keys] == [(str(i), i) for i in range(len(keys))]
