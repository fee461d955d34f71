"""Questions with answers made elsewhere: columns, splits, scores; every mistake with its place."""

import json
from typing import Any

import pytest

from kbtrain.errors import UserError
from kbtrain.questions.answered import AnswerColumns, read_answered
from kbtrain.questions.base import Columns


def row(i, **fields):
    base = {"qid": f"q{i}", "ask": f"Who wrote book {i}?", "gold": [f"Ann {i}"], "part": "train(a)", "plain": "Bob",
            "found": f"ann {i}.", "plain_ok": 0, "found_ok": 1}  # fmt: skip
    return {**base, **fields}


def read(folder, rows, **settings):
    path = folder / "answers.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    names = Columns({"id": "qid", "text": "ask", "answers": "gold", "split": "part"})
    given: dict[str, Any] = {
        "answers": {"llm": "plain", "rag": "found"},
        "stated": {"llm": "plain_ok", "rag": "found_ok"},
        "splits": {"train(a)": "train", "held out": "test"},
    }
    return list(read_answered(path, AnswerColumns(names, **{**given, **settings})))


def texts(answered):
    return {condition: answer.text for condition, answer in answered.answers.items()}


def test_a_row_is_a_question_with_its_greedy_answers(tmp_path):
    lacking = {key: value for key, value in row(2).items() if key != "found"}
    found, *others = read(tmp_path, [row(1), lacking, row(3, plain=""), *map(row, range(4, 7))])
    assert [texts(made) for made in others[:2]] == [{"llm": "Bob"}, {"llm": "", "rag": "ann 3."}]
    assert (found.question.id, found.question.text, found.question.answers) == ("q1", "Who wrote book 1?", ("Ann 1",))
    assert (found.question.split, found.question.grading) == ("train", "contains")
    assert texts(found) == {"llm": "Bob", "rag": "ann 1."} and found.stated == {"llm": False, "rag": True}
    llm, rag = found.sample_sets()
    assert (llm.condition, llm.samples, llm.greedy.text) == ("llm", (), "Bob")
    assert (rag.condition, rag.greedy.text, rag.greedy.index) == ("rag", "ann 1.", -1)


def test_a_table_has_its_verdicts_as_words_or_not_at_all(tmp_path):
    path = tmp_path / "logs.csv"
    path.write_text("question,gold,plain,found,plain_ok,found_ok\nWho?,Ann,Bob,,False,\nWhen?,now,now,now,1,TRUE\n")
    arms, verdicts = {"llm": "plain", "rag": "found"}, {"llm": "plain_ok", "rag": "found_ok"}
    columns = AnswerColumns(Columns({"answers": "gold"}), arms, verdicts)
    found = list(read_answered(path, columns))
    assert [one.question.id for one in found] == ["logs-1", "logs-2"]
    assert [texts(one) for one in found] == [{"llm": "Bob"}, {"llm": "now", "rag": "now"}]
    assert [one.stated for one in found] == [{"llm": False, "rag": None}, {"llm": True, "rag": True}]
    path.write_text("question,gold,plain,found,sure\nWho?,Ann,Bob,Ann, \nWhen?,now,now,now,2\n")
    scored = AnswerColumns(Columns({"answers": "gold"}), arms, scores={"theirs": "sure"})
    assert [one.scores for one in read_answered(path, scored)] == [{}, {"theirs": 2.0}]
    lacking = {key: value for key, value in row(2).items() if key != "plain_ok"}
    found = read(tmp_path, [row(1, plain_ok=None), lacking, row(3)])
    assert [one.stated["llm"] for one in found] == [None, None, False] and found[0].stated["rag"] is True


def test_dev_is_cut_from_train_by_the_id_alone_and_never_from_test(tmp_path):
    rows = [row(i, part="held out" if i % 3 == 0 else "train(a)") for i in range(600)]
    found = {made.question.id: made.question.split for made in read(tmp_path, rows, dev_share=0.25)}
    assert all((found[f"q{i}"] == "test") == (i % 3 == 0) for i in range(600))
    dev = {i for i, split in found.items() if split == "dev"}
    assert 70 <= len(dev) <= 130  # of 400: 100 expected
    fewer = read(tmp_path, rows[::-1][:300], dev_share=0.25)
    assert all((made.question.id in dev) == (made.question.split == "dev") for made in fewer)


def test_scores_stand_where_the_row_has_them_and_turn_round_by_a_minus(tmp_path):
    rows = [row(1), row(2, sure={"energy": 3.5}), row(3, sure=None), row(4, sure={"energy": -1, "flat.x": 2})]
    found = read(tmp_path, rows, scores={"energy": "-sure.energy"})
    assert [made.scores for made in found] == [{}, {"energy": -3.5}, {}, {"energy": 1.0}]
    with pytest.raises(UserError, match=r":2: field 'sure\.energy': missing"):
        read(tmp_path, [row(1), row(2, sure="high")], scores={"energy": "-sure.energy"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"part": "train(b)"}, r"answers\.jsonl:2: field 'part': no split for 'train\(b\)' in splits; did you mean"),
        ({"plain": ["Bob"]}, r":2: field 'plain': expected an answer \(text\), found list \['Bob'\]"),
        ({"found_ok": "may"}, r":2: field 'found_ok': expected true, false, 1 or 0, found str 'may'"),
        ({"found_ok": [1]}, r":2: field 'found_ok': expected true, false, 1 or 0, found list \[1\]"),
        ({"qid": "q1"}, r":2: field 'id': duplicate 'q1', first in line 1"),
        ({"sure": "high"}, r":2: field 'sure': expected a number, found str 'high'"),
    ],
)
def test_a_broken_row_is_one_line_with_its_place(tmp_path, change, message):
    with pytest.raises(UserError, match=message) as caught:
        read(tmp_path, [row(1, sure=1.0), row(2, **change)], scores={"sure": "sure"})
    assert "\n" not in str(caught.value)


def test_a_column_that_no_row_has_is_an_error_not_silence(tmp_path):
    with pytest.raises(UserError, match=r"score 'energy': no row has a value under 'sure\.enrgy'"):
        read(tmp_path, [row(1, sure={"energy": 3.5})], scores={"energy": "-sure.enrgy"})
    with pytest.raises(UserError, match=r"answer 'llm': no row has a value under 'plan'; there is qid, ask, gold"):
        read(tmp_path, [row(1)], answers={"llm": "plan", "rag": "found"})
    with pytest.raises(UserError, match=r"answer 'rag': no row has a value under 'found'"):
        read(tmp_path, [row(1, found=""), row(2, found=None)])
    with pytest.raises(UserError, match=r"stated 'llm': no row has a value under 'thumb'"):
        read(tmp_path, [row(1)], stated={"llm": "thumb"})
    with pytest.raises(UserError, match="no rows in it"):
        read(tmp_path, [])
