"""Reference answers: empty ones, placeholders, several in a cell, labels; contradictions are counted."""

import json

import pytest
from support import scripts

from kbtrain.answers.grading import is_correct
from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta
from kbtrain.questions.base import LeftOutAnswers, Loaded, Reading
from kbtrain.questions.catalogue import load
from kbtrain.questions.checks import FirstSeen
from kbtrain.questions.gold import GoldCounts, is_doubtful, without_placeholders
from kbtrain.records import Question

EMPTY = ["", " ", "\u200b", "\ufeff", "\u2060", "\u00ad", ",", "...", "-", "\u2014", "\u0313", "\u00b4", "\ufe0f",
         "\u3164", "\u2066\u2069", "``", "?", "\u034f"]  # fmt: skip
PLACEHOLDERS = ["No Answer Present.", "<unk>", "N/A", "n/a", "#N/A", "no_answer", "CANNOTANSWER", "Unanswerable",
                " no  answer present ", "[UNK]", "NoAns", "invalid question",
                "I don\u2019t know.", "Keine Antwort"]  # fmt: skip


def loaded(folder, *rows, **reading):
    path = folder / "mine.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(load("jsonl", path, Reading(**reading)))


def collect(folder, *rows, **keys):
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = [word for key, value in keys.items() for word in (f"--{key.replace('_', '-')}", value)]
    run, path = folder / "run", folder / "mine.jsonl"
    return scripts.here("data_gen/collect.py", "--run", run, "--dataset", "jsonl", "--path", path, *given)


def test_an_empty_alias_is_left_out_and_makes_no_answer_right(tmp_path):
    rows = [{"question": f"Who wrote {i}?", "answers": ["Ann", text]} for i, text in enumerate(EMPTY)]
    found = loaded(tmp_path, *rows)
    assert [one.question.answers for one in found] == [("Ann",)] * len(EMPTY)
    assert {one.left_out.empty for one in found} == {1} and not any(one.lost_answers for one in found)
    assert not is_correct(found[6].question, "Bob, they say.")


@pytest.mark.parametrize("text", PLACEHOLDERS)
def test_a_placeholder_is_no_gold_answer(tmp_path, text):
    rows = {"question": "a?", "answers": [text]}, {"question": "b?", "answers": [text, "x"]}
    alone, beside = loaded(tmp_path, *rows)
    assert alone.lost_answers and alone.question.answers == () and alone.question.gold == "none"
    assert beside.question.answers == ("x",) and beside.left_out.placeholders == 1


@pytest.mark.parametrize("text", ["None", "NA", "Na", "Nan", "Unknown", "nothing", "0", "no", "null"])
def test_what_may_be_right_stays(tmp_path, text):
    (found,) = loaded(tmp_path, {"question": "How many moons has Venus?", "answers": [text]})
    assert found.question.answers == (text,)
    assert is_doubtful(text) == (text not in {"0", "no"})
    (found,) = loaded(tmp_path, {"question": "How many?", "answers": [text]}, placeholders=(text.upper(),))
    assert found.lost_answers


def test_an_empty_list_or_null_is_an_unanswerable_question_for_every_reader(tmp_path):
    rows = [{"question": "a?", "answers": []}, {"question": "b?", "answers": None}, {"question": "c?", "answers": "x"}]
    found = loaded(tmp_path, *rows)
    assert [one.question.gold for one in found] == ["none", "none", "given"]
    assert not any(one.lost_answers for one in found)
    path = tmp_path / "nq.jsonl"
    path.write_text('{"question": "a?", "answer": []}\n{"question": "b?", "answer": ["\\u200b"]}\n')
    assert [(one.question.gold, one.lost_answers) for one in load("nq_open", path)] == [("none", False), ("none", True)]
    table = tmp_path / "mine.csv"
    table.write_text("question,answer\na?,[]\nb?,\nc?,Ann\n")
    told = [(one.question.gold, one.lost_answers) for one in load("csv", table)]
    assert told == [("none", False), ("none", True), ("given", False)]
    mapped = [{"ask": "a?", "golds": []}, {"ask": "b?", "golds": [None, "x"]}]
    path.write_text("".join(json.dumps(row) + "\n" for row in mapped))
    done = scripts.here("data_gen/collect.py", "--run", tmp_path / "run", "--dataset", "jsonl", "--path", path,
                       "--columns", "{text: ask, answers: golds}", "--impossible", "drop")  # fmt: skip
    assert done.returncode == 0 and "skipped: 1 impossible" in done.stdout
    assert "dropped from the reference answers: 1 empty, 0 placeholders" in done.stdout


def test_collect_drops_and_counts_them(tmp_path):
    rows = [{"question": "a?", "answers": ["No Answer Present."]}, {"question": "b?", "answers": [""]},
            {"question": "c?", "answers": ["x", ","]}]  # fmt: skip
    done = collect(tmp_path, *rows)
    assert done.returncode == 0 and "skipped: 2 whose answers are all empty or placeholders" in done.stdout
    assert "dropped from the reference answers: 1 empty, 0 placeholders" in done.stdout
    assert [one.answers for one in jsonl.read(Question, tmp_path / "run" / "questions.jsonl")] == [("x",)]
    meta = read_meta(tmp_path / "run" / "questions.jsonl")
    assert (meta["left_out"], meta["empty_answers"]) == ({"lost": 2}, 1)
    done = collect(tmp_path, *rows[:2])
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1


def test_contradictions_repeats_and_doubtful_answers_are_counted(tmp_path):
    rows = [{"question": "Who wrote it?", "answers": ["Ann"]}, {"question": "who wrote it", "answers": ["Bob"]},
            {"question": "Who wrote it?", "answers": ["ann."]}, {"question": "b?", "answers": ["None"]},
            {"question": "Is 3 < 4?", "answers": ["yes"]}, {"question": "Is 3 > 4?", "answers": ["no"]}]  # fmt: skip
    done = collect(tmp_path, *rows)
    assert done.returncode == 0
    assert ("warning: 2 questions repeat the text of another, 1 of them with other reference answers (as 'mine-2' and "
            "'mine-1')") in done.stdout  # fmt: skip
    assert "1 reference answers may be placeholders: 'None' (1)" in done.stdout
    meta = read_meta(tmp_path / "run" / "questions.jsonl")
    assert (meta["duplicates"], meta["conflicting"], meta["doubtful_answers"]) == (2, 1, 1)
    assert "skipped: 1 whose text an earlier question has with other reference answers" in done.stdout
    done = collect(tmp_path, *rows, placeholders="[none]")
    assert "skipped: 1 whose answers" in done.stdout and "may stand for" not in done.stdout


def of_cells(*answers):
    return Loaded(Question("q", "Which city?", answers, "train", "table"), "table.csv", 1)


@pytest.mark.parametrize(
    ("cell", "answers"), [ ("Paris|Lutetia", ("Paris", "Lutetia")), ("Paris; Lutetia", ("Paris", "Lutetia")),
    ("Paris / Lutetia", ("Paris", "Lutetia")), ("Paris OR Lutetia", ("Paris", "Lutetia")),
    ("Paris\nLutetia", ("Paris", "Lutetia")), ("{'Paris', 'Lutetia'}", ("Paris", "Lutetia")),
    ("Beijing (formerly Peking)", ("Beijing", "Peking")), ("AC/DC", ("AC/DC",)), ("Truth or Dare", ("Truth or Dare",)),
    ("Steins;Gate", ("Steins;Gate",)), ("Simon &amp; Garfunkel", ("Simon & Garfunkel",)), ],
)  # fmt: skip
def test_a_cell_of_several_answers_is_cut_where_no_name_has_the_sign(cell, answers):
    assert without_placeholders(of_cells(cell)).question.answers == answers


@pytest.mark.parametrize(
    ("golds", "line"),
    [
        ([str(i % 2) for i in range(30)], "warning: all reference answers are 0 or 1"),
        (["Paris"] * 20 + [f"City {i}" for i in range(10)], "warning: 20 of 30 questions have the reference answer"),
        (["ABCD"[i % 4] for i in range(30)], "warning: all reference answers are A or B or C or D"),
        ([f"City {i}##Town {i}" for i in range(30)], "warning: 30 of 30 reference answers have '##' in them"),
        ([f"City {i}{';Town' * (i < 9)}" for i in range(30)], "warning: 9 reference answers may be several ('City 0"),
        ([f"${i}" for i in range(30)], ""),
        ([f"City {i}" for i in range(30)], ""),
    ],
)
def test_a_column_that_looks_like_another_one_is_reported(golds, line):
    counts, texts = GoldCounts(), FirstSeen()
    for i, gold in enumerate(golds):
        counts.add(Question(f"q{i}", f"Which is city {i}?", (gold,), "train", "t"), LeftOutAnswers(0, 0), texts)
    assert [text[: len(line)] for text in counts.lines()] == ([line] if line else [])
