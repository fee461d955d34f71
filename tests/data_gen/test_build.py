"""data_gen/build.py: examples as labelled, and no test question in the training set; export.py: what is stored."""

import dataclasses
import json

import pytest
from support.files import keep_change

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import file_sha256, meta_path, read_meta
from kbtrain.io.store import SampleStore
from kbtrain.records import GateExample, Label, Question, SampleSet


@pytest.fixture
def labelled(run_folder, label):
    label(run_folder)
    return run_folder


def add(run, *more):
    """Add questions as if they had been there when the labels were made."""
    source, meta = run / "questions.jsonl", meta_path(run / "labels.jsonl")
    jsonl.write(source, [*jsonl.read(Question, source), *more])
    if meta.exists():
        noted = json.loads(meta.read_text())
        meta.write_text(json.dumps({**noted, "inputs": {**noted["inputs"], source.name: file_sha256(source)}}))


def test_the_command_writes_three_files_with_meta(labelled, script):
    done = script("build", "--run", str(labelled))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("20 train, 5 dev, 5 test examples; skipped: nothing;")
    assert done.stdout.count("\n") == 1
    train = list(jsonl.read(GateExample, labelled / "examples" / "train.jsonl"))
    labels = list(jsonl.read(Label, labelled / "labels.jsonl"))
    assert [made.soft_mastery for made in train] == [made.llm.mastery for made in labels]
    assert [made.benefit for made in train] == [i % 11 < 5 for i in range(20)]
    assert [made.soft_benefit for made in train] == pytest.approx([1 - (i % 11) / 10 for i in range(20)])
    test = list(jsonl.read(GateExample, labelled / "examples" / "test.jsonl"))
    assert [made.id for made in test] == [f"test-{i}" for i in range(5)]
    assert all(made.mastery is made.soft_mastery is made.benefit is None for made in test)
    meta = read_meta(labelled / "examples" / "train.jsonl")
    assert meta["n_records"] == 20 and meta["label_rule"]["tau_mastery"]["value"] == 0.2
    assert meta["train_classes"]["benefit"] == {"False": 10, "True": 10}


def test_examples_of_questions_in_any_order_stand_in_that_of_their_split(labelled, build):
    before = build(labelled)
    rows = list(jsonl.read(Question, labelled / "questions.jsonl"))
    mixed = [row for rest in range(3) for row in rows if not row.id.startswith("train") and int(row.id[-1]) % 3 == rest]
    train = iter([row for row in rows if row.split == "train"])
    both = [one for other in mixed for one in (other, next(train))] + list(train)
    jsonl.write(labelled / "questions.jsonl", both)
    add(labelled)
    after = build(labelled)
    assert after["train"] == before["train"] and set(after["dev"]) == set(before["dev"]) != []
    assert [made.question_id for made in after["test"]] == [row.id for row in both if row.split == "test"]


@pytest.mark.parametrize("other", ["questions.jsonl", "samples.db"])
def test_labels_of_other_questions_or_answers_are_made_again_before_examples_are(labelled, build, other):
    if other == "samples.db":
        with SampleStore(labelled / other) as store:
            store.begin("more answers", {})
    else:
        rows = list(jsonl.read(Question, labelled / other))
        jsonl.write(labelled / other, [dataclasses.replace(rows[0], answers=("other",)), *rows[1:]])
    with pytest.raises(UserError, match=rf"labels\.jsonl: made from another {other}; run data_gen/label\.py again$"):
        build(labelled)


def test_questions_without_gold_answers_are_labelled_and_taught_by_their_certainty(run_folder, label, build, books):
    add(run_folder, *(dataclasses.replace(books.question(i, "train"), id=f"open-{i}", text=f"Who is {i}?", answers=(),
                                          gold="none") for i in range(3)))  # fmt: skip
    with SampleStore(run_folder / "samples.db") as store:
        for i in range(3):
            asked = dataclasses.replace(books.question(i, "train"), id=f"open-{i}")
            store.put("main", [books.sample_set(asked, condition, 5 + i) for condition in ("llm", "rag")])
    labels = label(run_folder)[-3:]
    assert {(made.known, made.benefit, made.llm.mastery, made.llm.n_groups) for made in labels} == {
        (None, None, None, 2)
    }
    assert read_meta(run_folder / "labels.jsonl")["counts"]["labels_without_gold"] == 3
    made = build(run_folder)["train"][-3:]
    assert [(item.id, item.mastery, item.benefit) for item in made] == [(f"open-{i}", None, None) for i in range(3)]
    assert all(item.soft_certainty is not None for item in made)


def test_reference_examples_stand_beside_the_plain_ones(labelled, build):
    made = build(labelled, keys=["mastery", "certainty"], with_reference=True)
    assert [item.id for item in made["train"][:4]] == ["train-0", "train-0#reference", "train-1", "train-1#reference"]
    plain, with_reference = made["train"][2:4]
    assert (plain.reference, plain.soft_mastery, plain.mastery) == (None, 0.1, False)
    text = "Passage about train-1."
    assert (with_reference.reference, with_reference.soft_mastery, with_reference.mastery) == (text, 0.9, True)
    assert len(made["train"]) == 40 and len(made["test"]) == 10
    assert made["test"][1].reference == "Passage about test-0."


@pytest.mark.parametrize("split", ["dev", "test"])
@pytest.mark.parametrize(
    "text", ["Who wrote train book 3?", "  who WROTE the train book 3 ", "Ｗho wrote train book 3？"]
)
def test_a_training_question_in_dev_or_test_stops_the_build(labelled, build, books, split, text):
    add(labelled, dataclasses.replace(books.question(99, split), text=text))
    with pytest.raises(UserError) as caught:
        build(labelled)
    expected = f"questions.jsonl:4: training question 'train-3' is also in dev or test as '{split}-99' (line 31); "
    assert expected in str(caught.value) and "\n" not in str(caught.value)
    assert not (labelled / "examples").exists()
    made = build(labelled, on_leak="drop")
    assert "train-3" not in [item.id for item in made["train"]] and len(made["train"]) == 19
    assert read_meta(labelled / "examples" / "train.jsonl")["left_out"]["leaked training questions"] == 1


def test_reordered_options_are_a_leak_and_other_options_are_none(labelled, build, books):
    stem = dataclasses.replace(books.question(50, "train"), form="choice", grading="option", answers=("A",))
    train = dataclasses.replace(stem, text="Which is true?", options=("One", "Two"))
    other = dataclasses.replace(train, id="t-1", split="test", options=("Three", "Four"))
    add(labelled, train, other)
    assert len(build(labelled)["train"]) == 20  # no label for the new one
    add(labelled, dataclasses.replace(train, id="t-2", split="test", options=("two", "one")))
    with pytest.raises(
        UserError, match=r":31: training question 'train-50' is also in dev or test as 't-2' \(line 33\)"
    ):
        build(labelled)


def test_training_examples_without_all_targets_are_left_out_and_counted(labelled, build):
    labels = list(jsonl.read(Label, labelled / "labels.jsonl"))
    lost = {"rag": None, "known_rag": None, "certain_rag": None, "benefit": None}
    jsonl.write(labelled / "labels.jsonl", [dataclasses.replace(labels[0], **lost), *labels[1:]])
    keep_change(labelled / "labels.jsonl")
    assert len(build(labelled)["train"]) == 19
    left_out = read_meta(labelled / "examples" / "train.jsonl")["left_out"]
    assert left_out["train examples without all targets"] == 1
    assert len(build(labelled, keys=["mastery"])["train"]) == 20


def test_a_run_to_be_scored_needs_no_training_question(labelled, build):
    for name, kind in (("questions.jsonl", Question), ("labels.jsonl", Label)):
        kept = [item for item in jsonl.read(kind, labelled / name) if item.split != "train"]
        jsonl.write(labelled / name, kept)
    keep_change(labelled / "labels.jsonl")
    made = build(labelled)
    assert [len(made[split]) for split in ("train", "dev", "test")] == [0, 5, 5]


def test_labels_of_other_questions_order_or_split_are_one_line(labelled, build):
    path = labelled / "labels.jsonl"
    labels = list(jsonl.read(Label, path))
    jsonl.write(path, [labels[1], labels[0], *labels[2:]])
    keep_change(path)
    with pytest.raises(
        UserError, match=r"labels\.jsonl:2: field 'question_id': question 'train-0' is missing, repeated"
    ):
        build(labelled)
    jsonl.write(path, [dataclasses.replace(labels[0], split="test"), *labels[1:]])
    with pytest.raises(UserError, match=r"labels\.jsonl:1: field 'split': question 'train-0' is in train now"):
        build(labelled)


def test_an_export_holds_every_answer(run_folder, script):
    out = run_folder / "out" / "samples.jsonl"
    done = script("export", "--store", str(run_folder / "samples.db"), "--output", str(out))
    assert done.returncode == 0, done.stderr
    with SampleStore(run_folder / "samples.db", read_only=True) as store:
        stored = list(store.iterate("main"))
    assert list(jsonl.read(SampleSet, out)) == stored and read_meta(out)["n_records"] == len(stored)
    done = script("export", "--store", str(run_folder / "samples.db"), "--output", str(out.with_suffix(".parquet")))
    assert done.returncode == 2 and "cannot export to '.parquet'; name a .jsonl file" in done.stderr
