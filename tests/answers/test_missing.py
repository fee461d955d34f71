"""Answers that say that they know none, and names and facts that only sound so, English and Chinese."""

import tomllib
from pathlib import Path

from kbtrain.answers.grading import is_empty
from kbtrain.answers.missing import is_missing, states_nothing

TEXTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("missing.toml").read_text(encoding="utf-8"))


def test_an_answer_that_says_that_none_is_known_is_missing():
    assert [text for text in TEXTS["no_answer"] + TEXTS["not_given"] if not is_missing(text)] == []


def test_a_name_or_a_fact_that_holds_such_words_is_an_answer():
    assert [text for text in TEXTS["answers"] + TEXTS["given"] if is_missing(text)] == []


def test_a_sentence_of_reasoning_says_nothing_only_if_nothing_stands_beside_it():
    assert [text for text in TEXTS["nothing_to_go_on_with"] if not states_nothing(text)] == []
    something = TEXTS["something_to_go_on_with"] + TEXTS["given"]
    assert [text for text in something if states_nothing(text)] == []


def test_dots_and_dashes_are_empty_and_a_sign_is_an_answer():
    assert all(map(is_empty, ("", " ", "...", "…", "---", '""', "。", "( )", "?")))
    assert not any(map(is_empty, ("+", "*", "!!!", "€", "0", "。安", "#")))
