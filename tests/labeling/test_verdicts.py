"""Verdicts and labels beside their questions: what is judged, and files that do not fit the questions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.labeling.judges import RuleJudge
from kbtrain.labeling.label import indicators, label
from kbtrain.labeling.verdicts import Aligned, QuestionVerdicts, count_verdicts, distinct_answers, judge_answers
from kbtrain.records import Label, Question, SampleSet

Answered = Callable[..., SampleSet]


def test_greedy_answers_are_judged_too_and_blank_ones_before_no_judge(
    capital: Question, choice: Question, answered: Answered, tmp_path: Path
) -> None:
    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        store.put("main", [answered("Rome", " \n", "rome!", greedy="Paris"), answered("A", "B", question="q2")])
        assert distinct_answers(store, "main", capital) == {"paris": "Paris", "rome": "Rome"}
        made = list(judge_answers(store, "main", [capital, choice], RuleJudge(), 1))
    assert made[1] == QuestionVerdicts("q2", {})  # multiple choice keeps its own rule
    assert count_verdicts(made, [capital, choice]) == {"answers": 2, "right": 1, "abstained": 0, "choice_questions": 1}


def test_questions_of_which_all_is_known_do_not_wait_for_one_another(
    capital: Question, answered: Answered, tmp_path: Path
) -> None:
    read: list[str] = []

    def asked() -> Iterator[Question]:
        for i in range(5):
            read.append(f"q{i}")
            yield dataclasses.replace(capital, id=f"q{i}")

    with SampleStore(tmp_path / "s.db") as store:
        store.begin("main", {})
        store.put("main", [answered("Rome", question=f"q{i}") for i in range(5)])
        made = judge_answers(store, "main", asked(), RuleJudge(), 2, lambda question: {"rome": True, "oslo": None})
        assert next(made).right == {"rome": True, "oslo": None}  # as it was said, of another run's answer, too
        assert read == ["q0", "q1"]
        assert len(list(made)) == 4


def test_a_label_of_another_split_and_one_whose_question_did_not_come_are_one_line(
    capital: Question, answered: Answered, tmp_path: Path
) -> None:
    found, _ = indicators(capital, answered("Paris", "Rome"))
    assert found is not None
    path = tmp_path / "labels.jsonl"
    jsonl.write(path, [label(capital, {"llm": found}, 0.5, 0.5)])
    stream = Aligned(Label, path)
    assert stream.record_of(dataclasses.replace(capital, id="q0")) is None  # a question without a label is passed over
    with pytest.raises(
        UserError, match=r"labels\.jsonl:1: field 'split': question 'q1' is in dev now, its label says train"
    ):
        stream.record_of(dataclasses.replace(capital, split="dev"))
    with pytest.raises(UserError, match=r"question 'q1' is missing, repeated or out of order"):
        stream.finish()
    assert stream.record_of(capital) is not None
    stream.finish()
