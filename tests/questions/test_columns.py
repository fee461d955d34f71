"""Any table by a column map, and own fields without one; what is not sound is one line with its place."""

import datetime
import json
from decimal import Decimal

import pyarrow
import pyarrow.parquet
import pytest
from support.questions import load_questions

from kbtrain.errors import UserError
from kbtrain.questions.base import Columns, Reading
from kbtrain.questions.catalogue import load
from kbtrain.questions.checks import near_duplicates
from kbtrain.questions.columns import cell_texts, mapped
from kbtrain.questions.rows import SourceRecord
from kbtrain.questions.tables import python_list
from kbtrain.records import Passage, Question
from kbtrain.retrieval.corpus import read_passages
from kbtrain.retrieval.tokens import Tokens


def question(data, answer_as="letter", **names):
    return mapped(SourceRecord(data, "x.csv", 7), Columns(names, answer_as), "n-1", "d", "test").question


def test_a_source_is_read_where_the_map_names_its_column():
    data = {"question": "Who?", "answer": "Ann", "source": "https://x/1", "team": "shop"}
    assert question(data).source == "" and question(data, source="team").source == "shop"


def test_a_path_reaches_into_objects_and_lists_of_objects():
    data = {"q": {"text": "Who?"}, "answers": {"text": ["Ann", "Bob"]}, "docs": [{"body": "x"}, {"body": "y"}]}
    found = question(data, text="q.text", answers="answers.text", contexts="docs.body")
    assert (found.text, found.answers, len(found.context_passages)) == ("Who?", ("Ann", "Bob"), 2)


def test_an_option_without_a_text_keeps_its_place():
    with pytest.raises(UserError, match=r"field 'o\.text\[1\]': expected text, found null"):
        question({"question": "What?", "o": [{"text": "x"}, {"id": 2}, {"text": "y"}], "answer": "B"}, options="o.text")
    nested = {"question": "What?", "o": [{"in": [{"text": "x"}]}, {"in": [{"text": "y"}]}], "answer": "B"}
    assert question(nested, options="o.in.text").options == ("x", "y")
    nested["o"].insert(1, {"in": []})
    with pytest.raises(UserError, match=r"field 'o\.in\.text\[1\]': expected text, found null"):
        question(nested, options="o.in.text")
    for o in ([{"in": ["a", "b"]}, {"in": ["c"]}], [{"in": ["a", "b", "c"]}]):
        assert question({"question": "Who?", "o": o, "answer": "B"}, options="o.in").options == ("a", "b", "c")
    deep = [{"in": [{"t": "a"}, {"t": "b"}]}]
    assert question({"question": "Who?", "o": deep, "answer": "B"}, options="o.in.t").options == ("a", "b")
    assert question({"question": "Who?", "o": [{"a": "Ann"}, {}]}, answers="o.a").answers == ("Ann",)


def test_several_columns_make_a_list():
    data = {"question": "Which?", "A": "x", "B": "y", "C": 3, "answer": "b"}
    found = question(data, options=["A", "B", "C"])
    assert (found.options, found.answers, found.form, found.grading) == (("x", "y", "3"), ("B",), "choice", "option")


@pytest.mark.parametrize(
    ("answer_as", "value", "letter"),
    [("letter", "c", "C"), ("number", 3, "C"), ("number", "1", "A"), ("index", 0, "A"), ("index", "2", "C"),
     ("text", "z", "C")],
)  # fmt: skip
def test_a_choice_is_given_as_letter_number_index_or_text(answer_as, value, letter):
    data = {"question": "Which?", "options": ["x", "y", "z"], "answer": value}
    assert question(data, answer_as).answers == (letter,)


@pytest.mark.parametrize(
    ("answer_as", "value", "letters"),
    [("letter", "C", "C"), ("number", 3, "C"), ("index", 2, "C"), ("text", "7", "C"), ("text", "1", "AB")],
)
def test_options_that_read_alike_keep_their_places(answer_as, value, letters):
    for options in (["1", "1", "7", "9"], [1, 1, 7, 9], "['1', '1', '7', '9']"):
        found = question({"question": "Which is prime?", "options": options, "answer": value}, answer_as)
        assert (found.options, found.answers) == (("1", "1", "7", "9"), tuple(letters))
    columns = {"question": "Which is prime?", "A": "1", "B": "1", "C": "7", "D": "9", "answer": value}
    assert question(columns, answer_as, options=["A", "B", "C", "D"]).options == ("1", "1", "7", "9")
    assert question({"question": "Same?", "options": ["x", "x"], "answer": "B"}).options == ("x", "x")


@pytest.mark.parametrize(
    ("answer_as", "value", "message"),
    [
        ("letter", "D", "expected one of A, B, C, found 'D'"),
        ("number", 0, "expected 1 to 3, found 0"),
        ("index", 3, "expected 0 to 2, found 3"),
        ("index", 1.5, "expected a whole number"),
        ("text", "w", "'w' is not one of the options"),
    ],
)
def test_a_choice_out_of_reach_is_refused(answer_as, value, message):
    with pytest.raises(UserError, match=f"^x.csv:7: field 'answer': {message}"):
        question({"question": "Which?", "options": ["x", "y", "z"], "answer": value}, answer_as)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("['a', \"b'c\"]", ["a", "b'c"]),
        ("['a' 'b'\n 'c']", ["a", "b", "c"]),  # numpy: Python alone would read 'abc'
        ("[]", []),
        ("[{'x': 1, 'y': 'z'}\n {'x': None}]", [{"x": 1, "y": "z"}, {"x": None}]),
        ("[{'spans': array(['The BFG'], dtype=object)}]", [{"spans": ["The BFG"]}]),
        ("['苏黎世' '日内瓦']", ["苏黎世", "日内瓦"]),
    ],
)
def test_lists_as_python_and_numpy_print_them(text, values):
    assert python_list(SourceRecord({"k": text}, "x.csv", 3), "k") == values or values == []


def test_a_cell_is_one_text_or_a_list():
    cells = SourceRecord(
        {"a": "one, two", "b": '["x", "y", "x"]', "c": 12, "d": ["p", 3], "e": "[]", "f": {"a": 1}}, "x.csv", 2
    )
    assert [cell_texts(cells, key) for key in "abcd"] == [("one, two",), ("x", "y"), ("12",), ("p", "3")]
    for key, problem in {"e": "empty list", "f": "expected text, found dict", "g": "missing"}.items():
        with pytest.raises(UserError, match=rf"x\.csv:2: field '{key}': {problem}"):
            cell_texts(cells, key)


def test_numbers_are_texts_with_all_their_digits():
    data = {"question": "How many?", "answers": [2161000.0, 1984.0, 3.1415927, -0.5, 12, 1e300]}
    assert question(data).answers == ("2161000", "1984", "3.1415927", "-0.5", "12", "1e+300")
    assert question({"question": "How many?", "answer": 2161000.0}).answers == ("2161000",)


def test_a_text_beside_the_question_is_not_taken_for_it(tmp_path):
    row = {"question": "Who?", "answer": "Ann", "text": "Ann was first."}
    (tmp_path / "mine.jsonl").write_text(json.dumps(row))
    (tmp_path / "mine.csv").write_text("question,answer,text\nWho?,Ann,Ann was first.\n")
    for name, kind in (("mine.jsonl", "jsonl"), ("mine.csv", "csv")):
        says = r"field 'text': there is 'question', too; choose one: --columns \"{text: question}\" \(or text\)"
        with pytest.raises(UserError, match=says):
            list(load(kind, tmp_path / name))
        (found,) = load(kind, tmp_path / name, Reading(columns=Columns({"text": "question"})))
        assert (found.question.text, found.question.answers) == ("Who?", ("Ann",))
    with pytest.raises(UserError, match=r"field 'answers': there is 'answer', too"):
        question({"text": "Who?", "answer": "Ann", "answers": ["Bob"]})


def test_a_column_may_hold_the_split(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("question,answer,split\na?,b,validation\nc?,d,train\n")
    assert [one.question.split for one in load("csv", path)] == ["dev", "train"]
    path.write_text("question,answer,split\na?,b,later\n")
    with pytest.raises(UserError, match=r"mine\.csv:2: field 'split': expected train, dev or test, found 'later'"):
        list(load("csv", path))
    assert [one.question.split for one in load("csv", path, Reading(split="dev"))] == ["dev"]


def test_a_spreadsheets_semicolons_are_read_where_no_comma_stands_in_the_header(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text('\ufeffQ;answer;topic\n"a; b?";"c, d";x\n', encoding="utf-8")
    (found,) = load("csv", path, Reading(columns=Columns({"text": "Q", "relation": "topic"})))
    assert (found.question.text, found.question.answers, found.question.relation) == ("a; b?", ("c, d",), "x")
    path.write_text("question,answer,a;b\nc?,d;e,f\n")
    assert [one.question.answers for one in load("csv", path)] == [("d;e",)]
    path.write_text('"question";"answer";"place, time"\n"c?";"d,e";x\n')  # quotes aside
    assert [one.question.answers for one in load("csv", path)] == [("d,e",)]
    path.write_text('question,"answer"\n"c?","d;e"\n')
    assert [one.question.answers for one in load("csv", path)] == [("d;e",)]
    path.write_text("")
    with pytest.raises(UserError, match=r"mine\.csv:1: no header"):
        list(load("csv", path))


@pytest.mark.parametrize("told", [";", ",", "|", "\t"])
def test_a_table_may_tell_its_separator_in_a_line_before_the_header(tmp_path, told):
    """As spreadsheets read it; errors name the lines of the file."""
    path = tmp_path / "mine.csv"
    rows = [["question", "answer", "a;b,c"], ["Who?", "Ann", "x"], ["", "", ""], ["", "Bob", "y"]]
    lines = [told.join(f'"{cell}"' for cell in row) for row in rows]
    path.write_text("".join(f"{line}\r\n" for line in [f"\ufeffsep={told}", *lines]), encoding="utf-8", newline="")
    found = load("csv", path)
    assert next(found).question.answers == ("Ann",)
    with pytest.raises(UserError, match=r"mine\.csv:5: field 'question': "):
        next(found)


def test_a_map_for_a_set_with_columns_of_its_own_is_refused(tmp_path):
    for columns in (Columns({"text": "q"}), Columns(language="zh"), Columns(answer_as="text")):
        with pytest.raises(UserError, match=r"'squad' has its own; columns, answer_as and language .* are for jsonl"):
            load("squad", tmp_path, Reading(columns=columns))
    with pytest.raises(UserError, match="subset is for the data set 'datasets' only"):
        load("csv", tmp_path, Reading(subset="x"))
    with pytest.raises(UserError, match="'atlas' has its own splits"):
        load("atlas", None, Reading(split="test"))


def from_lines(tmp_path, text):
    path = tmp_path / "mine.jsonl"
    path.write_text(text, encoding="utf-8")
    return list(load_questions("jsonl", path))


def test_a_question_and_its_answers_are_enough(tmp_path):
    first, second, third = from_lines(
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
        ('{"question": "a?", "gold": "b"}',
         'there is question, gold; map yours: --columns "{text: question, answers: gold}"'),
        ('{"question": "a?", "answers": ["b"]}\n{"question": "\\u200b", "answers": ["b"]}',
         "mine.jsonl:2: field 'question': empty"),
        ('{"question": "...", "answers": ["b"]}', "mine.jsonl:1: field 'text': empty"),
        ('{"question": " ", "answers": ["b"]}', "mine.jsonl:1: field 'question': empty"),
        ('{"question": "a?", "answers": "b", "id": "q"}\n' * 2, "mine.jsonl:2: field 'id': duplicate 'q'"),
        ('{"question": "a?", "answers": "b", "popularty": 1}', "did you mean 'popularity'?"),
        ('{"question": "a?", "answer": "b", "topic": 1}',
         "mine.jsonl:1: field 'topic': not a field of a question; map the columns to read, the others are skipped: "
         '--columns "{text: question, answers: answer}"'),
        ('{"question": "a?", "answers": ["C"], "options": ["x", "y"]}', "'answers': expected one of A, B, found 'C'"),
        ('{"question": "a?", "answers": {"a": 1}}', "mine.jsonl:1: field 'answers'"),
        ("[1]", "mine.jsonl:1: field '[0]': expected a JSON object, found int"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_with_file_line_and_field(tmp_path, text, message):
    with pytest.raises(UserError) as error:
        from_lines(tmp_path, text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def answers(kind, path, text=None, **reading):
    if text is not None:
        path.write_text(text, encoding="utf-8")
    return [one.question.answers for one in load(kind, path, Reading(**reading))]


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_nan_is_a_missing_value(tmp_path, name):
    row = '{"question": "Who?", "answer": "Ann", "score": NaN, "more": [NaN], "hops": NaN}'
    columns = Columns({"text": "question", "answers": "answer"})
    assert answers("jsonl", tmp_path / name, f"[{row}]" if name == "x.json" else row, columns=columns) == [("Ann",)]
    empty = row.replace('"Ann"', "NaN")
    assert answers("jsonl", tmp_path / name, f"[{empty}]" if name == "x.json" else empty, columns=columns) == [()]


def test_values_of_parquet_are_written_as_people_write_them(tmp_path):
    values = {
        "1969-07-20": datetime.date(1969, 7, 20), "1969-07-21": datetime.datetime(1969, 7, 21),
        "1984": Decimal("1984.00"), "2.5": Decimal("2.50"), "1984.5": 1984.5,
    }  # fmt: skip
    for text, value in values.items():
        table = pyarrow.Table.from_pylist([{"question": "When?", "answer": value, "score": float("nan")}])
        pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
        assert answers("jsonl", tmp_path / "x.parquet", columns=Columns({"answers": "answer"})) == [(text,)]
    single = {"question": ["How much?"], "answers": pyarrow.array([[0.1, 2.0]], pyarrow.list_(pyarrow.float32()))}
    pyarrow.parquet.write_table(pyarrow.table(single), tmp_path / "x.parquet")
    assert answers("jsonl", tmp_path / "x.parquet") == [("0.1", "2")]
    kinds = [("v", pyarrow.float64()), ("s", pyarrow.float32())]
    both = {"question": ["How much?"], "a": pyarrow.array([{"v": 1234567.891, "s": 0.5}], pyarrow.struct(kinds))}
    pyarrow.parquet.write_table(pyarrow.table({**both, "id": [7.0]}), tmp_path / "x.parquet")
    assert answers("jsonl", tmp_path / "x.parquet", columns=Columns({"answers": "a.v"})) == [("1234567.891",)]


@pytest.mark.parametrize(
    "cell", ['{"text": ["Ann", "A."], "start": [1, 2]}', "{'text': array(['Ann', 'A.'], dtype=object)}"]
)
def test_json_and_pythons_objects_in_a_cell_are_reached_into(tmp_path, cell):
    quoted = cell.replace('"', '""')
    table = f'question,answers\nWho?,"{quoted}"\n'
    reached = answers("csv", tmp_path / "x.csv", table, columns=Columns({"answers": "answers.text"}))
    assert reached == [("Ann", "A.")]
    with pytest.raises(UserError, match=r"x\.csv:2: field 'answers': an object of text.*answers\.text"):
        answers("csv", tmp_path / "x.csv", table)


def test_tabs_in_a_csv_are_seen(tmp_path):
    table = 'question\tanswer\nWho, and when?\t"Ann, once"\n'
    assert answers("csv", tmp_path / "x.csv", table) == [("Ann, once",)]
    assert answers("csv", tmp_path / "y.tsv", 'question\tanswer\n"Emma" by?\t"Ann" Lee\n') == [('"Ann" Lee',)]
    with pytest.raises(UserError, match=r"w.tsv:2: broken CSV .*a quote opens a cell that holds the rows below it"):
        answers("csv", tmp_path / "w.tsv", 'question\tanswer\nWho?\t"The Hague\nWhen?\t1990\nWhere?\tRome"\n')
    assert answers("csv", tmp_path / "z.csv", "question|answer|language\nWho?|Ann|en-US\n") == [("Ann",)]


def test_the_names_of_chinese_are_zh_and_all_others_en(tmp_path):
    names = ["zh_Hans", "Simplified Chinese", "普通话", "繁體", "simplified_chinese", "(Traditional) Chinese", "漢語"]
    names += ["English (from Chinese)", "Non-Chinese", "Deutsch", "外国语", "other than Chinese", "French/Chinese"]
    rows = (f"Who is {name}?,Ann,{name}" for name in names)
    (tmp_path / "x.csv").write_text("\n".join(["question,answer,language", *rows]))
    found = [loaded.question.language for loaded in load("csv", tmp_path / "x.csv", Reading())]
    assert found == ["zh"] * 7 + ["en"] * 6


def test_the_id_of_beir_is_an_id(tmp_path):
    (tmp_path / "corpus.jsonl").write_text('{"_id": "d7", "title": "T", "text": "x", "metadata": {}}\n')
    assert list(read_passages(tmp_path / "corpus.jsonl")) == [Passage("d7", "T", "x")]
    row = {"_id": "q3", "text": "Who?", "answers": ["Ann"]}
    for columns in (Columns(), Columns({"text": "text"})):
        (tmp_path / "queries.jsonl").write_text(json.dumps(row))
        (one,) = load("jsonl", tmp_path / "queries.jsonl", Reading(columns=columns))
        assert one.question.id == "q3"


def test_a_table_without_a_header_is_not_answered_by_a_map_that_loses_its_first_row(tmp_path):
    (tmp_path / "psgs.tsv").write_text("1\tAaron is a prophet of the Bible, and more.\tAaron\n2\tBo was.\tBo\n")
    with pytest.raises(UserError, match="missing; the first line is a passage") as caught:
        list(read_passages(tmp_path / "psgs.tsv"))
    assert "--columns" not in str(caught.value)
    with pytest.raises(UserError, match="missing; the first line is a question"):
        answers("csv", tmp_path / "qa.tsv", "who sings?\tAnn\nwho plays?\tBo\n")


def test_a_split_by_number_is_refused_with_remedies_that_help(tmp_path):
    """CRAG's: 0 and 1."""
    row = {"query": "who?", "answer": "Ann", "alt_ans": ["A."], "split": 0, "question_type": "set"}
    path = tmp_path / "crag.jsonl"
    path.write_text("".join(json.dumps({**row, "query": f"who {i}?"}) + "\n" for i in range(30)))
    columns = Columns({"text": "query", "answers": ["answer", "alt_ans"], "relation": "question_type"})
    with pytest.raises(UserError, match=r"field 'split': expected train, dev or test, found 0; .*--split.*--shares"):
        answers("jsonl", path, columns=columns)
    for reading in (Reading("dev", columns=columns), Reading(columns=columns, shares=(0.5, 0.25, 0.25))):
        found = [one.question for one in load("jsonl", path, reading)]
        assert {q.split for q in found} == ({"dev"} if reading.split else {"train", "dev", "test"})
        assert (found[0].answers, found[0].relation) == (("Ann", "A."), "set")


def test_short_repeats_are_near_duplicates():
    """Signs and articles do not count, however much of a short text they are."""
    rest = [Question(f"r{i}", f"What is the name of thing {i}?", ("a",), "train", "d") for i in range(9)]
    twins = [Question("a", "Who?", ("x",), "train", "d"), Question("b", "the who", ("x",), "test", "d")]
    assert [(p.id, p.other_id, p.cosine) for p in near_duplicates([*rest, *twins])] == [("a", "b", 1.0)]


def test_the_turkish_capital_i_is_an_i():
    assert Tokens().words("İstanbul İZMİR") == Tokens().words("istanbul izmir")
