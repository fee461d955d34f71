"""User errors: one line whatever a file put into a key, an id or a name."""

import pickle

import pytest

from kbtrain.errors import UserError, at

BREAKS = ["\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("line_end", BREAKS)
def test_a_user_error_is_one_line(line_end):
    error = UserError(f"{at('s.jsonl', 3, f'questi{line_end}')}: unknown field")
    assert len(str(error).splitlines()) == 1
    assert str(error) == error.args[0] == str(UserError(str(error))) == str(pickle.loads(pickle.dumps(error)))
    assert str(error) == f"s.jsonl:3: field 'questi{line_end.encode('unicode_escape').decode()}': unknown field"


def test_control_characters_show_and_text_stays():
    assert str(UserError("\x1b[31m\t\0\udcff\u202e")) == r"\x1b[31m\t\x00\udcff\u202e"
    assert str(UserError(r"Zürich 苏黎世 😀 'a' \n")) == r"Zürich 苏黎世 😀 'a' \n"


def test_a_very_long_message_keeps_what_is_wrong_and_what_to_do():
    error = UserError(f"questions.jsonl:3: unknown question '{'x' * 10_000}'; run data_gen/collect.py again")
    assert len(str(error)) <= 1200 and str(error) == str(UserError(str(error)))
    assert str(error).startswith("questions.jsonl:3: unknown") and str(error).endswith("collect.py again")
