"""A small native file for every loader, written by hand, and how to put it on disk."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kbtrain.questions.base import Columns, Reading

Record = Any  # an object, or a row of cells
Path_ = tuple[str | int, ...]


def as_list(records: list[Record]) -> str:
    """A JSON list, one record a line: record i is in line i + 2."""
    return "[\n" + ",\n".join(json.dumps(record, ensure_ascii=False) for record in records) + "\n]\n"


def as_lines(records: list[Record]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def as_table(*header: str, delimiter: str = ",") -> Callable[[list[Record]], str]:
    def render(records: list[Record]) -> str:
        out = io.StringIO()
        rows = ([list(header)] if header else []) + records
        csv.writer(out, delimiter=delimiter, lineterminator="\n").writerows(rows)
        return out.getvalue()

    return render


def under(key: str) -> Callable[[list[Record]], str]:
    """An object with the list under a key, which begins in its third line."""
    return lambda records: '{"version": 1,\n' + f'"{key}": ' + as_list(records).rstrip() + ', "more": {}}\n'


def by_key(records: list[Record]) -> str:
    """An object of objects: record i is in line i + 2."""
    return "{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in records) + "\n}\n"


@dataclass(frozen=True)
class Native:
    """A data set's file: three records, where its texts are, and which fields it cannot do without."""

    dataset: str
    name: str
    records: list[Record]
    render: Callable[[list[Record]], str]
    first_line: int  # of record 0
    text: Path_  # to the question
    needed: list[Path_]
    id: Path_ | None = None
    optional: list[Path_] = field(default_factory=list)
    reading: Reading = field(default_factory=Reading)
    answers: tuple[tuple[str, ...], ...] = ()  # what must come out
    kind: str = "json"  # json, lines or table: what a cut file may still be


def _hotpot(number: int, answer: str, kind: str = "bridge") -> dict[str, Any]:
    return {
        "_id": f"h{number}", "question": f"Who wrote book {number}?", "answer": answer, "type": kind, "level": "easy",
        "supporting_facts": [["Book", 0], [f"Author {number}", 1]],
        "context": [["Book", ["A book. ", "It has pages."]], [f"Author {number}", ["One.", " Two."]], ["Other", ["x"]]],
    }  # fmt: skip


def _choice_row(number: int, answer: str) -> list[str]:
    return [f"What is {number}, in short?", "one", "two, or so", "three", "four", answer]


def _squad(number: int, answers: list[str]) -> dict[str, Any]:
    qa = {"id": f"s{number}", "question": f"Where is city {number}?", "is_impossible": not answers,
          "answers": [{"text": answer, "answer_start": 3} for answer in answers]}  # fmt: skip
    return {"title": "A_city", "paragraphs": [{"context": f"City {number} is in France.", "qas": [qa]}]}


_QA: Path_ = ("paragraphs", 0, "qas", 0)
_COLUMNS = Columns({"text": "ask", "answers": "gold", "contexts": "docs", "popularity": "views"})

NATIVE: dict[str, Native] = {
    "jsonl": Native(
        "jsonl", "mine.jsonl",
        [{"id": f"q{i}", "question": f"Capital {i}?", "answers": [f"City {i}"], "popularity": 0.5} for i in range(3)],
        as_lines, 1, ("question",), [("question",), ("answers",)], id=("id",), optional=[("popularity",)],
        answers=(("City 0",), ("City 1",), ("City 2",)), kind="lines",
    ),
    "jsonl_columns": Native(
        "jsonl", "mine_columns.jsonl",
        [{"id": f"q{i}", "ask": f"Capital {i}?", "gold": f"City {i}", "views": 3, "docs": [{"title": "T", "text": "x"}]}
         for i in range(3)],
        as_lines, 1, ("ask",), [("ask",), ("gold",), ("views",), ("docs",)], id=("id",),
        reading=Reading(columns=_COLUMNS), answers=(("City 0",), ("City 1",), ("City 2",)), kind="lines",
    ),
    "csv": Native(
        "csv", "mine.csv",
        [[f"q{i}", f"Capital {i}, of what?", f"['City {i}' 'Town']", "7", "['One passage.', \"Another's.\"]"]
         for i in range(3)],
        as_table("id", "ask", "gold", "views", "docs"), 2, (1,), [(1,), (2,)], id=(0,), optional=[(3,), (4,)],
        reading=Reading(columns=_COLUMNS), answers=tuple((f"City {i}", "Town") for i in range(3)), kind="table",
    ),
    "nq_open": Native(
        "nq_open", "nq.train.jsonl",
        [{"question": "who was first on the moon", "answer": ["Neil Armstrong", "Armstrong"]},
         {"question": "when was it", "answer": ["1969", "July 1969", "1969"]},
         {"question": "where did he start", "answer": ["Florida"]}],
        as_lines, 1, ("question",), [("question",), ("answer",)],
        answers=(("Neil Armstrong", "Armstrong"), ("1969", "July 1969"), ("Florida",)), kind="lines",
    ),
    "nq_contexts": Native(
        "nq_open", "nq_gold.jsonl",
        [{"question": f"what is {i}", "answers": [f"a{i}"], "ctxs": [{"title": "T", "text": f"x {i}", "isgold": True}]}
         for i in range(3)],
        as_lines, 1, ("question",), [("question",), ("answers",), ("ctxs", 0, "text")],
        optional=[("ctxs", 0, "title"), ("ctxs", 0, "isgold")], answers=(("a0",), ("a1",), ("a2",)), kind="lines",
    ),
    "nq_dpr": Native(
        "nq_open", "nq-test.qa.csv",
        [["who is it", "['Ann', \"O'Neil\"]"], ["what is it", "['a bird']"], ["when", '["1,000"]']],
        as_table(delimiter="\t"), 1, (0,), [(0,), (1,)],
        answers=(("Ann", "O'Neil"), ("a bird",), ("1,000",)), kind="table",
    ),
    "triviaqa": Native(
        "triviaqa", "wikipedia-dev.json",
        [{"Question": f"Which river is {i}?", "QuestionId": f"tc_{i}", "EntityPages": [],
          "Answer": {"Value": "Nile", "Aliases": ["The Nile", "Nile"], "HumanAnswers": ["River Nile"]}}
         for i in range(3)],
        under("Data"), 3, ("Question",), [("Question",), ("QuestionId",), ("Answer", "Value")], id=("QuestionId",),
        optional=[("Answer", "Aliases"), ("EntityPages",)], answers=(("Nile", "The Nile", "River Nile"),) * 3,
    ),
    "squad": Native(
        "squad", "dev-v2.0.json", [_squad(0, ["France", "in France", "France"]), _squad(1, []), _squad(2, ["France"])],
        under("data"), 3, (*_QA, "question"), [(*_QA, "question"), (*_QA, "id"), (*_QA, "answers"),
        ("paragraphs", 0, "context"), ("paragraphs",)], id=(*_QA, "id"), optional=[("title",)],
        answers=(("France", "in France"), (), ("France",)),
    ),
    "squad_zh": Native(
        "squad_zh", "train.json",
        [{"title": "超级杯", "paragraphs": [{"context": f"第{i}届在旧金山举行。", "qas": [
            {"id": f"z{i}", "question": "在哪里举行？", "answers": [{"text": "旧金山"}]}]}]} for i in range(3)],
        under("data"), 3, (*_QA, "question"), [(*_QA, "question"), (*_QA, "id"), (*_QA, "answers", 0, "text")],
        id=(*_QA, "id"), answers=(("旧金山",),) * 3,
    ),
    "hotpotqa": Native(
        "hotpotqa", "hotpot_train_v1.1.json", [_hotpot(0, "Zoë"), _hotpot(1, "yes", "comparison"), _hotpot(2, "Ann")],
        as_list, 2, ("question",),
        [("question",), ("_id",), ("answer",), ("context", 0, 0), ("supporting_facts", 0, 0)],
        id=("_id",), optional=[("type",), ("level",)], answers=(("Zoë",), ("yes",), ("Ann",)),
    ),
    "2wikimultihopqa": Native(
        "2wikimultihopqa", "dev.json",
        [{**_hotpot(i, f"Person {i}", "compositional"), "answer_id": f"Q{i}", "entity_ids": f"Q1{i}_Q2{i}"}
         for i in range(3)],
        as_list, 2, ("question",), [("question",), ("_id",), ("answer",), ("type",), ("context", 0, 0)], id=("_id",),
        optional=[("entity_ids",), ("answer_id",)],
        answers=(("Person 0", "P. Zero", "Zeroan"), ("Person 1",), ("Person 2",)),
    ),
    "musique": Native(
        "musique", "musique_ans_v1.0_train.jsonl",
        [{"id": f"{2 + i}hop{kind}__{i}_7", "question": f"Who leads the land of {i}?", "answer": f"Leader {i}",
          "answer_aliases": aliases, "answerable": True, "question_decomposition": [],
          "paragraphs": [{"idx": 0, "title": "L", "paragraph_text": f"Land {i}", "is_supporting": True},
                         {"idx": 1, "title": "M", "paragraph_text": "no", "is_supporting": False}]}
         for i, (kind, aliases) in enumerate([("", []), ("1", ["The boss"]), ("2", [])])],
        as_lines, 1, ("question",), [("question",), ("id",), ("answer",), ("paragraphs", 0, "paragraph_text")],
        id=("id",), optional=[("answer_aliases",), ("answerable",)],
        answers=(("Leader 0",), ("Leader 1", "The boss"), ("Leader 2",)), kind="lines",
    ),
    "iirc": Native(
        "iirc", "train.json",
        [{"pid": f"p{i}", "title": "Main", "text": f"The beginning {i}.", "links": [], "questions": [
            {"qid": f"i{i}", "question": f"How old was {i}?", "question_links": [], "answer": answer,
             "context": [{"passage": "main", "text": "The"}, {"passage": "Link", "text": "A snippet."}]}]}
         for i, answer in enumerate([
            {"type": "value", "answer_value": "38", "answer_unit": "years"},
            {"type": "span", "answer_spans": [{"text": "Ann"}, {"text": "Bob"}]}, {"type": "none"}])],
        as_list, 2, ("questions", 0, "question"), [("questions", 0, "question"), ("questions", 0, "qid"), ("text",),
        ("questions", 0, "answer", "type")], id=("questions", 0, "qid"), optional=[("title",)],
        answers=(("38", "38 years"), ("Ann, Bob",), ()),
    ),
    "popqa": Native(
        "popqa", "popQA.tsv",
        [[str(i), "Ann", "occupation", "politician", f"http://www.wikidata.org/entity/Q{i}", str(100 * i),
          f"What is {i}'s job?", '["politician", "pol \\"x\\""]'] for i in range(3)],
        as_table("id", "subj", "prop", "obj", "s_uri", "s_pop", "question", "possible_answers", delimiter="\t"),
        2, (6,), [(0,), (6,), (2,), (5,), (7,)], id=(0,), optional=[(4,)], answers=(("politician", 'pol "x"'),) * 3,
        kind="table",
    ),
    "popqa_json": Native(
        "popqa", "popqa.json",
        [{"id": i, "prop": "place of birth", "s_pop": 12, "s_uri": "http://x/Q5", "question": f"Where was {i} born?",
          "possible_answers": "[\"Ulm\"]", "paragraphs": [{"title": "A", "text": f"a {i}", "is_supporting": True}]}
         for i in range(3)],
        as_list, 2, ("question",), [("question",), ("id",), ("s_pop",), ("possible_answers",),
        ("paragraphs", 0, "text")], id=("id",), answers=(("Ulm",),) * 3,
    ),
    "freshqa": Native(
        "freshqa", "freshqa.csv",
        [[str(i), split, f"Who won {i}?", "FALSE", "multi-hop", "fast-changing", "u", "Ann", "Ann B.", *[""] * 8]
         for i, split in enumerate(["TEST", "DEV", "TEST"])],
        as_table("id", "split", "question", "false_premise", "num_hops", "fact_type", "source",
                 *(f"answer_{i}" for i in range(10))),
        2, (2,), [(0,), (1,), (2,), (3,), (4,), (5,), (7,)], id=(0,), answers=(("Ann", "Ann B."),) * 3, kind="table",
    ),
    "openbookqa": Native(
        "openbookqa", "test_complete.jsonl",
        [{"id": f"7-{i}", "fact1": "a star", "answerKey": "C", "question": {"stem": f"What is {i}", "choices": [
            {"label": label, "text": f"thing {label}"} for label in "ABCD"]}} for i in range(3)],
        as_lines, 1, ("question", "stem"), [("question", "stem"), ("id",), ("question", "choices"), ("question",),
        ("question", "choices", 1, "text")], id=("id",), optional=[("fact1",)], answers=(("C",),) * 3, kind="lines",
    ),
    "commonsense": Native(
        "commonsense", "test.json",
        [{"instruction": f"Please choose the correct answer to the question: Where is {i}: here?\n\nAnswer1: in Rome "
          "Answer2: at home\n\nAnswer format: answer1/answer2", "input": "", "output": "x", "answer": "answer2"}
         for i in range(3)],
        as_list, 2, ("instruction",), [("instruction",), ("answer",)], answers=(("B",),) * 3,
    ),
    "mmlu": Native(
        "mmlu", "anatomy_test.csv", [_choice_row(i, "BAD"[i]) for i in range(3)],
        as_table(), 1, (0,), [(0,), (1,), (3,), (5,)], answers=(("B",), ("A",), ("D",)), kind="table",
    ),
    "ceval": Native(
        "ceval", "law_val.csv", [[str(i), "哪一个正确？", "甲", "乙", "丙", "丁", "C"] for i in range(3)],
        as_table("id", "question", "A", "B", "C", "D", "answer"), 2, (1,), [(0,), (1,), (2,), (5,), (6,)], id=(0,),
        answers=(("C",),) * 3, kind="table",
    ),
    "cmmlu": Native(
        "cmmlu", "agronomy.csv", [[str(i), "哪一个正确？", "甲", "乙", "丙", "丁", "D"] for i in range(3)],
        as_table("", "Question", "A", "B", "C", "D", "Answer"), 2, (1,), [(1,), (2,), (5,), (6,)],
        answers=(("D",),) * 3, kind="table",
    ),
    "mlec_qa": Native(
        "mlec_qa", "Clinic_train.json",
        [{"qid": str(i), "qtype": "A1型题", "qtext": "首选的药物是", "qimage": "", "answer": "E",
          "options": {"A": "甲", "B": "乙", "C": "丙", "D": "丁", "E": "戊"}} for i in range(3)],
        as_list, 2, ("qtext",), [("qtext",), ("qid",), ("answer",), ("options",), ("options", "B")], id=("qid",),
        optional=[("qimage",)], answers=(("E",),) * 3,
    ),
    "xiezhi": Native(
        "xiezhi", "xiezhi_train.json",
        [{"question": f"第{i}题_____", "options": "甲\n乙\n丙\n丁", "answer": "丙", "labels": ["麻醉学", "医学"]}
         for i in range(3)],
        as_lines, 1, ("question",), [("question",), ("options",), ("answer",), ("labels",)], answers=(("C",),) * 3,
        kind="lines",
    ),
    "webqa": Native(
        "webqa", "me_train.json",
        [(f"Q_TRN_{i}", {"question": "白云山有多高？", "evidences": {
            f"Q_TRN_{i}#0": {"answer": ["382米"], "evidence": f"主峰高382米{i}。"},
            f"Q_TRN_{i}#1": {"answer": ["no_answer"], "evidence": "不知道。"}}}) for i in range(3)],
        by_key, 2, (1, "question"), [(1, "question"), (1, "evidences", "Q_TRN_1#0", "evidence"), (1, "evidences")],
        id=(0,), answers=(("382米",),) * 3,
    ),
    "webqa_list": Native(
        "webqa", "WebQA.json",
        [{"id": f"w{i}", "question": "谁写的？", "passages": [{"passage": f"老舍写的{i}。", "answer": "老舍"},
                                                     {"passage": "不知道。", "answer": ""}]} for i in range(3)],
        as_list, 2, ("question",), [("question",), ("id",), ("passages",), ("passages", 0, "passage")], id=("id",),
        answers=(("老舍",),) * 3,
    ),
    "sogouqa": Native(
        "sogouqa", "SogouQA.json",
        [{"id": f"g{i}", "question": "谁写的？", "passages": [{"passage": f"鲁迅写{i}。", "answer": "鲁迅"}]}
         for i in range(3)],
        as_list, 2, ("question",), [("question",), ("id",), ("passages",), ("passages", 0, "answer")], id=("id",),
        answers=(("鲁迅",),) * 3,
    ),
    "sogouqa_contest": Native(
        "sogouqa", "train_factoid.json",
        [{"query_id": i, "type": "factoid", "query": "作者是谁？", "answer": "林海音",
          "passages": [{"passage_id": 1, "passage_text": f"林海音的作品{i}。", "url": "u"}, {"passage_text": "别的。"}]}
         for i in range(3)],
        as_lines, 1, ("query",), [("query",), ("query_id",), ("answer",), ("passages",)], id=("query_id",),
        answers=(("林海音",),) * 3, kind="lines",
    ),
}  # fmt: skip
ALIASES = (
    '{"Q_id": "Q0", "aliases": ["P. Zero"], "demonyms": ["Zeroan"]}\n{"Q_id": "Q1", "aliases": [], "demonyms": []}\n'
)
