"""Gold answers counted in a corpus."""

from __future__ import annotations

from kbm_paper.groups import answer_counts

from kbtrain.answers.grading import contains
from kbtrain.records import Passage, Question


def asked(*answers: str, form: str = "open") -> Question:
    return Question("q", "?", answers, "test", "made-up", form="choice" if form == "choice" else "open")


PASSAGES = [
    Passage("1", "Paris", "Paris is the capital of France."),
    Passage("2", "France", "The Battle of Hastings was in 1066, in England."),
    Passage("3", "Lyon", "Lyon is in France, near paris?"),
]


def test_passages_are_counted_once_whatever_the_alias_and_words_are_whole() -> None:
    questions = [
        asked("Paris"),
        asked("France", "french republic"),
        asked("10"),
        asked("Battle of Hastings"),
        asked("A"),
    ]
    assert answer_counts(questions, PASSAGES) == [2, 3, 0, 1, 0]


def test_the_count_is_that_of_the_grading_rule() -> None:
    for gold in ("Paris", "capital of France", "in", "1066", "Lyon is in France"):
        expected = sum(contains(f"{p.title} . {p.text}", gold) for p in PASSAGES)
        assert answer_counts([asked(gold)], PASSAGES) == [expected], gold


def test_letters_and_sentences_have_no_frequency() -> None:
    assert answer_counts(
        [asked("A", form="choice"), asked("one two three four five six seven eight nine")], PASSAGES
    ) == [
        None,
        None,
    ]


def test_chinese_answers_are_counted_by_characters() -> None:
    assert answer_counts([asked("北京")], [Passage("1", "中国", "中国的首都是北京。")]) == [1]
