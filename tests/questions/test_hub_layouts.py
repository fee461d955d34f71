"""Data sets as today's hubs have them: the release's layout and the hub's give the same; saved folders, splits."""

import json
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest

from kbtrain.errors import UserError
from kbtrain.questions.base import Columns, Reading
from kbtrain.questions.catalogue import load
from kbtrain.questions.rows import SourceRecord

Rows = list[dict[str, Any]]
QUESTION = "Were Ann Lee and Bo Day of one nationality?"
SENTENCES = {"Ann Lee": ["Ann is Dutch.", " She paints."], "Bo Day": ["Bo is Dutch."], "Cy": ["Cy is a river."]}
FACTS = [["Bo Day", 0], ["Ann Lee", 0]]
HOTPOT = {"question": QUESTION, "answer": "yes", "type": "comparison", "level": "hard"}
OBJECTS = {  # the hub's; ``datasets`` keeps a list of objects as an object of lists
    "context": {"title": list(SENTENCES), "sentences": list(SENTENCES.values())},
    "supporting_facts": {"title": [title for title, _ in FACTS], "sent_id": [number for _, number in FACTS]},
}
RELEASED = {"context": [[title, text] for title, text in SENTENCES.items()], "supporting_facts": FACTS}


def as_lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def as_list(path, rows):
    path.write_text(json.dumps(rows))
    return path


def as_parquet(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


WRITERS = {"x.jsonl": as_lines, "x.json": as_list, "x.parquet": as_parquet}


def read(dataset, path, columns=None):
    return list(load(dataset, path, Reading(split="test", columns=columns or Columns())))


def facts(found):
    return [(q.text, q.answers, q.relation, q.hops, q.gold, q.gold_passages, one.passages) for one in found
            for q in [one.question]]  # fmt: skip


@pytest.mark.parametrize("file", WRITERS)
def test_hotpotqa_of_the_hub_is_that_of_the_release(tmp_path, file):
    released = read("hotpotqa", as_list(tmp_path / "released.json", [{"_id": "a1", **HOTPOT, **RELEASED}]))
    hub = read("hotpotqa", WRITERS[file](tmp_path / file, [{"id": "a1", **HOTPOT, **OBJECTS}]))
    assert facts(hub) == facts(released) and hub[0].question.id == released[0].question.id == "a1"
    assert [(p.title, p.text) for p in hub[0].passages] == [
        ("Ann Lee", "Ann is Dutch. She paints."), ("Bo Day", "Bo is Dutch."), ("Cy", "Cy is a river."),
    ]  # fmt: skip
    assert hub[0].question.gold_passages == (hub[0].passages[1].id, hub[0].passages[0].id)


@pytest.mark.parametrize("layout", ["objects of lists", "lists of objects", "content", "JSON texts"])
@pytest.mark.parametrize("file", WRITERS)
def test_2wiki_of_the_hub_is_that_of_the_release(tmp_path, file, layout):
    row = {key: value for key, value in HOTPOT.items() if key != "level"}
    released = read("2wikimultihopqa", as_list(tmp_path / "released.json", [{"_id": "a1", **row, **RELEASED}]))
    changed: dict[str, Any] = {
        "objects of lists": {"id": "a1", **OBJECTS},
        "content": {"id": "a1", **OBJECTS, "context": {"title": list(SENTENCES), "content": list(SENTENCES.values())}},
        "JSON texts": {"_id": "a1", **{key: json.dumps(value) for key, value in RELEASED.items()}},
        "lists of objects": {
            "id": "a1",
            "context": [{"title": title, "sentences": text} for title, text in SENTENCES.items()],
            "supporting_facts": [{"title": title, "sent_id": number} for title, number in FACTS],
        },
    }
    hub = read("2wikimultihopqa", WRITERS[file](tmp_path / file, [{**row, **changed[layout]}]))
    assert facts(hub) == facts(released) and len(hub[0].question.gold_passages) == 2


@pytest.mark.parametrize("file", WRITERS)
def test_squad_of_the_hub_is_that_of_the_release(tmp_path, file):
    row = {"id": "5", "title": "Super_Bowl", "context": "Denver won.", "question": "Who won?"}
    rows = [{**row, "answers": {"text": ["Denver", "Denver"], "answer_start": [0, 0]}},
            {**row, "id": "6", "answers": {"text": [], "answer_start": []}}]  # fmt: skip
    answers = [{"text": "Denver", "answer_start": 0}]
    qas = [{"id": "5", "question": "Who won?", "answers": answers, "is_impossible": False},
           {"id": "6", "question": "Who won?", "answers": [], "is_impossible": True}]  # fmt: skip
    article = {"title": "Super_Bowl", "paragraphs": [{"context": "Denver won.", "qas": qas}]}
    (tmp_path / "released.json").write_text(json.dumps({"version": "2.0", "data": [article]}))
    hub = read("squad", WRITERS[file](tmp_path / file, rows))
    assert facts(hub) == facts(read("squad", tmp_path / "released.json"))
    assert [(q.question.answers, q.question.gold) for q in hub] == [(("Denver",), "given"), ((), "none")]


@pytest.mark.parametrize("file", WRITERS)
def test_triviaqa_of_the_hub_is_that_of_the_release(tmp_path, file):
    answer = {"aliases": ["Sinclair Lewis", "H. S. Lewis"], "value": "Lewis", "type": "WikipediaEntity",
              "normalized_aliases": ["lewis"], "matched_wiki_entity_name": ""}  # fmt: skip
    row = {"question": "Who won?", "question_id": "tc_1", "question_source": "x", "answer": answer}
    (hub,) = read("triviaqa", WRITERS[file](tmp_path / file, [row]))
    assert (hub.question.id, hub.question.answers) == ("tc_1", ("Lewis", "Sinclair Lewis", "H. S. Lewis"))


@pytest.mark.parametrize("file", WRITERS)
def test_nq_open_popqa_and_openbookqa_of_the_hub(tmp_path, file):
    write = WRITERS[file]
    (nq,) = read("nq_open", write(tmp_path / file, [{"question": "who?", "answer": ["a", "b"]}]))
    assert nq.question.answers == ("a", "b")
    row = {"id": 4, "question": "What?", "possible_answers": '["a", "b"]', "prop": "author", "s_pop": 7}
    (popqa,) = read("popqa", write(tmp_path / file, [row]))
    assert (popqa.question.answers, popqa.question.popularity) == (("a", "b"), 7)
    if file != "x.json":
        choices = {"text": ["x", "y"], "label": ["A", "B"]}
        rows = [{"id": "1", "question_stem": "s", "choices": choices, "answerKey": "B"}]
        for layout in (rows, [{"id": "1", "question": "s", "choices": choices, "answerKey": "B"}]):
            (found,) = read("openbookqa", write(tmp_path / file, layout))
            assert (found.question.text, found.question.options, found.question.answers) == ("s", ("x", "y"), ("B",))


def test_mmlu_and_ceval_of_the_hub(tmp_path):
    rows: Rows = [{"question": "1?", "subject": "anatomy", "choices": ["w", "x", "y", "z"], "answer": 2},
                  {"question": "2?", "subject": "law", "choices": ["w", "x", "x", "z"], "answer": 0}]  # fmt: skip
    found = [one.question for one in read("mmlu", as_parquet(tmp_path / "test-00000-of-00001.parquet", rows))]
    assert [(q.id, q.relation, q.options, q.answers) for q in found] == [
        ("mmlu/test/anatomy/0", "anatomy", ("w", "x", "y", "z"), ("C",)),
        ("mmlu/test/law/0", "law", ("w", "x", "x", "z"), ("A",)),
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"x\.parquet:1: field 'answer': expected the place of one of 4 choices"):
        read("mmlu", as_parquet(tmp_path / "x.parquet", [{**rows[0], "answer": 4}]))
    row = {"id": 0, "question": "几?", **dict(zip("ABCD", "wxyz", strict=True)), "explanation": ""}
    for answer, answers in (("B", ("B",)), ("", ())):
        path = as_parquet(tmp_path / "law_val.parquet", [{**row, "answer": answer}])
        assert [one.question.answers for one in read("ceval", path)] == [answers]


KILT = [
    {"id": "1", "input": "dots?", "output": [{"answer": "therefore sign"}, {"provenance": [{"title": "T"}]},
                                             {"answer": "sign", "meta": {"score": 1}}]},
    {"id": "2", "input": "faust?", "output": [{"answer": "Goethe", "provenance": []}]},
    {"id": "3", "input": "null?", "output": [{"answer": None}, {"answer": "x"}]},
]  # fmt: skip


@pytest.mark.parametrize("file", WRITERS)
def test_of_kilts_outputs_those_with_an_answer_count(tmp_path, file):
    found = read("jsonl", WRITERS[file](tmp_path / file, KILT), Columns({"text": "input", "answers": "output.answer"}))
    assert [one.question.answers for one in found] == [("therefore sign", "sign"), ("Goethe",), ("x",)]


def test_lists_within_lists_are_one_list_of_answers(tmp_path):
    """NQ's own annotations have short answers by annotator; other sets give aliases as a list in a second column."""
    nq = {"question": {"text": "who?"}, "annotations": {"short_answers": [{"text": ["a", "b"]}, {"text": []}]}}
    columns = Columns({"text": "question.text", "answers": "annotations.short_answers.text"})
    assert read("jsonl", as_lines(tmp_path / "nq.jsonl", [nq]), columns)[0].question.answers == ("a", "b")
    rows: Rows = [{"q": "1?", "ans": "a", "alt_ans": ["b", "c"]}, {"q": "2?", "ans": "a", "alt_ans": None},
                  {"q": "3?", "ans": ["a"], "alt_ans": []}]  # fmt: skip
    found = read("jsonl", as_lines(tmp_path / "alt.jsonl", rows), Columns({"text": "q", "answers": ["ans", "alt_ans"]}))
    assert [one.question.answers for one in found] == [("a", "b", "c"), ("a",), ("a",)]


@pytest.mark.parametrize("file", WRITERS)
def test_true_and_false_are_yes_and_no(tmp_path, file):
    rows: Rows = [{"question": "Is it?", "answer": True}, {"question": "Was it?", "answer": False}]
    path = WRITERS[file](tmp_path / file, rows)
    for columns in (Columns(), Columns({"text": "question", "answers": "answer"})):
        assert [one.question.answers for one in read("jsonl", path, columns)] == [("yes",), ("no",)]
    chinese = read("jsonl", path, Columns(language="zh"))
    assert [one.question.answers for one in chinese] == [("是",), ("否",)]
    lists = WRITERS[file](tmp_path / file, [{"question": "Is it?", "answers": [True]}])
    assert read("jsonl", lists)[0].question.answers == ("yes",)


@pytest.mark.parametrize(("value", "flag"), [(1, True), (0, False), ("1", True), ("0", False), (1.0, True),
                                             ("FALSE", False), (True, True), ("yes", True), ("No", False)])  # fmt: skip
def test_flags_are_true_false_one_and_zero(value, flag):
    assert SourceRecord({"a": value}, "f", 1).flag("a") is flag


HUB_ROWS = {
    "question": ["What is it?", "Where is it?"], "answers": [{"text": ["a", "b"]}, {"text": ["c"]}], "views": [3, 5]
}  # fmt: skip
HUB_COLUMNS = Columns({"answers": "answers.text", "popularity": "views"})


def test_a_saved_data_set_comes_with_its_splits(tmp_path):
    one = datasets.Dataset.from_dict(HUB_ROWS)
    datasets.DatasetDict({"train": one, "validation": one.select([0])}).save_to_disk(str(tmp_path / "saved"))
    found = [loaded.question for loaded in load("datasets", tmp_path / "saved", Reading(columns=HUB_COLUMNS))]
    assert [(q.id, q.split, q.answers, q.popularity) for q in found] == [
        ("saved/train/1", "train", ("a", "b"), 3.0), ("saved/train/2", "train", ("c",), 5.0),
        ("saved/validation/1", "dev", ("a", "b"), 3.0),
    ]  # fmt: skip
    only = load("datasets", tmp_path / "saved", Reading(only="validation", split="test", columns=HUB_COLUMNS))
    assert [loaded.question.split for loaded in only] == ["test"]
    with pytest.raises(UserError, match="no split matches 'dev'; valid: train, validation"):
        list(load("datasets", tmp_path / "saved", Reading(only="dev", columns=HUB_COLUMNS)))


def test_a_folder_of_parquet_files_is_streamed(tmp_path):
    (tmp_path / "set").mkdir()
    datasets.Dataset.from_dict(HUB_ROWS).to_parquet(str(tmp_path / "set" / "train.parquet"))
    found = list(load("datasets", tmp_path / "set", Reading(columns=HUB_COLUMNS)))
    assert [loaded.question.answers for loaded in found] == [("a", "b"), ("c",)]
    as_parquet(tmp_path / "set" / "other.parquet", [{"question": "Who?", "answer": "d"}])
    alone = list(load("datasets", tmp_path / "set" / "other.parquet", Reading()))
    assert [loaded.question.answers for loaded in alone] == [("d",)]


def test_what_has_no_splits_is_of_the_split_that_its_name_tells(tmp_path):
    one = datasets.Dataset.from_dict({"question": ["Who?"], "answer": ["d"]})
    for name in ("train", "validation-00000-of-00001", "test", "other"):
        one.to_parquet(str(tmp_path / f"{name}.parquet"))
    datasets.Dataset.from_dict(one.to_dict(), split="train").save_to_disk(str(tmp_path / "saved"))
    wanted = {"train.parquet": "train", "validation-00000-of-00001.parquet": "dev", "test.parquet": "test",
              "other.parquet": "test", "saved": "train"}  # fmt: skip
    assert {name: next(load("datasets", tmp_path / name)).question.split for name in wanted} == wanted
    (tmp_path / "test.parquet").rename(tmp_path / "train-test.parquet")
    with pytest.raises(UserError, match=r"train-test\.parquet: its name has two splits \(train, test\); set split"):
        list(load("datasets", tmp_path / "train-test.parquet"))
    assert next(load("datasets", tmp_path / "train-test.parquet", Reading(split="dev"))).question.split == "dev"
    assert next(load("datasets", tmp_path / "train-test.parquet", Reading(shares=(0.5, 0.25, 0.25))))


def test_a_bad_row_or_a_missing_set_is_one_line(tmp_path):
    datasets.Dataset.from_dict({**HUB_ROWS, "question": ["What?", None]}).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(UserError, match=r"saved/test:2: field 'question': expected text, found null"):
        list(load("datasets", tmp_path / "saved", Reading(columns=HUB_COLUMNS)))
    with pytest.raises(UserError) as caught:
        list(load("datasets", tmp_path / "nowhere", Reading(columns=HUB_COLUMNS)))
    assert "not a data set that can be loaded" in str(caught.value) and "\n" not in str(caught.value)
