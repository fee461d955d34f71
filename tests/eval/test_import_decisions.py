"""Another system's decisions become rows of our tables; every mistake is told with its place."""

import json
import re
from unittest.mock import Mock

import pytest
from support.scripts import here, load

from kbtrain.errors import UserError
from kbtrain.evaluation.scores import added_gates, read_scores, write_imported
from kbtrain.io import jsonl
from kbtrain.io.jsonl import write
from kbtrain.io.provenance import meta_path, write_meta
from kbtrain.records import GateScore, Outcome

read_decisions = load("eval/import_decisions.py").read_decisions


def stored(folder, *rows):
    path = folder / "theirs.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def test_scores_words_and_choices_are_numbers(tmp_path):
    path = stored(tmp_path, {"id": "a", "s": 0.5}, {"id": "b", "s": "Yes"}, {"id": "c", "s": False}, {"id": "d"})
    found = read_decisions(path, "id", "s", {})
    assert [(one.id, one.score) for one in found.rows] == [("a", 0.5), ("b", 1.0), ("c", 0.0)] and found.without == 1
    path = stored(tmp_path, {"qid": 7, "t5": {"option": "C"}}, {"qid": 8, "t5": {"option": "A"}})
    found = read_decisions(path, "qid", "t5.option", {"A": 0, "B": 1, "C": 1})
    assert [(one.id, one.score) for one in found.rows] == [("7", 1.0), ("8", 0.0)]


def test_a_table_of_scores_is_read_and_its_empty_cells_are_counted(tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_text("id,score\na,0.5\nb, \nc,yes\n")
    found = read_decisions(path, "id", "score", {})
    assert [(one.id, one.score) for one in found.rows] == [("a", 0.5), ("c", 1.0)] and found.without == 1
    path.write_text("id,score\na,much\n")
    with pytest.raises(UserError, match=r"theirs\.csv:2: field 'score': expected a number, found str 'much'"):
        read_decisions(path, "id", "score", {})


@pytest.mark.parametrize(
    ("row", "choices", "message"),
    [
        ({"s": 1}, {}, "id': missing; there is s; --id names the column; the ids are those of RUN/questions.jsonl"),
        ({"id": "a", "s": 1}, {}, "id': duplicate 'a', first in line 1"),
        ({"id": "b", "s": "perhaps"}, {}, "s': expected a number, found str 'perhaps'"),
        ({"id": "b", "s": [1]}, {}, "s': expected a number"),
        ({"id": "b", "s": "D"}, {"1": 0, "A": 0}, "s': no number for 'D' in choices"),
    ],
)
def test_a_mistake_is_named_by_file_line_and_field(tmp_path, row, choices, message):
    with pytest.raises(UserError) as error:
        read_decisions(stored(tmp_path, {"id": "a", "s": 1}, row), "id", "s", choices)
    assert "theirs.jsonl:2" in str(error.value) and message in str(error.value)


@pytest.mark.parametrize("name", ["oracle", "random", "llm_only", "a" * 101, "Theirs", "a b", "é", "", "a\nb", "../x"])
def test_a_name_that_results_cannot_hold_is_one_line_before_anything_is_read(name, tmp_path):
    done = here("eval/import_decisions.py", "--run", tmp_path, "--path", tmp_path / "none.jsonl", f"--gate={name}")
    assert done.returncode == 2 and done.stderr.startswith("error: key 'gate': ") and done.stderr.count("\n") == 1
    assert len(done.stderr) < 400


def test_a_model_s_own_calls_are_read_from_a_log_and_compared_with_what_a_search_changed(tmp_path):
    def call(name):
        return {"type": "function", "function": {"name": name, "arguments": "{}"}}

    calls = [[call("web_search")], [call("get_weather")], None, [{"name": "web_search"}, "clock"], ["search_docs"], []]
    rows = [{"id": f"q{i}", "message": {"tool_calls": value}} for i, value in enumerate(calls)]
    path = stored(tmp_path, *rows, {"id": "q6"})
    found = read_decisions(path, "id", "message.tool_calls", {}, ["*search*"])
    assert [one.score for one in found.rows] == [1, 0, 0, 1, 1, 0, 0] and found.without == 0
    assert read_decisions(stored(tmp_path, {"id": "a", "c": {"t": None}}), "id", "c.t", {}, ["*"]).rows[0].score == 0
    with pytest.raises(UserError, match=r"no row has 'message\.tool_cals'"):
        read_decisions(path, "id", "message.tool_cals", {}, ["*search*"])
    with pytest.raises(UserError, match=r"theirs\.jsonl:1: field 'c': expected a list of calls, found"):
        read_decisions(stored(tmp_path, {"id": "a", "c": "web_search"}), "id", "c", {}, ["*"])
    # of the three calls one mends (q0), one breaks (q3), one changes nothing (q4); q1 is mended, too: missed
    right = [(False, True), (False, True), (True, True), (True, False), (False, False), (True, True), (True, True)]
    outcomes = [Outcome(f"q{i}", "test", None, llm, rag, None, None, 1, 1) for i, (llm, rag) in enumerate(right)]
    said = load("eval/import_decisions.py").beside_benefit("own", outcomes, {one.id: one.score for one in found.rows})
    assert said == (
        "own, on 7 test questions: 3 of 7 (43 % [16, 75]) with a search; needless 2 of 3 (67 % [21, 94]) of these, 1 "
        "right answers broken; missed 1 of 2 (50 % [9, 91]) that a search fixes"
    )


def as_gate(run, rows, *more):
    path = run.parent / "theirs.csv"
    path.write_text("id,score\n" + "".join(f"{id_},{score!r}\n" for id_, score in rows))
    return here("eval/import_decisions.py", "--run", run, "--path", path, "--gate", "theirs", "--as-gate", *more)


def test_as_a_gate_it_stands_in_the_results_with_all_that_they_say_of_a_gate(script, run_folder):
    rows = list(read_scores(run_folder / "scores/gates.jsonl")["kbm_benefit"].items())
    assert as_gate(run_folder, rows, "--seconds", 0.5).returncode == 0
    end_to_end = script("end_to_end")
    end_to_end.main(end_to_end.EndToEndConfig(run=run_folder, bootstrap_draws=200))
    gates = {gate["gate"]: gate for gate in json.loads((run_folder / "results.json").read_text())["gates"]}
    theirs, own = gates["theirs"], gates["kbm_benefit"]
    for gate in (theirs, own):
        gate.pop("gate")
    costs = {"gate_seconds": 100.0, "gate_requests": 0, "llm_requests": 200}  # of 200 questions, and their answers
    assert theirs.pop("cost") == {**own.pop("cost"), **costs}
    assert theirs.pop("p_vs_random") == own.pop("p_vs_random") and theirs["accuracy"] > 0.5
    assert theirs == own


def test_as_a_gate_its_costs_are_asked_for_and_it_may_be_imported_again(run_folder):
    rows = list(read_scores(run_folder / "scores/gates.jsonl")["prompt"].items())
    done = as_gate(run_folder, rows, "--as-gate", "false")
    assert done.returncode == 0 and (run_folder / "imported_scores.jsonl").exists()
    for _ in range(2):  # replaces the scores of the import without as_gate, and its own, killed before their metadata
        done = as_gate(run_folder, rows)
        meta_path(run_folder / "scores" / "theirs.jsonl").unlink()
        assert done.returncode == 0 and "in tables of costs its decisions are free; give the time" in done.stdout
    assert read_scores(run_folder / "scores" / "theirs.jsonl") == {"theirs": dict(rows)}
    assert not (run_folder / "imported_scores.jsonl").exists()
    for name in ("one", "two", "two"):  # the last one after a kill
        meta_path(run_folder / "imported_scores.jsonl").unlink(missing_ok=name == "one")
        assert as_gate(run_folder, rows, "--as-gate", "false", "--gate", name).returncode == 0
    assert added_gates(run_folder / "imported_scores.jsonl") == ["one", "two"]


@pytest.mark.parametrize(
    ("spoil", "more", "says"),
    [
        (lambda run, rows: rows.pop(), (), r"key 'as_gate': .*no score for 1 question \(test-199\) of dev and test"),
        (lambda run, rows: None, ("--gate", "own"), r"key 'gate': 'own' is there already \(.*/own\); import it under"),
        (lambda run, rows: None, ("--as-gate", "false", "--gate", "own"), r"key 'gate': 'own' is there already"),
        (lambda run, rows: None, ("--gate", "kbm"), r"key 'gate': 'kbm' is there already \(.*/scores/kbm\.jsonl\)"),
        (lambda run, rows: None, ("--as-gate", "false", "--seconds", 1), "key 'seconds': applies only with as_gate"),
    ],
)
def test_as_a_gate_it_takes_every_question_and_a_name_of_its_own(run_folder, spoil, more, says):
    rows = list(read_scores(run_folder / "scores/gates.jsonl")["prompt"].items())
    (run_folder / "own").mkdir()
    (run_folder / "own" / "gate.json").write_text("{}")
    write(run_folder / "scores" / "kbm.jsonl", [GateScore("dev-0", "kbm_other", 1.0)])
    spoil(run_folder, rows)
    done = as_gate(run_folder, rows, *more)
    assert done.returncode == 2 and re.search(says, done.stderr) and done.stderr.count("\n") == 1
    assert not (run_folder / "scores" / "theirs.jsonl").exists()


def test_what_a_killed_import_notes_first_holds_whichever_scores_are_there(tmp_path, monkeypatch):
    path = tmp_path / "imported_scores.jsonl"
    jsonl.write(path, [GateScore("q", gate, 1.0) for gate in ("a", "old")])
    write_meta(path, stage="import_answers", config=None, inputs=[])
    for added in ([], ["old"]):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(jsonl, "write", Mock(side_effect=KeyboardInterrupt))
            write_imported(path, [], added)
        assert (added_gates(path), list(read_scores(path))) == (added, ["a", "old"])
