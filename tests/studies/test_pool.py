"""Pooled data sets: groups, a split that keeps subjects together, even parts, and the screening's rule."""

import random
from collections import Counter

import pytest
from pooled_questions import PoolRule, candidates, even_parts
from support.scripts import load

from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta
from kbtrain.io.store import SampleStore
from kbtrain.records import Question, Sample, SampleSet


def questions(dataset, n, **more):
    return [Question(f"{dataset}/{i}", f"{dataset} {i}?", ("yes",), "test", dataset, **more) for i in range(n)]


def run_of(folder, rows):
    folder.mkdir()
    jsonl.write(folder / "questions.jsonl", rows)
    return folder


def answered(folder, right):
    """A store of greedy answers in which the groups in ``right`` are right."""
    with SampleStore(folder / "samples.db") as store:
        store.begin("main", {})
        for question in jsonl.read(Question, folder / "questions.jsonl"):
            greedy = Sample(-1, "yes" if question.relation in right else "no", 1, "eos", -0.1)
            store.put("main", [SampleSet(question.id, "llm", (), greedy, 5)])


def pool(runs, output, **keys):
    script = load("studies/pool.py")
    script.main(script.PoolConfig(runs=runs, output=output, **keys))


@pytest.mark.parametrize(
    ("sizes", "n", "parts"),
    [
        ({"a": 10, "b": 10, "c": 10}, 12, {"a": 4, "b": 4, "c": 4}),
        ({"a": 2, "b": 10, "c": 4}, 12, {"a": 2, "b": 6, "c": 4}),  # what a and c lack, b gives
        ({"a": 2, "b": 1}, 12, {"a": 2, "b": 1}),
        ({"a": 5, "b": 5}, 3, {"a": 1, "b": 2}),
    ],
)
def test_what_a_small_group_lacks_the_larger_ones_give(sizes, n, parts):
    assert even_parts(sizes, n) == parts


def test_a_component_of_most_questions_is_cut_and_still_no_subject_is_in_two_splits():
    """Two of 400 entities a question join nearly all 600: one split would hold them, and dev and test almost none."""
    draw, names = random.Random(0), [f"Q{n}" for n in range(400)]
    pairs = [tuple(draw.sample(names, 2)) for _ in range(600)]
    rows = [Question(f"q{i}", f"q{i}?", ("a",), "dev", "2wiki", entities=pair) for i, pair in enumerate(pairs)]
    left_out: Counter[str] = Counter()
    (group,) = candidates(rows, PoolRule((0.5, 0.2, 0.3), {}), left_out).values()
    splits: dict[str, set[str]] = {}
    for row in group:
        for name in row.entities:
            splits.setdefault(name, set()).add(row.split)
    assert all(len(found) == 1 for found in splits.values())
    counts = Counter(row.split for row in group)
    assert min(counts.values()) > 20 and max(counts.values()) < 300
    assert left_out == {"between splits": 600 - len(group)}


def test_a_group_that_the_model_does_not_know_is_left_out_by_training_answers_alone(tmp_path, capsys):
    runs = [run_of(tmp_path / name, questions(name, 80)) for name in ("known", "strange")]
    pool(runs, tmp_path / "screen", train=20, dev=0, test=0)
    screened = list(jsonl.read(Question, tmp_path / "screen" / "questions.jsonl"))
    assert Counter((row.dataset, row.split) for row in screened) == {("known", "train"): 10, ("strange", "train"): 10}
    answered(tmp_path / "screen", {"known"})
    pool(runs, tmp_path / "out", screened=tmp_path / "screen", train=12, dev=4, test=8)
    rows = list(jsonl.read(Question, tmp_path / "out" / "questions.jsonl"))
    assert Counter(row.split for row in rows) == {"train": 12, "dev": 4, "test": 8}
    assert {row.relation for row in rows} == {"known"}
    meta = read_meta(tmp_path / "out" / "questions.jsonl")
    assert meta["left_out"] == ["strange"] and meta["screening"]["known"] == {
        "right": 10, "n": 10, "guessed": 0, "share": 1,
    }  # fmt: skip
    assert "strange: 0 of 10 right, 0% by guessing: 0.0% known, skipped" in capsys.readouterr().out
    # the screened questions are training questions of the pool, too: the split hangs on ids and subjects alone
    assert {row.id: row.split for row in rows if row.id in {one.id for one in screened}}.keys() <= {
        row.id for row in rows if row.split == "train"
    }
