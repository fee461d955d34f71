"""The stages of dialogue data as a user runs them: collect turns, make their features, score and compare gates."""

import json
import shutil

import pytest
from support import scripts
from tiny_turns import snippets, turn

import kbtrain
from kbtrain.io.jsonl import read, write
from kbtrain.io.provenance import read_meta
from kbtrain.records import GateScore, TurnExample


def run(script, *arguments, fails=False):
    done = scripts.here(str(script), *arguments)
    assert (done.returncode != 0) == fails, done.stderr[-2000:]
    return done.stderr if fails else done.stdout


def lines(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path):
    """A run folder of 24 train, 12 dev and 12 test turns with snippets."""
    sizes = {"train": 24, "dev": 12, "test": 12}
    write(tmp_path / "turns.jsonl", [turn(i, split) for split, n in sizes.items() for i in range(n)])
    write(tmp_path / "snippets.jsonl", [s for split, n in sizes.items() for i in range(n) for s in snippets(i, split)])
    return tmp_path


def test_turns_are_collected_with_their_counts_and_source(tmp_path):
    lines(tmp_path / "in" / "train.jsonl", {"context": ["Hi"], "label": True}, {"context": ["Bye"], "label": False})
    lines(tmp_path / "in" / "test.jsonl", {"context": ["Hello", "Yes?", "Who is Abba?"]})
    out = run("data_gen/collect_turns.py", "--run", tmp_path / "r", "--dataset", "jsonl", "--path", tmp_path / "in",
              "--source", "Wikipedia")  # fmt: skip
    assert out.startswith(
        "3 turns of 3 dialogues: train 2 (1 enriched), test 1 (0 enriched); 1 without a label; 0 snippets -> "
    )
    found = list(read(TurnExample, tmp_path / "r" / "turns.jsonl"))
    assert [(t.split, t.label, t.source) for t in found] == [
        ("test", None, "Wikipedia"), ("train", True, "Wikipedia"), ("train", False, "Wikipedia"),
    ]  # fmt: skip
    assert read_meta(tmp_path / "r" / "turns.jsonl")["stage"] == "collect_turns"
    own = ("--run", tmp_path / "r", "--dataset", "jsonl", "--path", tmp_path / "in", "--history", "enriched")
    assert "key 'history': only ketod" in run("data_gen/collect_turns.py", *own, fails=True)


def test_native_dialogues_come_with_their_snippets_and_bad_ones_are_one_line(tmp_path):
    one = {"speaker": "USER", "utterance": "A room in Rome."}
    two = {"speaker": "SYSTEM", "utterance": "Hotel Roma?", "enrich": True, "kg_snippets": [1]}
    passages = {"hotels : city : Rome": [["Rome", [1, "Rome is old."]]]}
    dialogue = {"dialogue_id": "7", "turns": [one, two], "entity_passages_sents": passages}
    (tmp_path / "dev.json").write_text(json.dumps([dialogue]))
    given = ("--run", tmp_path / "r", "--dataset", "ketod", "--path", tmp_path / "dev.json")
    assert "dev 1 (1 enriched); 1 snippets" in run("data_gen/collect_turns.py", *given)
    (tmp_path / "dev.json").write_text(json.dumps([{**dialogue, "turns": [one, two, two]}]))
    error = run("data_gen/collect_turns.py", *given, fails=True).splitlines()[-1]
    assert error.startswith("error: ") and "dialogue '7': turns 1 and 2 are both by SYSTEM" in error
    assert "unknown data set 'ketot'; did you mean 'ketod'" in run(
        "data_gen/collect_turns.py", *given[:3], "ketot", *given[4:], fails=True
    )


def test_passages_are_found_and_responses_generated(folder):
    words = folder / "words.jsonl"
    words.write_text('{"id": "u", "title": "", "text": "a user and a system"}\n')
    assert "no knowledge for 48" in run("data_gen/turn_features.py", "--run", folder, "--corpus", words)
    out = run("data_gen/turn_features.py", "--run", folder, "--corpus", folder / "snippets.jsonl", "--k", 2)
    assert out.startswith("48 turns; no knowledge for ")
    run("studies/turn_responses.py", "--run", folder, "--backend", "scripted", "--model", "scripted")
    museum = {t.id: t for t in read(TurnExample, folder / "turns_responses.jsonl")}["test0:1"]
    assert museum.knowledge[0].title == "museum" and museum.synthetic_response is not None
    assert len((folder / "responses.jsonl").read_text().splitlines()) == 48


def test_gates_without_training_are_scored_and_compared(folder):
    run("recipes/fit_gate.py", "--gate", "dialogue_state", "--run", folder)
    out = run("eval/score.py", "--run", folder, "--only", "[always, dialogue_state]")
    assert out.startswith("scored 24 turns with always, dialogue_state in ")
    write(folder / "gates" / "rule" / "scores.jsonl", [
        GateScore(t.id, "rule", float("about" in t.context[-1].text)) for t in read(TurnExample, folder / "turns.jsonl")
    ])  # fmt: skip
    gates = "{always: [always], dialogue_state: [dialogue_state], rule: [gates/rule, gates/rule]}"
    out = run("eval/classify.py", "--run", folder, "--gates", gates, "--compare", "rule", "--draws", 200)
    document = json.loads((folder / "classify.json").read_text())
    by_name = {gate["gate"]: gate for gate in document["gates"]}
    assert by_name["rule"]["metrics"]["f1"]["mean"] == 1
    assert by_name["rule"]["spread"]["auroc"] == 0
    assert by_name["always"]["metrics"]["precision"]["mean"] == pytest.approx(0.25)
    assert by_name["always"]["metrics"]["f1"]["mean"] == pytest.approx(0.4)
    assert {d["than"] for d in document["differences"]} == {"always", "dialogue_state"}
    assert "rule - always" in out and "12 test turns (3 enriched) of 12 dialogues" in out
    error = run("eval/classify.py", "--run", folder, "--gates", gates, "--compare", "rul", fails=True)
    assert "no gate 'rul'; did you mean 'rule'?" in error
    error = run("eval/classify.py", "--run", folder, "--gates", "{rule: [nowhere]}", fails=True)
    assert "nowhere.jsonl: no such file" in error


def test_gates_of_annotations_are_folders(folder):
    run("recipes/fit_gate.py", "--gate", "dialogue_state", "--run", folder)
    shutil.copytree(folder / "dialogue_state", folder / "other")
    assert run("eval/score.py", "--run", folder).startswith("scored 24 turns with ")
    turns = [t for t in read(TurnExample, folder / "turns.jsonl") if t.split != "train"]
    for name in ("dialogue_state", "other"):
        gate = kbtrain.load_gate(folder / name)
        stored = list(read(GateScore, folder / "scores" / f"{name}.jsonl"))
        assert [s.score for s in stored] == gate.score(turns)
        assert {s.gate for s in stored} == {name}
        noted = gate.card.thresholds[gate.name]
        assert (noted.rule, noted.n_dev, noted.threshold) == ("best_f1", 12, gate.threshold)
    error = run("eval/score.py", "--run", folder, "--only", "dialogue_stat", fails=True)
    assert "key 'only': no gate 'dialogue_stat'; did you mean 'dialogue_state'?" in error


def test_the_prompt_gate_is_scored_with_a_model(folder, tmp_path):
    from tiny_kbm import make_folder

    make_folder(tmp_path / "model")
    given = ("--run", folder, "--only", "ragate_prompt_in_context", "--dtype", "fp32")
    assert "no gate 'ragate_prompt_in_context' (give its --model)" in run("eval/score.py", *given, fails=True)
    out = run("eval/score.py", *given, "--model", tmp_path / "model")
    assert out.startswith("scored 24 turns with ragate_prompt_in_context in ")
    scores = [s.score for s in read(GateScore, folder / "scores" / "ragate_prompt_in_context.jsonl")]
    assert len(scores) == 24 and all(0 < score < 1 for score in scores)
