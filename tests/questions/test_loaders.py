"""Loading questions: what is sound comes through, what is not is one line with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbtrain.errors import UserError
from kbtrain.questions.load import load_questions


def loaded(tmp_path: Path, text: str) -> list:
    path = tmp_path / "mine.jsonl"
    path.write_text(text, encoding="utf-8")
    return list(load_questions("jsonl", path))


def test_a_question_and_its_answers_are_enough(tmp_path: Path) -> None:
    first, second, third = loaded(
        tmp_path,
        '{"question": "Capital of Peru?", "answers": ["Lima"]}\n\n'
        '{"id": "x", "text": "Capital of Chile?", "answer": "Santiago", "split": "train", "grading": "exact"}\n'
        '{"question": "Which?", "options": ["a", "b"], "answers": ["B"]}\n',
    )
    assert (first.id, first.text, first.answers) == ("mine-1", "Capital of Peru?", ("Lima",))
    assert (first.split, first.dataset, first.form, first.grading) == ("test", "mine", "open", "contains")
    assert (second.id, second.answers, second.split, second.grading) == ("x", ("Santiago",), "train", "exact")
    assert (third.form, third.grading, third.options, third.answers) == ("choice", "option", ("a", "b"), ("B",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "a?", "answers": ["b"]}\n{"question": ', "mine.jsonl:2: broken JSON"),
        ('{"question": "a?"}', 'answers: THEIR_ANSWERS}", or set --without-gold true'),
        (
            '{"question": "a?", "gold": "b"}',
            'there is question, gold; map yours: --columns "{text: question, answers: gold}"',
        ),
        (
            '{"question": "a?", "answers": ["b"]}\n{"question": "\\u200b", "answers": ["b"]}',
            "mine.jsonl:2: field 'text'",
        ),
        ('{"question": "...", "answers": ["b"]}', "mine.jsonl:1: field 'text': empty"),
        ('{"question": " ", "answers": ["b"]}', "mine.jsonl:1: field 'text': empty"),
        ('{"question": "a?", "answers": "b", "id": "q"}\n' * 2, "mine.jsonl:2: field 'id': duplicate 'q'"),
        ('{"question": "a?", "answers": "b", "popularty": 1}', "did you mean 'popularity'?"),
        (
            '{"question": "a?", "answer": "b", "topic": 1}',
            "mine.jsonl:1: field 'topic': not a field of a question; map the columns to read, the others are skipped: "
            '--columns "{text: question, answers: answer}"',
        ),
        ('{"question": "a?", "answers": ["C"], "options": ["x", "y"]}', "'C' is not an option's letter"),
        ('{"question": "a?", "answers": {"a": 1}}', "mine.jsonl:1: field 'answers'"),
        ("[1]", "mine.jsonl:1: field '[0]': expected a JSON object, found int"),
    ],
)
def test_bad_input_is_one_line_with_file_line_and_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        loaded(tmp_path, text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_records_are_streamed(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"question": "a?", "answers": "b"}\nbroken\n', encoding="utf-8")
    stream = load_questions("jsonl", path)
    assert next(stream).text == "a?"
    with pytest.raises(UserError, match=":2: broken JSON"):
        next(stream)
