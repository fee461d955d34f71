"""A new gate is one room and one line in GATES: it is fitted, kept, opened again and decides, without a recipe."""

import json
from dataclasses import replace

import pytest
from support.length_gate import Length
from support.scripts import here
from tiny_turns import turn

import kbtrain
from kbtrain import cli
from kbtrain.gate.trained_on import trained_among
from kbtrain.gates.registry import GATES
from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta
from kbtrain.records import GateExample, GateScore


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Questions that are not mastered where they are long; the gate is in GATES."""
    monkeypatch.setitem(GATES, "length", "support.length_gate:KIND")
    for split in ("train", "dev"):
        asked = [GateExample.ask(f"What is the {split} {i}?" + " And why is that so?" * (i % 2)) for i in range(30)]
        jsonl.write(tmp_path / f"{split}.jsonl", [
            replace(e, id=f"{split}{i}", question_id=f"{split}{i}", split=split, mastery=not i % 2, benefit=i % 2 == 1)
            for i, e in enumerate(asked)
        ])  # fmt: skip
    return [
        word for name in ("train", "dev") for word in (f"--{name}", tmp_path / f"{name}.jsonl")
    ] + ["--output", tmp_path / "length", "--gate", "length", "--labels", "hard"]  # fmt: skip


@pytest.mark.parametrize("key", ["mastery", "benefit"])
def test_a_gate_of_one_room_and_one_line_is_fitted_and_decides(files, tmp_path, capsys, key):
    done = here("recipes/fit_gate.py", *files, "--key", key)
    assert done.returncode == 0, done.stderr
    assert "30 examples, fitted in" in done.stdout and "scores equal (to 0e+00)" in done.stdout
    gate = kbtrain.load_gate(tmp_path / "length")
    assert gate.score(["Who wrote it?"]) == [13.0]  # more words, more need: for both directions of the label
    assert gate.threshold is not None and gate.card.thresholds["length"].rule == "best_f1"
    assert read_meta(tmp_path / "length" / "gate.json")["dev"]["auroc"] == 1.0
    assert "## Threshold" in (tmp_path / "length" / "README.md").read_text()
    assert len(trained_among(tmp_path / "length", list(jsonl.read(GateExample, tmp_path / "train.jsonl")))) == 30
    assert cli.main(["decide", str(tmp_path / "length"), "Why?", "What is it? And why is that so, now?"]) == 0
    decided = [json.loads(line)["retrieve"] for line in capsys.readouterr().out.splitlines()]
    assert decided == [False, True]


def test_dev_chooses_the_label_that_is_learnt_and_the_card_says_so(files, tmp_path):
    # benefit is noted the wrong way round in train: only mastery's gate ranks dev's questions rightly
    rows = [replace(row, benefit=row.mastery) for row in jsonl.read(GateExample, tmp_path / "train.jsonl")]
    jsonl.write(tmp_path / "train.jsonl", rows)
    done = here("recipes/fit_gate.py", *files)
    assert done.returncode == 0, done.stderr
    run = kbtrain.load_gate(tmp_path / "length").card.run
    assert run["key"] == "mastery" and run["dev_auroc_by_key"] == {"benefit": 0.0, "mastery": 1.0}
    assert "- key: mastery" in (tmp_path / "length" / "README.md").read_text()


def test_a_training_killed_right_after_its_card_has_noted_its_questions(files, tmp_path, monkeypatch):
    """Before, such a gate was scored on its own training questions without a word."""

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("kbtrain.training.finish.write_meta", killed)
    assert here("recipes/fit_gate.py", *files).returncode == 130
    assert (tmp_path / "length" / "gate.json").exists()
    assert len(trained_among(tmp_path / "length", list(jsonl.read(GateExample, tmp_path / "train.jsonl")))) == 30


def test_another_gate_s_folder_is_not_written_over_and_the_same_command_fits_again(files):
    assert [here("recipes/fit_gate.py", *files).returncode for _ in range(2)] == [0, 0]
    done = here("recipes/fit_gate.py", *files, "--key", "benefit")
    assert done.returncode == 2
    assert 'another training is in this folder, with key = null, now it is "benefit"' in done.stderr


def test_a_folder_that_scores_otherwise_when_opened_is_not_kept(files, tmp_path, monkeypatch):
    monkeypatch.setattr(Length, "broken", True)
    done = here("recipes/fit_gate.py", *files)
    assert done.returncode == 2 and "scores differently from the trained one" in done.stderr
    assert not (tmp_path / "length" / "gate.json").exists()


@pytest.mark.parametrize("kind", ["encoder_probe", "features"])
def test_a_gate_of_questions_that_comes_along_is_fitted_to_a_run_by_its_name_alone(files, tmp_path, kind):
    run = tmp_path / "run"
    for split in ("train", "dev"):
        jsonl.write(run / "examples" / f"{split}.jsonl", list(jsonl.read(GateExample, tmp_path / f"{split}.jsonl")))
    done = here("recipes/fit_gate.py", "--gate", kind, "--run", run, "--labels", "hard")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert "30 examples, fitted in" in done.stdout and "saved, opened again, scores equal" in done.stdout
    gate = kbtrain.load_gate(run / kind)
    long, short = gate.score(["What is the dev 31? And why is that so?", "What is the dev 32?"])
    assert long > short and gate.threshold is not None
    assert gate.score(["What is the dev 32?"]) == pytest.approx([short], abs=1e-6)
    assert gate.card.run["key"] == "benefit" and gate.card.label_rule == {} and gate.card.labels == "hard"
    page = (run / kind / "README.md").read_text()
    told = {"encoder_probe": "- Stands on all-minilm-l6-v2.", "features": "- corpus: none"}
    assert "- key: benefit" in page and told[kind] in page
    if kind == "encoder_probe":
        assert gate.card.key == "benefit"


def test_turns_of_a_run_are_read_by_the_frozen_encoder_too(tmp_path):
    rows = {split: [turn(i, split) for i in range(40)] for split in ("train", "dev", "test")}
    jsonl.write(tmp_path / "turns.jsonl", [row for part in rows.values() for row in part])
    done = here("recipes/fit_gate.py", "--gate", "encoder_probe", "--run", tmp_path)
    assert done.returncode == 0 and "40 examples, fitted in" in done.stdout, done.stderr
    assert kbtrain.load_gate(tmp_path / "encoder_probe").needs_retrieval(rows["test"][0]) in (True, False)


def test_a_gate_is_not_fitted_to_what_it_does_not_read(files, tmp_path):
    jsonl.write(tmp_path / "turns.jsonl", [turn(i, split) for i in range(40) for split in ("train", "dev")])
    turns = ("--train", tmp_path / "turns.jsonl", "--dev", tmp_path / "turns.jsonl", "--output", tmp_path / "made")
    for name, given, says in (
        ("features", turns, f"error: {tmp_path}/turns.jsonl: turns; gate 'features' reads questions alone\n"),
        ("dialogue_state", files, "questions; gate 'dialogue_state' reads turns alone\n"),
    ):
        done = here("recipes/fit_gate.py", *given, "--gate", name)
        assert done.returncode == 2 and done.stderr.endswith(says) and done.stderr.count("\n") == 1


def test_the_gate_of_turns_is_fitted_by_the_same_command_and_stays_as_it_was_made(tmp_path):
    name = "dialogue_state"
    rows = {split: [turn(i, split) for i in range(40)] for split in ("train", "dev", "test")}
    jsonl.write(tmp_path / "turns.jsonl", [row for part in rows.values() for row in part])
    jsonl.write(tmp_path / "some.jsonl", [*rows["train"][:24], *rows["dev"]])
    done = here(
        "recipes/fit_gate.py", "--gate", name, "--train", tmp_path / "some.jsonl", "--dev", tmp_path / "some.jsonl",
        "--output", tmp_path / name,
    )  # fmt: skip
    assert done.returncode == 0 and "24 examples, fitted in" in done.stdout, done.stderr
    made = kbtrain.load_gate(tmp_path / name)
    scored = here("eval/score.py", "--run", tmp_path, "--only", name)
    assert scored.returncode == 0, scored.stderr
    stored = {row.question_id: row.score for row in jsonl.read(GateScore, tmp_path / "scores" / f"{name}.jsonl")}
    assert [stored[row.id] for row in rows["test"]] == pytest.approx(made.score(rows["test"]))
    assert kbtrain.load_gate(tmp_path / name).card.run == made.card.run
