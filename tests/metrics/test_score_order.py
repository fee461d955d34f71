"""Scores of several files: which cover the questions, and the area of their order with its interval."""

import numpy as np
import pytest

from kbtrain.errors import UserError
from kbtrain.evaluation.classify import complete_scores, outcomes_of_data_set, outcomes_with_score, score_areas
from kbtrain.evaluation.scores import read_score_files
from kbtrain.io import jsonl
from kbtrain.records import GateScore, Outcome, Question


def outcomes(n=40):
    return [Outcome(f"t{i}", "test", None, i % 2 == 0, i % 4 != 0, None, None, 0, 0) for i in range(n)]


def test_the_oracle_s_order_is_1_and_the_reverse_is_minus_what_it_loses():
    """10 of 40 are mended, 10 are broken, 20 stay: the worst order is the oracle's mirrored."""
    made = outcomes()
    gain = np.array([float(o.rag_correct) - float(o.llm_correct) for o in made])
    found = score_areas(made, {"best": gain, "worst": -gain, "flat": np.zeros(40)}, "best", draws=200)
    assert [round(found[name][0].mean, 9) for name in ("best", "worst", "flat")] == [1.0, -1.0, 0.0]
    assert found["best"][1] is None and found["worst"][1].mean == pytest.approx(2.0)
    assert found["best"][0].low == found["best"][0].high == pytest.approx(1.0)


def test_where_retrieval_changes_nothing_there_is_no_area():
    made = [Outcome(f"t{i}", "test", None, i % 2 == 0, i % 2 == 0, None, None, 0, 0) for i in range(10)]
    assert score_areas(made, {"a": np.arange(10.0)}, "a") == {"a": (None, None)}


def test_a_score_of_some_questions_is_set_apart_and_can_choose_the_questions():
    made = outcomes(4)
    scores = {"all": {f"t{i}": float(i) for i in range(5)}, "some": {"t1": 0.5, "t3": 0.25}}
    arrays, short = complete_scores(made, scores)
    assert arrays["all"].tolist() == [0.0, 1.0, 2.0, 3.0] and short == {"some": 2}
    part = outcomes_with_score(made, scores, "some")
    arrays, short = complete_scores(part, scores)
    assert [o.question_id for o in part] == ["t1", "t3"] and short == {}
    assert arrays["all"].tolist() == [1.0, 3.0] and arrays["some"].tolist() == [0.5, 0.25]
    with pytest.raises(UserError, match="no scores of gate 'sme'; did you mean 'some'"):
        outcomes_with_score(made, scores, "sme")


def test_a_data_set_s_questions_and_a_name_that_none_has():
    questions = [Question(f"t{i}", "q", ("a",), "test", "nq" if i < 3 else "pop") for i in range(4)]
    assert [o.question_id for o in outcomes_of_data_set(outcomes(4), questions, "pop")] == ["t3"]
    with pytest.raises(UserError, match="no question of data set 'popp'; did you mean 'pop'"):
        outcomes_of_data_set(outcomes(4), questions, "popp")


def test_a_gate_in_two_files_is_one_line(tmp_path):
    for name in ("a", "b"):
        jsonl.write(tmp_path / f"{name}.jsonl", [GateScore("t1", "seakr", 1.0)])
    assert read_score_files([tmp_path / "a.jsonl"]) == {"seakr": {"t1": 1.0}}
    with pytest.raises(UserError, match=r"b\.jsonl: gate 'seakr' stands in another score file too"):
        read_score_files([tmp_path / "a.jsonl", tmp_path / "b.jsonl"])
