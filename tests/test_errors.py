"""User errors: one line whatever a file put into a key, an id or a name."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from native_files import NATIVE

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.io import jsonl
from kbtrain.questions.load import load
from kbtrain.records import GateScore

BREAKS = ["\n", "\r\n", "\r", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029"]


@pytest.mark.parametrize("line_end", BREAKS)
def test_a_user_error_is_one_line(line_end: str) -> None:
    error = UserError(f"{at('s.jsonl', 3, f'questi{line_end}')}: unknown field")
    assert len(str(error).splitlines()) == 1
    assert str(error) == error.args[0] == str(UserError(str(error))) == str(pickle.loads(pickle.dumps(error)))
    assert str(error) == f"s.jsonl:3: field 'questi{line_end.encode('unicode_escape').decode()}': unknown field"


def test_control_characters_show_and_text_stays() -> None:
    assert str(UserError("\x1b[31m\t\0\udcff\u202e")) == r"\x1b[31m\t\x00\udcff\u202e"
    assert str(UserError(r"Zürich 苏黎世 😀 'a' \n")) == r"Zürich 苏黎世 😀 'a' \n"


@pytest.mark.parametrize("line_end", [r"\n", r"\u2028", r"\r\n"])
def test_a_key_with_a_line_end_in_a_record(tmp_path: Path, line_end: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(f'{{"questi{line_end}": "q", "gate": "g", "score": 1}}\n')
    with pytest.raises(UserError) as raised:
        list(jsonl.read(GateScore, path))
    assert str(raised.value) == f"{path}:1: field 'questi{line_end}': unknown field; did you mean 'question_id'?"


def test_a_column_with_a_line_end_in_a_native_file(tmp_path: Path) -> None:
    native = NATIVE["popqa"]
    path = tmp_path / native.name
    path.write_text(native.render(native.records).replace("question", '"questi\non"', 1))
    with pytest.raises(UserError) as raised:
        list(load(native.dataset, path, native.reading))
    told = r"no column 'question' in the header; did you mean 'questi\non'?"
    assert str(raised.value).endswith(f"{native.name}:1: {told}")


def test_a_file_name_and_a_valid_name_with_a_line_end(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"/a\\nb\.jsonl: no such file$"):
        list(jsonl.read(GateScore, tmp_path / "a\nb.jsonl"))
    assert str(UserError(did_you_mean("question", ["questi\non"]))) == r"did you mean 'questi\non'?"


def test_a_very_long_message_keeps_what_is_wrong_and_what_to_do() -> None:
    error = UserError(f"questions.jsonl:3: unknown question '{'x' * 10_000}'; run data_gen/collect.py again")
    assert len(str(error)) <= 1200 and str(error) == str(UserError(str(error)))
    assert str(error).startswith("questions.jsonl:3: unknown") and str(error).endswith("collect.py again")
