"""Another system's decisions become rows of our tables; every mistake is told with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.scripts import here

from kbtrain.errors import UserError
from kbtrain.evaluation.decisions_file import read_decisions
from kbtrain.jsonl import write
from kbtrain.records import GateScore, Question


def stored(folder: Path, *rows: Any) -> Path:
    path = folder / "theirs.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_scores_words_and_choices_are_numbers(tmp_path: Path) -> None:
    path = stored(tmp_path, {"id": "a", "s": 0.5}, {"id": "b", "s": "Yes"}, {"id": "c", "s": False}, {"id": "d"})
    found = read_decisions(path, "id", "s", {})
    assert [(one.id, one.score) for one in found.rows] == [("a", 0.5), ("b", 1.0), ("c", 0.0)] and found.without == 1
    path = stored(tmp_path, {"qid": 7, "t5": {"option": "C"}}, {"qid": 8, "t5": {"option": "A"}})
    found = read_decisions(path, "qid", "t5.option", {"A": 0, "B": 1, "C": 1})
    assert [(one.id, one.score) for one in found.rows] == [("7", 1.0), ("8", 0.0)]


def test_a_table_of_scores_is_read_and_its_empty_cells_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "theirs.csv"
    path.write_text("id,score\na,0.5\nb,\nc,yes\n")
    found = read_decisions(path, "id", "score", {})
    assert [(one.id, one.score) for one in found.rows] == [("a", 0.5), ("c", 1.0)] and found.without == 1
    path.write_text("id,score\na,much\n")
    with pytest.raises(UserError, match=r"theirs\.csv:2: field 'score': expected a number, found str 'much'"):
        read_decisions(path, "id", "score", {})


@pytest.mark.parametrize(
    ("row", "choices", "message"),
    [
        ({"s": 1}, {}, "id': missing"),
        ({"id": "a", "s": 1}, {}, "id': duplicate 'a', first in line 1"),
        ({"id": "b", "s": "perhaps"}, {}, "s': expected a number, found str 'perhaps'"),
        ({"id": "b", "s": [1]}, {}, "s': expected a number"),
        ({"id": "b", "s": "D"}, {"1": 0, "A": 0}, "s': no number for 'D' in choices"),
    ],
)
def test_a_mistake_is_named_by_file_line_and_field(
    tmp_path: Path, row: dict[str, Any], choices: dict[str, float], message: str
) -> None:
    with pytest.raises(UserError) as error:
        read_decisions(stored(tmp_path, {"id": "a", "s": 1}, row), "id", "s", choices)
    assert "theirs.jsonl:2" in str(error.value) and message in str(error.value)


@pytest.mark.parametrize("name", ["oracle", "random", "llm_only", "a" * 101, "Theirs", "a b", "é", "", "a\nb", "../x"])
def test_a_name_that_results_cannot_hold_is_one_line_before_anything_is_read(name: str, tmp_path: Path) -> None:
    done = here("eval/import_decisions.py", "--run", tmp_path, "--path", tmp_path / "none.jsonl", f"--gate={name}")
    assert done.returncode == 2 and done.stderr.startswith("error: key 'gate': ") and done.stderr.count("\n") == 1
    assert len(done.stderr) < 400


@pytest.mark.parametrize("name", ["oracle", "random"])
def test_a_file_of_imported_scores_with_a_name_of_ours_is_one_line(name: str, tmp_path: Path) -> None:
    write(tmp_path / "questions.jsonl", [Question("a", "Who?", ("x",), "test", "d")])
    write(tmp_path / "imported_scores.jsonl", [GateScore("a", name, 1.0)])
    rows = stored(tmp_path, {"id": "a", "score": 1})
    done = here("eval/import_decisions.py", "--run", tmp_path, "--path", rows, "--gate", "theirs")
    assert done.returncode == 2 and f"imported_scores.jsonl:1: field 'gate': '{name}' is no name" in done.stderr


def test_a_column_that_no_row_has_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no row has 'score'"):
        read_decisions(stored(tmp_path, {"id": "a"}), "id", "score", {})
