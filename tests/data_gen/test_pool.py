"""Pooled data sets: groups, a split that keeps subjects together, even parts, and the screening's rule."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support.scripts import here, load

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta
from kbtrain.io.store import SampleStore
from kbtrain.questions.collect import split_of
from kbtrain.questions.pool import PoolRule, candidates, count_known, draw_evenly, even_parts
from kbtrain.records import Question, Sample, SampleSet

THIRDS = (1 / 3, 1 / 3, 1 / 3)


def questions(dataset: str, n: int, **more: object) -> list[Question]:
    return [Question(f"{dataset}/{i}", f"{dataset} {i}?", ("yes",), "test", dataset, **more) for i in range(n)]  # type: ignore[arg-type]


def run_of(folder: Path, rows: list[Question]) -> Path:
    folder.mkdir()
    jsonl.write(folder / "questions.jsonl", rows)
    return folder


def answered(folder: Path, right: set[str]) -> None:
    """A store of greedy answers in which the groups in ``right`` are right."""
    with SampleStore(folder / "samples.db") as store:
        store.begin("main", {})
        for question in jsonl.read(Question, folder / "questions.jsonl"):
            text = "yes" if question.relation in right else "no"
            greedy = Sample(-1, text, 1, "eos", -0.1)
            store.put("main", [SampleSet(question.id, "llm", (), greedy, 5)])


def pool(runs: list[Path], output: Path, **keys: object) -> None:
    script = load("data_gen/pool.py")
    script.main(script.PoolConfig(runs=runs, output=output, near_duplicates="ignore", **keys))


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


def test_questions_about_one_subject_or_passage_stay_in_one_split():
    rows = [
        *(Question(f"s{i}", f"s{i}?", ("a",), "dev", "squad", gold_passages=(f"p{i % 7}",)) for i in range(70)),
        *(Question(f"q{i}", f"q{i}?", ("a",), "dev", "popqa", entities=(f"Q{i % 9}",)) for i in range(90)),
    ]
    groups = candidates(rows, PoolRule(THIRDS, {}))
    splits: dict[str, set[str]] = {}
    for row in (row for group in groups.values() for row in group):
        splits.setdefault(row.entities[0], set()).add(row.split)
    assert len(splits) == 16 and all(len(found) == 1 for found in splits.values())
    assert len(set.union(*splits.values())) == 3
    assert not any(row.gold_passages for group in groups.values() for row in group)  # of another corpus


@pytest.mark.parametrize("field", ["entities", "gold_passages"])
def test_questions_that_share_any_of_their_subjects_stay_in_one_split(field):
    pairs = [Question(f"{i}{part}", f"{i}{part}?", ("a",), "dev", "2wiki",
                      **{field: (f"own {part} of {i}", f"both {i}")})
             for i in range(60) for part in "ab"]  # fmt: skip
    links = [(f"link {i}", f"link {i + 1}") for i in range(9)]
    chain = [Question(f"c{i}", f"c{i}?", ("a",), "dev", "2wiki", **{field: link}) for i, link in enumerate(links)]
    (group,) = candidates([*pairs, *chain], PoolRule(THIRDS, {})).values()
    splits = {row.id: row.split for row in group}
    assert all(splits[f"{i}a"] == splits[f"{i}b"] for i in range(60)) and len(set(splits.values())) == 3
    assert {splits[f"c{i}"] for i in range(9)} == {split_of("link 0", THIRDS)}
    assert next(row for row in group if row.id == "7b").entities == ("own b of 7", "both 7")


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


def test_a_name_that_one_question_alone_has_cuts_nothing():
    rows = [Question(f"q{i}", f"q{i}?", ("a",), "dev", "2wiki", entities=(f"Q{i}", "hub")) for i in range(40)]
    left_out: Counter[str] = Counter()
    (group,) = candidates(rows, PoolRule(THIRDS, {}), left_out).values()
    assert len(group) == 40 and not left_out and {row.split for row in group} == {split_of("hub", THIRDS)}


def test_questions_left_out_by_a_cut_are_counted_in_the_output(tmp_path, capsys):
    rows = [Question(f"q{i}", f"q{i}?", ("a",), "dev", "2wiki", entities=(f"Q{i}", f"Q{i + 1}")) for i in range(60)]
    pool([run_of(tmp_path / "a", rows)], tmp_path / "pooled")
    count = read_meta(tmp_path / "pooled" / "questions.jsonl")["questions_left_out"]["between splits"]
    assert count > 10 and f"skipped: {count} questions that share an entity with two splits" in capsys.readouterr().out
    kept = list(jsonl.read(Question, tmp_path / "pooled" / "questions.jsonl"))
    assert len(kept) == 60 - count


def test_a_question_that_stands_twice_is_in_one_split():
    rows = [replace(row, text=f"What is {i % 20}?") for i, row in enumerate(questions("a", 40))]
    found = {row.id: row.split for row in candidates(rows, PoolRule(THIRDS, {}))["a"]}
    assert len(set(found.values())) == 3
    assert all(found[f"a/{i}"] == found[f"a/{i + 20}"] for i in range(20))


def test_a_subjects_split_hangs_on_its_name_alone_and_its_passages_join_no_others():
    about = [Question(f"q{i}", f"q{i}?", ("a",), "dev", "popqa", entities=(f"Q{i}",), gold_passages=("actors",))
             for i in range(30)]  # fmt: skip
    passages = [Question(f"s{i}", f"s{i}?", ("a",), "dev", "squad", gold_passages=(f"p{i}",)) for i in range(30)]
    groups = candidates([*about, *passages, *questions("mmlu", 30)], PoolRule(THIRDS, {}))
    for name, key in (("popqa", "Q{}"), ("squad", "p{}"), ("mmlu", "mmlu/{}")):
        found = {row.id: row.split for row in groups[name]}
        ids = {"popqa": "q{}", "squad": "s{}", "mmlu": "mmlu/{}"}[name]
        assert found == {ids.format(i): split_of(key.format(i), THIRDS) for i in range(30)}
    assert all(len(row.entities) == 1 for name in ("popqa", "squad") for row in groups[name])


def test_groups_are_data_sets_or_named_relations_and_stand_in_the_relation():
    rows = [
        Question("1", "?", ("a",), "test", "hotpotqa", relation="bridge"),
        Question("2", "?", ("a",), "test", "hotpotqa", relation="comparison"),
        Question("3", "?", ("a",), "test", "mmlu", relation="law", grading="exact"),
        Question("4", "?" * 50, ("a",), "test", "mmlu"),
    ]
    rule = PoolRule(THIRDS, {}, frozenset({"hotpotqa"}), frozenset({"mmlu"}), longest=20)
    groups = candidates(rows, rule)
    assert {name: [row.id for row in group] for name, group in groups.items()} == {
        "hotpotqa, bridge": ["1"], "hotpotqa, comparison": ["2"], "mmlu": ["3"]
    }  # fmt: skip
    assert [row.relation for group in groups.values() for row in group] == list(groups)
    assert groups["mmlu"][0].grading == "contains"


def test_the_best_known_share_counts_and_a_set_without_popularity_is_told():
    rows = [Question(str(i), "?", ("a",), "test", "popqa", popularity=float(i)) for i in range(8)]
    (group,) = candidates(rows, PoolRule(THIRDS, {"popqa": 0.25})).values()
    assert sorted(row.id for row in group) == ["6", "7"]
    with pytest.raises(UserError, match="no question of data set 'nq' has a popularity"):
        candidates(questions("nq", 2), PoolRule(THIRDS, {"nq": 0.5}))


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (PoolRule(THIRDS, {}, by_relation=frozenset({"popqaa"})), "key 'by_relation': no run has 'popqaa'; "),
        (PoolRule(THIRDS, {}, contains=frozenset({"popqa", "popqaa"})), "key 'contains': no run has 'popqaa'; "),
        (PoolRule(THIRDS, {"popqaa": 0.5}), "key 'popular': no run has 'popqaa'; "),
    ],
)
def test_a_data_set_that_no_run_has_is_told(rule, message):
    rows = [*questions("popqa", 2, popularity=1.0), *questions("nq_open", 2)]
    with pytest.raises(UserError) as raised:
        candidates(rows, rule)
    assert str(raised.value) == f"{message}did you mean 'popqa'?"


@pytest.mark.parametrize("share", [0, -0.5, 25])
def test_a_share_of_the_best_known_is_between_none_and_all(tmp_path, share):
    run = run_of(tmp_path / "popqa", questions("popqa", 8, popularity=1.0))
    done = here(
        "data_gen/pool.py", "--runs", f"[{run}]", "--output", tmp_path / "x", "--popular", f"{{popqa: {share}}}"
    )
    assert done.returncode == 2 and done.stderr.startswith("error: command line: key 'popular': input should be ")
    assert done.stderr.count("\n") == 1


def test_a_question_that_stands_in_two_runs_is_told_with_both(tmp_path):
    runs = [run_of(tmp_path / name, questions("nq", n)) for name, n in (("one", 1), ("two", 3))]
    message = r"two/questions\.jsonl:1: field 'id': 'nq/0' is also in .*one/questions\.jsonl; "
    with pytest.raises(UserError, match=message):
        pool(runs, tmp_path / "out")
    with pytest.raises(UserError, match="one/questions"):
        pool([runs[0], runs[0]], tmp_path / "out")
    assert not (tmp_path / "out" / "questions.jsonl").exists()


def test_pooled_questions_with_stored_answers_are_not_replaced_by_others(tmp_path):
    runs = [run_of(tmp_path / name, questions(name, 80)) for name in ("one", "two")]
    out = tmp_path / "out"
    for train in (20, 12):
        pool(runs, out, train=train)
    answered(out, set())
    before = (out / "questions.jsonl").read_bytes()
    message = r"out/questions\.jsonl: samples\.db holds answers to these questions, which were made "
    with pytest.raises(UserError, match=message + "with train = 12, now it is 20; set it back"):
        pool(runs, out, train=20)
    with pytest.raises(UserError, match=message + "from other data; "):
        pool(runs[:1], out, train=12)
    assert (out / "questions.jsonl").read_bytes() == before
    pool([run.rename(run.with_name(f"{run.name}2")) for run in runs], out, train=12)
    assert (out / "questions.jsonl").read_bytes() == before


def test_any_first_part_of_a_split_holds_all_groups():
    groups = candidates([*questions("a", 60), *questions("b", 60)], PoolRule(THIRDS, {}))
    taken = draw_evenly(groups, {"train": 20, "dev": 0, "test": 4})
    assert Counter(row.split for row in taken) == {"train": 20, "test": 4}
    assert Counter(row.dataset for row in taken[:6]) == {"a": 3, "b": 3}


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
        "right": 10,
        "n": 10,
        "guessed": 0,
        "share": 1,
    }
    assert "strange: 0 of 10 right, 0% by guessing: 0.0% known, skipped" in capsys.readouterr().out
    # the screened questions are training questions of the pool, too: the split hangs on ids and subjects alone
    assert {row.id: row.split for row in rows if row.id in {one.id for one in screened}}.keys() <= {
        row.id for row in rows if row.split == "train"
    }


def test_no_group_left_and_a_screening_without_answers_are_one_line(tmp_path):
    runs = [run_of(tmp_path / "known", questions("known", 40))]
    pool(runs, tmp_path / "screen", train=10, dev=0, test=0)
    with SampleStore(tmp_path / "screen" / "samples.db") as store:
        store.begin("main", {})
    with pytest.raises(UserError, match="no greedy answer to a training question under condition 'llm'"):
        pool(runs, tmp_path / "out", screened=tmp_path / "screen")
    answered(tmp_path / "screen", set())
    with pytest.raises(UserError, match=r"no questions left to pool; groups skipped by --min-known 0\.15: known"):
        pool(runs, tmp_path / "out", screened=tmp_path / "screen")
    done = here("data_gen/pool.py", "--runs", f"[{tmp_path / 'nowhere'}]", "--output", tmp_path / "x")
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_what_guessing_gives_is_not_known():
    choice = Question("1", "?", ("A",), "train", "mmlu", form="choice", grading="option", options=("a", "b", "c", "d"))
    always_a = [(replace(choice, id=str(i)), i % 4 == 0) for i in range(40)]  # right in a quarter of the questions
    found = count_known([*always_a, *((row, i < 10) for i, row in enumerate(questions("nq", 40)))])
    assert found["mmlu"].right == found["nq"].right == 10 and found["mmlu"].guessed == 0.25
    assert found["mmlu"].share == 0 and found["nq"].share == 0.25
    assert count_known([(choice, True)])["mmlu"].share == 1 and count_known([(choice, False)])[
        "mmlu"
    ].share == pytest.approx(-1 / 3)


def test_questions_of_yes_or_no_are_left_out_and_counted(tmp_path, capsys):
    rows = [replace(q, text=f"Is {q.id} so?") for q in questions("a", 6)]
    rows += [replace(q, id=f"b/{i}", answers=("Rome",)) for i, q in enumerate(questions("b", 9))]
    pool([run_of(tmp_path / "sets", rows)], tmp_path / "pooled", yes_no="without")
    found = list(jsonl.read(Question, tmp_path / "pooled" / "questions.jsonl"))
    assert {q.answers for q in found} == {("Rome",)}
    assert "skipped: 6 questions whose gold answer is yes or no" in capsys.readouterr().out
    assert read_meta(tmp_path / "pooled" / "questions.jsonl")["left_out_yes_no"] == 6
