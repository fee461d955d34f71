"""What each loader keeps besides question and answers."""

import os
from collections import Counter
from pathlib import Path

import pytest
from native_files import ALIASES, NATIVE, as_lines, as_list

from kbtrain.errors import UserError
from kbtrain.questions.base import Columns, Reading
from kbtrain.questions.catalogue import load


def from_native(tmp_path, name):
    native = NATIVE[name]
    (tmp_path / "id_aliases.json").write_text(ALIASES)
    return from_text(tmp_path, native.dataset, native.name, native.render(native.records))


def from_text(tmp_path, dataset, name, text):
    (tmp_path / name).write_text(text, encoding="utf-8")
    return list(load(dataset, tmp_path / name, NATIVE[dataset].reading if dataset in ("csv",) else None))


def gold_texts(one):
    texts = {passage.id: f"{passage.title}: {passage.text}" for passage in one.passages}
    return [texts[name] for name in one.question.gold_passages]


def test_squad_keeps_impossible_questions_and_marks_them(tmp_path):
    possible, impossible, _ = from_native(tmp_path, "squad")
    assert (possible.question.gold, impossible.question.gold) == ("given", "none")
    assert gold_texts(possible) == ["A city: City 0 is in France."]
    assert (gold_texts(impossible), impossible.passages[0].text) == ([], "City 1 is in France.")
    assert impossible.question.context_passages == (impossible.passages[0].id,)


def test_hotpotqa_keeps_paragraphs_and_supporting_ones(tmp_path):
    first, second, _ = from_native(tmp_path, "hotpotqa")
    assert gold_texts(first) == ["Book: A book. It has pages.", "Author 0: One. Two."]
    assert len(first.question.context_passages) == 3
    assert first.question.context_passages[0] == second.question.context_passages[0]  # the same text is one passage
    assert (first.question.relation, second.question.relation, first.question.hops) == ("bridge", "comparison", 2)


def test_supporting_paragraphs_that_were_not_retrieved_name_no_gold(tmp_path):
    records = [{**NATIVE["hotpotqa"].records[0], "supporting_facts": [["Book", 0], ["Elsewhere", 1]]}]
    (only,) = from_text(tmp_path, "hotpotqa", "fullwiki_dev.json", as_list(records))
    assert (only.question.gold_passages, len(only.passages)) == ((), 3)


def test_2wikimultihopqa_takes_aliases_by_answer_id(tmp_path):
    first, second, _ = from_native(tmp_path, "2wikimultihopqa")
    assert first.question.answers == ("Person 0", "P. Zero", "Zeroan")
    assert (first.question.entities, first.question.hops) == (("Q10", "Q20"), 2)
    assert second.question.answers == ("Person 1",)
    (tmp_path / "id_aliases.json").unlink()
    told = r"dev\.json:2: field '\[0\]\.answer_id': 'Q0' may have aliases; put id_aliases"
    with pytest.raises(UserError, match=told):
        list(load("2wikimultihopqa", tmp_path / "dev.json"))


def test_musique_reads_hops_from_the_id_and_marks_unanswerable_twins(tmp_path):
    found = from_native(tmp_path, "musique")
    assert [(one.question.hops, one.question.relation) for one in found] == [(2, "2hop"), (3, "3hop1"), (4, "4hop2")]
    assert gold_texts(found[1]) == ["L: Land 1"]
    twin = {**NATIVE["musique"].records[0], "answerable": False}
    first, second = from_text(tmp_path, "musique", "full_dev.jsonl", as_lines([NATIVE["musique"].records[0], twin]))
    assert (second.question.id, second.question.gold) == (f"{first.question.id}/unanswerable", "none")
    assert (second.question.answers, second.question.gold_passages) == ((), ())


def test_iirc_marks_questions_without_an_answer(tmp_path):
    value, span, none = from_native(tmp_path, "iirc")
    assert gold_texts(value) == ["Main: The beginning 0.", "Link: A snippet."]
    assert [one.question.relation for one in (value, span, none)] == ["value", "span", "none"]
    assert (none.question.gold, none.question.gold_passages, none.question.hops) == ("none", (), None)


def test_popqa_keeps_popularity_relation_and_subject(tmp_path):
    question = from_native(tmp_path, "popqa")[2].question
    assert (question.popularity, question.relation, question.entities) == (200.0, "occupation", ("Q2",))
    assert gold_texts(from_native(tmp_path, "popqa_json")[0]) == ["A: a 0"]


def test_freshqa_keeps_fact_type_hops_and_false_premise_and_skips_the_notice(tmp_path):
    first, second, _ = from_native(tmp_path, "freshqa")
    kept = (first.question.fact_type, first.question.hops, first.question.false_premise)
    assert kept == ("fast-changing", 2, False)
    assert [first.question.split, second.question.split] == ["test", "dev"]
    text = NATIVE["freshqa"].render(NATIVE["freshqa"].records)
    noticed = from_text(tmp_path, "freshqa", "fresh.csv", '"Warning: do not\npublish",,\n\nplease,,\n' + text)
    assert [(one.question.id, one.line) for one in noticed] == [("freshqa/0", 6), ("freshqa/1", 7), ("freshqa/2", 8)]


def test_options_and_letters(tmp_path):
    options = {name: from_native(tmp_path, name)[0].question.options for name in (
        "mmlu", "ceval", "cmmlu", "mlec_qa", "xiezhi", "openbookqa", "commonsense")}  # fmt: skip
    assert options == {
        "mmlu": ("one", "two, or so", "three", "four"), "ceval": ("甲", "乙", "丙", "丁"),
        "cmmlu": ("甲", "乙", "丙", "丁"), "mlec_qa": ("甲", "乙", "丙", "丁", "戊"),
        "xiezhi": ("甲", "乙", "丙", "丁"), "openbookqa": ("thing A", "thing B", "thing C", "thing D"),
        "commonsense": ("in Rome", "at home"),
    }  # fmt: skip
    relations = {
        name: from_native(tmp_path, name)[0].question.relation for name in ("mmlu", "ceval", "mlec_qa", "xiezhi")
    }
    assert relations == {"mmlu": "anatomy", "ceval": "law", "mlec_qa": "Clinic", "xiezhi": "医学"}
    assert gold_texts(from_native(tmp_path, "openbookqa")[0]) == [": a star"]


def test_chinese_sets_keep_their_passages_and_which_of_them_answer(tmp_path):
    for name in ("webqa", "webqa_list", "sogouqa_contest"):
        first = from_native(tmp_path, name)[0]
        assert first.question.language == "zh"
        assert len(first.question.context_passages) == 2
        assert len(first.question.gold_passages) == 1
    assert from_native(tmp_path, "webqa")[0].question.id == "webqa/Q_TRN_0"


def test_unpublished_answers_are_marked_for_a_whole_file_only(tmp_path):
    records = [{"question": "哪一个？", "id": i} for i in range(2)]
    text = "id,question,A,B,C,D\n" + "".join(f"{r['id']},{r['question']},a,b,c,d\n" for r in records)
    found = from_text(tmp_path, "ceval", "law_test.csv", text)
    told = [(one.question.gold, one.question.answers, one.question.split) for one in found]
    assert told == [("hidden", (), "test")] * 2
    hotpot = NATIVE["hotpotqa"].records
    hidden = [{key: record[key] for key in ("_id", "question", "context")} for record in hotpot]
    found = from_text(tmp_path, "hotpotqa", "test.json", as_list(hidden))
    assert [one.question.gold for one in found] == ["hidden"] * 3
    with pytest.raises(UserError, match=r"mixed\.json:3: no answer, but line 2 has one"):
        from_text(tmp_path, "hotpotqa", "mixed.json", as_list([hotpot[0], hidden[1]]))
    with pytest.raises(UserError, match=r"mixed\.json:3: an answer, but line 2 has none"):
        from_text(tmp_path, "hotpotqa", "mixed.json", as_list([hidden[0], hotpot[1]]))


FOLDER = os.environ.get("KBTRAIN_TEST_DATA")
TABLE = {"id": "qid", "text": "question_text", "answers": "reference", "relation": "type", "contexts": "context"}


@pytest.mark.skipif(not FOLDER, reason="KBTRAIN_TEST_DATA names no folder with the data sets' real files")
@pytest.mark.parametrize(
    ("dataset", "name", "columns", "splits", "answers", "gold"),
    [
        ("nq_open", "nq-open.dev.jsonl", {}, {"dev": 3610}, ("enemy",), []),
        ("popqa", "popqa.json", {}, {"test": 1000}, None, None),
        ("hotpotqa", "hotpot_dev_v1_simplified.json", {}, {"dev": 7405}, ("Norwood, Massachusetts",), []),
        ("musique", "musique_train100_native.json", {}, {"train": 100}, ("Dec. 10, 1817",),
         ["Pocahontas Mounds", "History of Mississippi"]),
        ("squad", "squad2.dev-v2.0.json", {}, {"dev": 6078}, (), []),
        ("mmlu", "mmlu.zip", {}, {"train": 285, "dev": 1531, "test": 14042}, ("A",), []),
        ("csv", "adarague_hotpotqa_train.csv", TABLE, {"train": 500}, ("David John Lodge CBE",),
         ["Thomas Friedman", "David Lodge (author)"]),
    ],
)  # fmt: skip
def test_a_real_file_comes_whole(dataset, name, columns, splits, answers, gold):
    path = Path(FOLDER or "") / name
    if not path.exists():
        pytest.skip(f"no {name} in KBTRAIN_TEST_DATA")
    found = list(load(dataset, path, Reading(columns=Columns(columns))))
    assert Counter(one.question.split for one in found) == splits
    last = found[-1]
    titles = {passage.id: passage.title for passage in last.passages}
    assert answers in (None, last.question.answers)
    assert gold in (None, [titles[name] for name in last.question.gold_passages])
