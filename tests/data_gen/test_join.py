"""Training mixes: the examples of several runs as one run, with leaks looked for across all of them."""

from dataclasses import replace

import pytest
from support.scripts import load

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_examples, write_meta
from kbtrain.records import GateExample
from kbtrain.training.data import label_rule, read_data


def examples(run, rule=0.5, **splits):
    for split in ("train", "dev", "test"):
        path = run / "examples" / f"{split}.jsonl"
        rows = [
            GateExample(f"q{split}{i}", f"q{split}{i}", split, text, "en", None, mastery=i % 2 == 0)
            for i, text in enumerate(splits.get(split, []))
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        jsonl.write(path, rows)
        write_meta(path, stage="build", config=None, inputs=[], extra={"label_rule": {"tau_mastery": rule}})
    return run


def join(runs, out, **keys):
    script = load("data_gen/join.py")
    script.main(script.JoinConfig(runs=runs, output=out, **keys))


def test_joined_runs_train_together_and_tell_their_shares(tmp_path):
    one = examples(tmp_path / "mmlu", train=["Who?", "3 + 4?", "3 - 4?"], dev=["How?"])
    two = examples(tmp_path / "xiezhi", train=["Where?"], dev=["What?"], test=["Whose?"])
    join([one, two], tmp_path / "mix")
    folder = tmp_path / "mix" / "examples"
    data = read_data(folder / "train.jsonl", folder / "dev.jsonl", ("mastery",), "hard")
    assert [row.id for row in data.train] == ["mmlu/qtrain0", "mmlu/qtrain1", "mmlu/qtrain2", "xiezhi/qtrain0"]
    assert [row.question for row in data.dev] == ["How?", "What?"]
    assert label_rule(folder / "train.jsonl") == {"tau_mastery": 0.5, "sources": {"mmlu": 0.75, "xiezhi": 0.25}}
    with pytest.raises(UserError, match=r"made by a join; .* join all of them at once"):
        join([tmp_path / "mix", two], tmp_path / "again")
    examples(tmp_path / "mmlu", train=["Who else?"])
    with pytest.raises(UserError, match=r"mix/examples/train.jsonl: made from another dev.jsonl; run data_gen/join.py"):
        check_examples(folder / "train.jsonl")
    (one / "labels.jsonl").write_text("labels")
    write_meta(one / "examples" / "dev.jsonl", stage="build", config=None, inputs=[one / "labels.jsonl"])
    (one / "labels.jsonl").write_text("labelled again")
    with pytest.raises(UserError, match=r"mmlu/examples/dev.jsonl: made from another labels.jsonl"):
        join([one, two], tmp_path / "mix")


def test_multiple_choice_with_its_options_in_another_order_is_the_same_question(tmp_path):
    one = examples(tmp_path / "mmlu", train=["Which?\nA. Red\nB. Blue", "Which?\nA. Red\nB. Green"])
    two = examples(tmp_path / "xiezhi", train=["Where?"], dev=["How?"], test=["which?\nA. blue\nB. red"])
    with pytest.raises(UserError, match="train question 'mmlu/qtrain0' is also in test as 'xiezhi/qtest0'"):
        join([one, two], tmp_path / "mix")
    join([one, two], tmp_path / "mix", on_leak="drop")
    folder = tmp_path / "mix" / "examples"
    data = read_data(folder / "train.jsonl", folder / "dev.jsonl", ("mastery",), "hard")
    assert [row.id for row in data.train] == ["mmlu/qtrain1", "xiezhi/qtrain0"]


def test_a_leak_between_two_runs_is_refused_or_dropped_from_training(tmp_path, capsys):
    one = examples(tmp_path / "mmlu", train=["Who?", "When?"], dev=["How?"])
    two = examples(tmp_path / "xiezhi", train=["Where?", "when?"], test=["who ?", "HOW"])
    with pytest.raises(UserError, match="dev question 'mmlu/qdev0' is also in test as 'xiezhi/qtest1'"):
        join([one, two], tmp_path / "mix")
    join([one, two], tmp_path / "mix", on_leak="drop")
    folder = tmp_path / "mix" / "examples"
    assert [row.question for row in jsonl.read(GateExample, folder / "train.jsonl")] == ["When?", "Where?"]
    assert not list(jsonl.read(GateExample, folder / "dev.jsonl"))
    assert len(list(jsonl.read(GateExample, folder / "test.jsonl"))) == 2
    assert "1 train examples that stand in test, 1 train examples that another run has, too" in capsys.readouterr().out


def test_labels_by_different_rules_are_not_joined(tmp_path):
    one = examples(tmp_path / "mmlu", train=["Who?"])
    two = examples(tmp_path / "xiezhi", rule=0.7, train=["Where?"])
    with pytest.raises(UserError, match=r"labels were made with tau_mastery 0\.7, those of .* with 0\.5"):
        join([one, two], tmp_path / "mix")


def labelled(run, **rule):
    """A run of a training question whose labels were made by the rule as data_gen/label.py notes it."""
    path = examples(run, train=[f"Who of {run.name}?"]) / "examples" / "train.jsonl"
    noted = {"by": "samples", "cut": {"rule": "keep", "share": {"llm": 0.01}}, "mastery_step": {"train": 1 / 30}}
    write_meta(path, stage="build", config=None, inputs=[], extra={"label_rule": noted | rule})
    return run


def test_labels_about_two_models_are_not_joined(tmp_path):
    """The gate would learn that a question is known and that it is not."""
    runs = [labelled(tmp_path / name) for name in ("mmlu", "xiezhi", "webqa")]
    for run, model in zip(runs, ("Qwen/Qwen2-7B", "/models/Qwen2-7B/", "Llama-2-13b"), strict=True):
        jsonl.write(run / "labels.jsonl", [])
        write_meta(run / "labels.jsonl", stage="label", config=None, inputs=[], extra={"sampling": {"model": model}})
    with pytest.raises(UserError, match=r"webqa/labels\.jsonl: labels describe answers of 'Llama-2-13b', .*mmlu"):
        join(runs, tmp_path / "mix")
    join(runs[:2], tmp_path / "mix")


def about(run, **entities):
    """A run of one question a split, each about one entity."""
    folder = examples(run, **{split: [f"{split} of {run.name}?"] for split in entities}) / "examples"
    for split, entity in entities.items():
        path = folder / f"{split}.jsonl"
        jsonl.write(path, [replace(row, entities=(entity,)) for row in jsonl.read(GateExample, path)])
        write_meta(path, stage="build", config=None, inputs=[], extra={"label_rule": {"tau_mastery": 0.5}})
    return run


def test_an_entity_of_another_runs_test_questions_is_a_leak_too(tmp_path, capsys):
    one = about(tmp_path / "mmlu", train="Q1", dev="Q2")
    two = about(tmp_path / "xiezhi", train="Q3", test="Q1")
    message = "train question 'mmlu/qtrain0' asks about an entity of test question 'xiezhi/qtest0'.*on_shared_entity"
    with pytest.raises(UserError, match=message):
        join([one, two], tmp_path / "mix", on_leak="drop")
    for rule, left in (("drop", 1), ("keep", 2)):
        join([one, two], tmp_path / rule, on_shared_entity=rule)
        assert len(list(jsonl.read(GateExample, tmp_path / rule / "examples" / "train.jsonl"))) == left
    assert "1 train examples that share an entity with test (kept)" in capsys.readouterr().out
