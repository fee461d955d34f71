"""A gate decides: texts or examples in, decisions out; a wrong argument is one line."""

import io
import json
import os

import numpy as np
import pytest
from tiny_kbm import make_folder, make_tokenizer
from tiny_turns import turn

import kbtrain
from kbtrain import cli
from kbtrain.errors import UserError
from kbtrain.gate.gate import Gate
from kbtrain.gates.decide import arriving, decisions, read_inputs, read_questions_file
from kbtrain.gates.kbm.gate import KBMCard
from kbtrain.gates.turns import DialogueStateGate
from kbtrain.prompts.kbm import kbm_fingerprint
from kbtrain.records import Decision, GateExample, Hit

TEXTS = ["Who wrote it?", "When was the tower built?", "中国的首都是哪里?"]
KEYS = ("mastery", "certainty", "benefit")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = make_folder(tmp_path_factory.mktemp("gate") / "kbm")
    KBMCard(
        base_model="tiny", keys=KEYS, prompt_fingerprint=kbm_fingerprint(make_tokenizer(), KEYS), max_length=512,
        dtype="fp32", method="full", labels="soft",
    ).write(folder)  # fmt: skip
    return folder


def test_wrong_arguments_are_one_line(folder, tmp_path):
    gate = kbtrain.load_gate(folder)
    for wrong in (b"Who wrote it?", {"Who wrote it?": 1}, {"Who wrote it?"}):
        with pytest.raises(UserError, match=r"expected a list of questions, found .*Who"):
            gate.score(wrong)
    for threshold in (float("nan"), float("inf"), "x", True, [0.5]):
        with pytest.raises(UserError, match=r"gate 'kbm_mastery': threshold: expected a finite number, found"):
            gate.decide(["Who wrote it?"], threshold)
    assert gate.decide((text for text in TEXTS), np.float32(0.5)) == gate.decide(TEXTS, 0.5)
    for key in (None, 3, "x"):
        with pytest.raises(UserError, match=rf"this gate has no key {key!r}; valid: benefit, certainty, mastery"):
            gate.gate(key)
    with pytest.raises(UserError, match="key 'mastery': gate 'all' has no keys; remove it"):
        AllKnowing().gate("mastery")
    with pytest.raises(UserError, match=r"gate 'kbm_mastery': no threshold in its gate.json; choose one on dev"):
        gate.needs_retrieval("Who wrote it?")
    with pytest.raises(UserError, match="this gate has no key 'masteri'; did you mean 'mastery'"):
        kbtrain.load_gate(folder, key="masteri")
    state = DialogueStateGate.fit([turn(i) for i in range(40)])
    state.card.write(tmp_path / "dialogue_state")
    with pytest.raises(UserError, match="key 'mastery': a gate of kind 'dialogue_state' has no keys"):
        kbtrain.load_gate(tmp_path / "dialogue_state", "mastery")
    with pytest.raises(UserError, match=r"reads records TurnExample .kbtrain.records., found str at place 0"):
        state.score(["Who wrote it?"])
    with pytest.raises(UserError, match=r"gate 'all'.* needs retrieved text"):
        AllKnowing().decide(["Who wrote it?"], 0.5)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"folder": " "}, "no such file; is ' ' the folder of a finished training"),
        ({"dtype": "fp99"}, "key 'dtype': unknown 'fp99'; valid: auto, fp32, bf16"),
    ],
)
def test_what_cannot_be_opened_is_one_line(folder, given, says):
    with pytest.raises(UserError, match=says):
        kbtrain.load_gate(**{"folder": folder, **given})


def test_a_run_folder_names_the_gates_in_it(folder, capsys):
    says = rf"{folder.parent}: a folder of gates, no gate itself; give one of them: {folder}$"
    with pytest.raises(UserError, match=says):
        kbtrain.load_gate(folder.parent)
    assert cli.main(["decide", str(folder.parent), "Who?"]) == 2
    assert f"give one of them: {folder}\n" in capsys.readouterr().err


class AllKnowing(Gate):
    name = "all"
    needs_evidence = True

    def score_examples(self, examples):
        return [0.5 for _ in examples]


def test_scores_of_another_package_s_array_are_plain_numbers_and_as_many_as_examples(tmp_path):
    class OfArray(AllKnowing):
        needs_evidence = False
        extra = 0

        def score_examples(self, examples):
            return np.full(len(examples) + self.extra, 0.25)

    (decided,) = OfArray().decide(["Why?"], 0.0)
    assert type(decided.score) is float and decided.retrieve is True
    assert OfArray().needs_retrieval("Why?", 0.0) is True
    OfArray.extra = 1
    with pytest.raises(UserError, match="gate 'all': 3 scores for 2 examples"):
        OfArray().score(["Why?", "Who?"])


def test_log_odds_are_stated_as_probabilities_and_other_units_not():
    class LogOdds(AllKnowing):
        needs_evidence = False
        unit = "log odds"

    assert LogOdds().decide(["Why?"], 0.0)[0].probability == pytest.approx(0.622459, abs=1e-6)
    assert AllKnowing().decide([GateExample.ask("Why?", "Because.")], 0.5)[0] == Decision(
        0.5, None, 0.5, False, "below-threshold"
    )


def test_the_command_reads_arguments_files_and_standard_input(folder, tmp_path, capsys, monkeypatch):
    path = tmp_path / "asked.jsonl"
    path.write_text('{"question": "Who wrote it?"}\nWhen was the tower built?\n\n')
    given = ["decide", "--key", "benefit", "--threshold", "0.5", str(folder)]
    assert cli.main([*given, *TEXTS[:2]]) == 0
    by_arguments = capsys.readouterr().out
    assert cli.main(["decide", str(folder), *given[1:-1], *TEXTS[:2]]) == 0
    assert capsys.readouterr().out == by_arguments
    assert cli.main(["decide", str(folder), TEXTS[0], *given[1:-1], TEXTS[1]]) == 0
    assert capsys.readouterr().out == by_arguments
    assert cli.main([*given, "Who?", "--loud"]) == 2
    assert "unrecognized arguments: --loud; see 'kbtrain --help'" in capsys.readouterr().err
    assert cli.main([*given, "--file", str(path)]) == 0
    assert capsys.readouterr().out == by_arguments
    with open(path, encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert cli.main(given) == 0
    rows, streamed = (
        [json.loads(line) for line in text.splitlines()] for text in (by_arguments, capsys.readouterr().out)
    )
    for row, one_by_one in zip(rows, streamed, strict=True):  # a batch of another size moves the last digits
        close = {name: pytest.approx(row[name]) for name in ("score", "probability")}
        assert one_by_one == row | close
    assert [row["text"] for row in rows] == TEXTS[:2]
    assert set(rows[0]) == {"text", "gate", "score", "probability", "threshold", "retrieve", "reason"}
    assert cli.main(["decide", str(folder), "Who?"]) == 2
    assert "no threshold in its gate.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "field", "said"),
    [
        ('{"answer": "me"}', None, "in:71: no field 'question' or 'text'"),
        ('{"question": ', None, "in:71: broken JSON"),
        ("1,Why?", "asked", "in:71: no JSON object; --field names a field of JSON lines"),
        ('{"question": "\u3000"}', None, "in:71: field 'question': empty; expected a question$"),
        ('{"text": ""}', None, "in:71: field 'text': empty; expected a question$"),
        ('""', None, "in:71: empty; expected a question$"),
        (r'"half \ud83d"', None, r"in:71: half of a surrogate pair \(broken"),
    ],
)
def test_a_line_that_holds_no_question_is_named(line, field, said):
    asked = '{"asked": "Who?"}' if field else "Who?"
    with pytest.raises(UserError, match=f"^{said}"):
        list(read_inputs([*[asked] * 70, line], "in", field=field))


def test_a_line_may_be_a_json_text_and_a_quotation_stays_one():
    lines = ['\ufeff"Who wrote it?"', '"Hamlet" was written by whom?', '{"prompt": "Why?", "text": 3}']
    assert list(read_inputs(lines[:2], "in")) == ["Who wrote it?", '"Hamlet" was written by whom?']
    assert list(read_inputs(lines[2:], "in", field="prompt")) == ["Why?"]
    with pytest.raises(UserError, match="in:1: no field 'question' or 'text' with a text in it; there is prompt, text"):
        list(read_inputs(lines[2:], "in"))


def test_rows_of_a_table_are_questions_by_their_column(folder, tmp_path, capsys):
    path = tmp_path / "logs.csv"
    path.write_text('id,asked,source\n1,"Who, then,\nwrote it?",shop\n2,Why?, \n')
    given = ["decide", str(folder), "--threshold", "0.5", "--file", str(path)]
    assert cli.main([*given, "--field", "asked"]) == 0
    texts = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert texts == ["Who, then,\nwrote it?", "Why?"]
    assert cli.main(given) == 2
    lacks = "logs.csv:2: no column 'question' or 'text'; there is id, asked, source: name it by --field"
    assert lacks in capsys.readouterr().err
    assert [getattr(value, "source", None) for value in read_questions_file(path, "asked")] == ["shop", None]
    (line,) = read_inputs(['{"text": "Where?", "source": " shop"}'], "in")
    assert line.source == "shop"
    found = GateExample.ask("Where?", hits=[Hit("p", "", "There.", 1.0)])
    assert [row["id"] for row in decisions(AllKnowing(), [found], 0.5)] == ["Where?"]
    for group in ([line], [found, line]):
        with pytest.raises(UserError, match="gate 'all': needs retrieved text; a bare question is not enough"):
            list(decisions(AllKnowing(), group, 0.5))


def test_a_dash_is_standard_input_and_what_is_no_text_there_is_one_line(folder, monkeypatch, capsys):
    given = ["decide", str(folder), "--threshold", "0.5"]
    for more in (["-"], ["--file", "-"]):
        monkeypatch.setattr("sys.stdin", io.StringIO('"Who?"\nWhen?'))
        assert cli.main([*given, *more]) == 0
        assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["Who?", "When?"]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert cli.main(given) == 2
    assert "standard input: no question in it" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", None)
    assert cli.main(given) == 2
    assert "standard input: closed; give texts or --file" in capsys.readouterr().err
    for number in ("nan", "inf", "much"):
        assert cli.main(["decide", str(folder), "--threshold", number, "Who?"]) == 2
        assert f"argument --threshold: expected a finite number, found '{number}'" in capsys.readouterr().err


def test_lines_are_answered_as_they_come():
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as stream, open(writing, "wb", buffering=0) as pipe:
        came = arriving(stream)
        pipe.write(b"Who?\nWhe")
        assert next(came) == ["Who?"]  # nothing else is waited for
        pipe.write(b"re?\n\xff\n")
        pipe.close()
        with pytest.raises(UserError, match="standard input: not UTF-8 text"):
            list(came)
