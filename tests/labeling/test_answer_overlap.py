"""Exact match and F1, worked by hand."""

import pytest

from kbtrain.answers.grading import exact_match, token_f1


def test_exact_match_is_after_normalisation_over_all_aliases():
    assert exact_match("The Beatles.", ["Fab Four", "beatles"]) == 1.0
    assert exact_match("Beatles band", ["beatles"]) == 0.0
    assert exact_match("", ["beatles"]) == 0.0


def test_f1_worked_by_hand():
    # 2 of 3 words said are wanted, 2 of 4 wanted are said: 2 * 2 / 7
    assert token_f1("chief of staff", ["chief protocol of office"]) == pytest.approx(4 / 7)
    assert token_f1("Rome Rome", ["Rome"]) == pytest.approx(2 / 3)
    assert token_f1("x", ["Rome", "x y"]) == pytest.approx(2 / 3)
    assert token_f1("", ["Rome"]) == 0.0


def test_yes_and_no_are_never_partly_right():
    assert token_f1("no", ["yes"]) == 0.0 and token_f1("yes it is", ["yes"]) == 0.0 and token_f1("Yes.", ["yes"]) == 1.0


def test_chinese_is_compared_by_character():
    assert token_f1("北京市", ["北京"]) == pytest.approx(0.8)
