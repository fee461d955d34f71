"""JSON Lines: exact round trips of every record, atomic files, and errors with file, line and field."""

import dataclasses
import errno
import json

import pytest
from support.files import full_disk

from kbtrain import records
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.records import (
    Decision,
    Entity,
    Evidence,
    GateExample,
    GateScore,
    Hit,
    Indicators,
    Label,
    Outcome,
    Passage,
    Question,
    Sample,
    SampleSet,
    Snippet,
    TurnExample,
    Utterance,
)

QUESTION = Question(
    "q1", 'Was ist "Zürich"?\n苏黎世', ("Stadt", "city"), "test", "d", "zh", options=("a", "b"), hops=2, popularity=0.5,
    gold="none", fact_type="slow", false_premise=False, context_passages=("p",),
    source="shop",
)  # fmt: skip
FOUND = Indicators("llm", 30, 20, 2 / 3, 0.48, 0.81, 0.81, 0.7, 0.9, 2, 0, True)
SAMPLE = Sample(-1, "", 0, "length", -1e-17)
ENTITY = Entity("Bern", "city", "sgd")
SAID = Utterance("USER", "a hotel in Bern", ("Hotels_1",), ("INFORM",), (ENTITY,))
EVERY = [
    QUESTION,
    Passage("p", "t", "\u2028 separators \x85 and \t tabs"),
    Hit("p", "t", "x", 1.5),
    Evidence("q1", "bm25", "query", (Hit("p", "t", "x", 1.5),), None, titles="always"),
    SAMPLE,
    SampleSet("q1", "mask", (Sample(0, "{}", 1, "stop", -0.1),), SAMPLE, 12, 3, "content_filter: no"),
    FOUND,
    Label("q1", "train", FOUND, None, FOUND, 0.8, 0.5, False, True, *[None] * 7, "capital"),
    GateExample("q1", "q1", "dev", "text", "en", None, True, None, False, 0.1, None, 0.5, None,
                (Hit("p", "t", "x", 1.5),), True, ("Q1",), "always", "shop"),
    Decision(0.25, None, 0.5, False),
    GateScore("q1", "kbm_mastery", 0.1 + 0.2),
    Outcome("q1", "test", None, True, False, None, 0.25, 3, 4),
    ENTITY,
    SAID,
    Snippet("s1", None, "t", "x"),
    TurnExample("d1-3", "d1", "test", 3, (SAID,), ("Hotels_1",), True, position=0.25, entities=(ENTITY,),
                response_actions=("OFFER name = Sino",)),
]  # fmt: skip


def test_every_record_comes_back_exactly(tmp_path):
    kinds = {kind for kind in vars(records).values() if dataclasses.is_dataclass(kind)}
    assert {type(record) for record in EVERY} == kinds and len(kinds) == 16
    for record in EVERY:
        path = tmp_path / "x.jsonl"
        assert jsonl.write(path, [record, record]) == 2
        assert list(jsonl.read(type(record), path)) == [record, record]
        assert list(json.loads(jsonl.dump(record))) == [field.name for field in dataclasses.fields(record)]


def test_rare_fields_are_written_only_where_they_say_something():
    plain = jsonl.dump(Question("q", "?", ("a",), "test", "d"))
    assert not {"gold", "fact_type", "false_premise", "context_passages"} & set(json.loads(plain))
    assert json.loads(plain)["popularity"] is None


def test_blank_lines_are_skipped_and_still_counted(tmp_path):
    path = tmp_path / "s.jsonl"
    line = jsonl.dump(GateScore("q", "g", 1.0))
    path.write_text(f"\n{line}\n  \n\n{line}\n")
    assert [number for number, _ in jsonl.read_numbered(GateScore, path)] == [2, 5]
    path.write_bytes(b"\xef\xbb\xbf" + f"{line}\r\n".encode())
    assert list(jsonl.read(GateScore, path)) == [GateScore("q", "g", 1.0)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question_id": "q", ', r"s\.jsonl:2: broken JSON \(.* at column 2\d\)$"),
        ("[1, 2]", r"s\.jsonl:2: expected a JSON object, found list$"),
        ('{"question_id": "q", "gate": "g"}', r"s\.jsonl:2: field 'score': missing$"),
        ('{"question_id": "q", "gate": "g", "score": "high"}', r":2: field 'score': .* valid number.*'high'$"),
        ('{"question_id": "q", "gate": 3, "score": 1}', r":2: field 'gate': input should be a valid string, found 3$"),
        ('{"question_id": "q", "gatte": "g", "score": 1}', r":2: field 'gatte': unknown field; did you mean 'gate'\?$"),
    ],
)
def test_a_broken_line_is_one_line_naming_file_line_and_field(tmp_path, line, message):
    path = tmp_path / "s.jsonl"
    path.write_text(jsonl.dump(GateScore("q", "g", 1.0)) + "\n" + line + "\n")
    records = jsonl.read(GateScore, path)
    assert next(records).score == 1.0
    with pytest.raises(UserError, match=message) as caught:
        next(records)
    assert "\n" not in str(caught.value)


def test_a_nested_field_is_named_with_its_path_and_a_turn_needs_a_turn_before_it():
    hit = {"passage_id": "p", "title": "t", "text": "x", "score": None}
    row = {"question_id": "q", "retriever": "r", "query": "q", "hits": [hit]}
    with pytest.raises(UserError, match=r"field 'hits\.0\.score': input should be a valid number, found None$"):
        jsonl.record(Evidence, row, "e.jsonl", 1)
    row = {"id": "d:1", "dialogue_id": "d", "split": "train", "turn": 1, "context": []}
    with pytest.raises(UserError, match=r"turns\.jsonl:1: field 'context': .*at least 1 item.*, found \[\]"):
        jsonl.record(TurnExample, row, "turns.jsonl", 1)


def scores(error):
    yield GateScore("q2", "g", 2.0)
    raise error


@pytest.mark.parametrize("error", [UserError("bad input"), KeyboardInterrupt(), ValueError("bug")])
def test_an_interrupted_write_leaves_the_old_file_and_no_rest(tmp_path, error):
    path = tmp_path / "s.jsonl"
    jsonl.write(path, [GateScore("q1", "g", 1.0)])
    with pytest.raises(type(error)):
        jsonl.write(path, scores(error))
    assert [record.question_id for record in jsonl.read(GateScore, path)] == ["q1"]
    assert [file.name for file in tmp_path.iterdir()] == ["s.jsonl"]


def test_a_full_disk_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"s\.jsonl: disk is full; free some space and run the same command again$"):
        jsonl.write(tmp_path / "s.jsonl", scores(OSError(errno.ENOSPC, "No space left on device")))
    other = PermissionError(errno.EACCES, "Permission denied", "other.jsonl")
    with pytest.raises(UserError, match=r"^other\.jsonl: permission denied; "):
        jsonl.write(tmp_path / "s.jsonl", scores(other))
    with pytest.raises(ConnectionError):  # of a server that is asked on the way: no file is to blame
        jsonl.write(tmp_path / "s.jsonl", scores(ConnectionRefusedError(errno.ECONNREFUSED, "refused")))


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("NaN", "s.jsonl:2: field 'score': expected a finite number, found nan"),
        ("-Infinity", "s.jsonl:2: field 'score': expected a finite number, found -inf"),
        ("1e999", "s.jsonl:2: field 'score': expected a finite number, found inf"),
        ("9" * 5000, "s.jsonl:2: broken JSON ("), ("[" * 100_000, "s.jsonl:2: broken JSON ("),
        ('{"a": ' * 100_000, "s.jsonl:2: broken JSON ("), ('1, "score": 2', "s.jsonl:2: field 'score': duplicate"),
        (r'"\ud800"', "s.jsonl:2: field 'score': half of a surrogate pair"),
        (r'1, "\uDFFF": 1', r"s.jsonl:2: field '\udfff': half of a surrogate pair"),
        (r'["a", "b\udc00"]', "s.jsonl:2: field 'score': half of a surrogate pair"),
    ],
)  # fmt: skip
def test_what_json_lets_through_and_a_record_does_not(tmp_path, value, told):
    path = tmp_path / "s.jsonl"
    good = '{"question_id": "q", "gate": "g", "score": 1}'
    path.write_text(f"{good}\n{good.replace('1}', value + '}')}\n")
    with pytest.raises(UserError) as raised:
        list(jsonl.read(GateScore, path))
    assert str(raised.value).startswith(f"{tmp_path}/{told}") and len(str(raised.value)) < 400


@pytest.mark.parametrize("n", [400, 60])
def test_of_several_files_the_one_that_is_refused_is_named(tmp_path, n):
    """The last one was, whichever it was; n: refused while it is written, and only when it is closed."""
    paths = {name: tmp_path / f"{name}.jsonl" for name in ("first", "second", "third")}
    rows = [("first", GateScore(f"q{i}", "g" * 40, 1.0)) for i in range(n)]
    with full_disk(), pytest.raises(UserError, match=r"/first\.jsonl: "):
        jsonl.write_each(paths, [*rows, ("second", GateScore("q", "g", 1.0))])
    assert not list(tmp_path.iterdir())
