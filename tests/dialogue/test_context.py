"""Contexts as text, cut at a turn."""

from kbtrain.prompts.ragate import context_text, first_kept
from kbtrain.records import Utterance


def test_context_reads_as_in_the_paper():
    assert context_text([Utterance("USER", "Hi."), Utterance("SYSTEM", "Hello?")]) == "USER: Hi. SYSTEM: Hello?"


def test_the_oldest_turns_go_first_and_never_half_a_turn():
    assert first_kept([5, 3, 4], 12) == 0
    assert first_kept([5, 3, 4], 11) == 1
    assert first_kept([5, 3, 4], 6) == 2
    assert first_kept([5, 3, 4], 3) == 3  # not even the newest fits
    assert first_kept([2, 9, 1], 4) == 2  # a short older turn does not jump over a long one
