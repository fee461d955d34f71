"""Published verdicts: what is read, and every mistake with its place; a gate beside its model's confidence."""

import json

import numpy as np
import pytest
from published import closed_book as cb
from published.outcomes import read_closed_book, read_judged
from published.tables import two_sided_p
from support import scripts
from tiny_turns import bert_folder

from kbtrain.errors import UserError
from kbtrain.gates.features import additive
from kbtrain.metrics.significance import Delta, holm


def judged(**fields):
    base = {
        "id": "q1",
        "dataset": "nq",
        "split": "test",
        "question": "Who wrote book 1?",
        "answers": ["Ann"],
        "llms": {
            "big": {"none": 1, "one": 0, "many": 1, "em_none": 0, "em_one": 0, "em_many": 1},
            "small": {"none": 0, "one": 1, "many": 1},
        },
        "seakr": {"kind": "direct", "eigen_score": -2.5},
        "adaptive_rag_t5": {"pA": 0.25, "option": "C"},
    }
    return {**base, **fields}


def song(**fields):
    base = {"id": "s1", "question": "Who sings X?", "answers": ["Ann"], "popularity": {"question_docs": 7,
            "answer_docs": 9}, "llms": {"a-2.5": {"correct": 1, "confidence": 0.5},
            "b": {"correct": 0, "confidence": None}}}  # fmt: skip
    return {**base, **fields}


def rows_file(folder, *rows):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_a_row_holds_each_models_verdicts_by_grading_and_others_scores(tmp_path):
    (found,) = read_judged(rows_file(tmp_path, judged()))
    assert (found.question.dataset, found.question.split, found.question.answers) == ("nq", "test", ("Ann",))
    assert found.right["big", "published"] == {"none": True, "one": False, "many": True}
    assert found.right["big", "em"] == {"none": False, "one": False, "many": True}
    assert set(found.right) == {("big", "published"), ("big", "em"), ("small", "published")}
    assert found.scores == {"seakr.eigen_score": -2.5, "adaptive_rag_t5.pA": 0.25}


def test_of_closed_book_rows_only_what_is_known_before_answering_may_be_read(tmp_path):
    (found,) = read_closed_book(rows_file(tmp_path, song()))
    assert found.right == {"a-2.5": True, "b": False} and found.confidence == {"a-2.5": 0.5}
    assert found.known_before == {"popularity.question_docs": 7.0}
    with pytest.raises(
        UserError, match=r"rows\.jsonl:1: field 'popularity\.question_docs': expected a count, found -7"
    ):
        list(read_closed_book(rows_file(tmp_path, song(popularity={"question_docs": -7}))))


def known_song(i):
    """A song that both models know where it is popular; the first is sure of what it knows."""
    known = i % 3 == 0
    doubt = {"part_of_name": 1} if i % 10 == 1 else {}
    return {
        "id": f"s{i}", "question": f"Who is the performer of the song number {i}", "answers": ["Ann"],
        "popularity": {"question_docs": 90 + i if known else i % 7, "answer_docs": 5},
        "llms": {"sure": {"correct": int(known), "confidence": 0.9 if known else 0.2, **doubt},
                 "blind": {"correct": int(known), "confidence": None if i == 0 else 0.5}},
    }  # fmt: skip


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "songs.jsonl"
    path.write_text("".join(json.dumps(known_song(i)) + "\n" for i in range(60)))
    (tmp_path / "passages.jsonl").write_text(
        "".join(json.dumps({"id": f"p{i}", "title": "T", "text": f"song number {i}"}) + "\n" for i in range(9))
    )
    return path


def test_verdicts_that_are_not_clear_are_told_and_a_missing_confidence_is_the_least(source):
    rows = list(read_closed_book(source))
    assert [i for i, row in enumerate(rows) if row.doubtful] == [1, 11, 21, 31, 41, 51]
    steps: list[int] = []
    found = cb.scores_of(rows, "blind", {"popularity": cb.of_popularity(rows)}, lambda: steps.append(1))
    assert steps == [1] and found[cb.MEAN].tolist() == [pytest.approx(40 / 60)] * 60
    assert found[cb.CONFIDENCE][0] == 0 and found[cb.CONFIDENCE].max() == 0 and found[cb.CONFIDENCE][1] == -0.5


def test_differences_are_paired_and_clear_answers_are_measured_apart():
    wrong, clear = np.array([True, True, False, False]), np.array([True, False, True, True])
    scores = {"good": np.array([3.0, 0.0, 1.0, 2.0]), "none": np.zeros(4)}
    found = cb.ranked(wrong, clear, ["a", "b", "c", "d"], scores)
    assert (found["good"].all.mean, found["good"].clear.mean) == (0.5, 1.0)
    assert found["good"].minus["none"].mean == 0.0 and found["none"].all.low == found["none"].all.high == 0.5


def test_the_script_says_how_well_each_models_wrong_answers_are_foreseen(source, capsys, monkeypatch):
    monkeypatch.setattr(cb, "DRAWS", 40)
    monkeypatch.setattr(additive, "STRENGTHS", (0.1,))  # a penalty is not searched for: it takes most of the time
    folder = source.parent
    module = scripts.load("studies/closed_book.py")
    settings = {"path": source, "corpus": folder / "passages.jsonl", "reader": None, "out": folder / "out",
                "encoder": str(bert_folder(folder / "bert"))}  # fmt: skip
    module.main(module.ClosedBookConfig.model_validate(settings))
    found = json.loads((folder / "out" / "closed_book.json").read_text())
    gates = found["models"]["sure"]["gates"]
    assert gates["popularity"]["all"]["mean"] > 0.95 and gates["own confidence"]["all"]["mean"] == 1.0
    assert gates["model_mean"]["all"]["mean"] == 0.5 and found["models"]["sure"]["doubtful"] == 6
    assert found["pooled"]["gates"]["stack"]["minus"]["model_mean"]["low"] > 0
    assert "| sure | 0.667 |" in capsys.readouterr().out
    assert "| all models | 6 |" in (folder / "out" / "closed_book.md").read_text()

    rows = [{**known_song(i), "llms": {"sure": {"correct": int(i > 55), "confidence": 0.5}}} for i in range(60)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(UserError, match="4 of 60 answers are right; a gate needs 10"):
        module.main(module.ClosedBookConfig.model_validate(settings))


def test_p_of_a_difference_is_that_of_its_interval():
    assert two_sided_p(Delta(1.959964, 0.0, 3.919928)) == pytest.approx(0.05)
    assert two_sided_p(Delta(0.0, -1.0, 1.0)) == 1.0
    assert two_sided_p(Delta(0.0, 0.0, 0.0)) == 1.0 and two_sided_p(Delta(0.1, 0.1, 0.1)) == 0.0
    assert holm([two_sided_p(Delta(1.959964, 0.0, 3.919928)), 1.0]) == pytest.approx([0.1, 1.0])
