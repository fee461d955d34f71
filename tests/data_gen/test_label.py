"""data_gen/label.py: every question accounted for, tau from train only, one line for every mistake."""

import dataclasses
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kbtrain.io import jsonl
from kbtrain.io.provenance import file_sha256, read_meta
from kbtrain.io.store import SampleStore
from kbtrain.labeling.indicators import certainty
from kbtrain.records import Label

ROOT = Path(__file__).parent.parent.parent


def test_the_command_writes_labels_meta_and_one_summary_line(run_folder, script):
    done = script("label", "--run", str(run_folder), "--tau-mastery", "0.2", "--tau-certainty", "{quantile: 0.5}")
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("20 labels, graded by rules, tau 0.2 / ") and "10 questions without samples" in last
    labels = list(jsonl.read(Label, run_folder / "labels.jsonl"))
    assert [made.question_id for made in labels] == [f"train-{i}" for i in range(20)]
    assert [made.llm.n_correct for made in labels] == [i % 11 for i in range(20)]
    assert [made.known for made in labels] == [i % 11 > 2 for i in range(20)]
    assert [made.benefit for made in labels] == pytest.approx([(10 - 2 * (i % 11)) / 10 for i in range(20)])
    meta = read_meta(run_folder / "labels.jsonl")
    assert meta["n_records"] == 20 and meta["stage"] == "label" and meta["sampling"] == {"model": "tiny", "n": 10}
    assert meta["inputs"]["questions.jsonl"] == file_sha256(run_folder / "questions.jsonl")
    assert meta["label_rule"]["tau_mastery"] == {"value": 0.2, "rule": "number"}
    assert meta["label_rule"]["tau_certainty"]["rule"] == "quantile 0.5 of train"
    assert meta["counts"]["questions_without_llm_samples"] == meta["counts"]["llm_greedy_only"] == 10
    assert meta["distribution"]["labels"]["effect_mastery"] == {"beneficial": 10, "neutral": 2, "harmful": 8}
    assert not list(run_folder.glob("*.draft")) and not list(run_folder.glob("*.partial"))


def test_a_quantile_is_chosen_on_training_labels_only(run_folder, label, books):
    """Dev questions that are always right must not move tau."""
    before = label(run_folder, tau_mastery={"quantile": 0.5})
    with SampleStore(run_folder / "samples.db") as store:
        store.begin("more", {})
        sets = [books.sample_set(books.question(i, "train"), "llm", i % 11) for i in range(20)]
        store.put("more", sets + [books.sample_set(books.question(i, "dev"), "llm", 10) for i in range(5)])
    after = label(run_folder, tau_mastery={"quantile": 0.5}, sampling_run="more")
    assert len(before) == 20 and len(after) == 25
    # masteries are 0..10 and 0..8 tenths: the tenth smallest of 20 is 0.4
    assert {made.tau_mastery for made in before} == {made.tau_mastery for made in after} == {0.4}
    assert after[-1].rag is None and after[-1].known and after[-1].benefit is None


def test_what_has_no_question_or_too_few_answers_is_counted(run_folder, label, books):
    with SampleStore(run_folder / "samples.db") as store:
        store.begin("odd", {})
        few = [books.sample_set(books.question(i, "train"), "llm", i, n=2) for i in range(3)]
        single = books.sample_set(books.question(3, "train"), "llm", 1, n=1)
        unknown = books.sample_set(books.question(77, "train"), "llm", 1)
        retrieved = books.sample_set(books.question(1, "train"), "rag", 1, n=3)
        store.put("odd", [*few, single, unknown, retrieved])
    labels = label(run_folder, sampling_run="odd", tau_mastery=0.2, tau_certainty=0.5)
    counts = read_meta(run_folder / "labels.jsonl")["counts"]
    assert len(labels) == counts["labels"] == 3
    assert counts["llm_single_sample"] == 1
    assert counts["stored_llm_of_unknown_questions"] == 1
    assert counts["labels_with_unequal_n"] == 1 and counts["labels_without_rag_samples"] == 2


def test_a_tau_that_leaves_a_class_empty_is_one_line_and_keeps_the_old_labels(run_folder, label, script):
    label(run_folder)
    before = file_sha256(run_folder / "labels.jsonl")
    done = script("label", "--run", str(run_folder), "--tau-mastery", "1.0", "--tau-certainty", "0.8")
    assert done.returncode == 2 and done.stdout == ""
    error = done.stderr.splitlines()[-1]
    assert error.startswith("error: key 'tau_mastery': none of 20 training questions lie above 1; they range from 0")
    assert "tau_mastery: 0.4 would put 50% above" in error
    assert file_sha256(run_folder / "labels.jsonl") == before and not list(run_folder.glob("*.draft"))


def test_answers_cut_at_the_token_limit_are_counted_and_warned_of(run_folder, script, label, books):
    assert "warning" not in script("label", "--run", str(run_folder), "--tau-mastery", "0.2").stdout
    asked = books.question(99, "train")
    with open(run_folder / "questions.jsonl", "a", encoding="utf-8") as file:
        file.write(jsonl.dump(asked) + "\n")
    whole = books.sample_set(asked, "llm", 5, n=40)
    cut = tuple(dataclasses.replace(s, finish="length") if s.index % 2 else s for s in whole.samples)
    with SampleStore(run_folder / "samples.db") as store:
        store.put("main", [dataclasses.replace(whole, samples=cut)])
    done = script("label", "--run", str(run_folder), "--tau-mastery", "0.2")
    # 20 of 240 answers
    assert "warning: 8.3% of the answers under 'llm' end at the token limit and count as they stand" in done.stdout
    meta = read_meta(run_folder / "labels.jsonl")
    assert (meta["counts"]["llm_answers_cut"], meta["counts"]["rag_answers_cut"]) == (20, 0)
    assert meta["label_rule"]["cut"]["share"]["llm"] == pytest.approx(20 / 240)
    assert label(run_folder, cut="drop")[-1].llm.n == 20


def test_splits_with_unequal_numbers_of_answers_stand_on_one_scale_of_certainty(tmp_path, script, label, books):
    run = tmp_path / "run"
    books.fill(run, n_train=0, n_held_out=0)
    asked = [books.question(i, split) for i, split in enumerate(("train", "train", "dev", "dev"))]
    jsonl.write(run / "questions.jsonl", asked)
    with SampleStore(run / "samples.db") as store:
        store.begin("unequal", {"samples": {"train": 30, "dev": 10, "test": 0}})
        sizes = ((15, 30), (0, 30), (5, 10), (10, 10))  # right answers, of how many
        store.put("unequal", [books.sample_set(q, "llm", *size) for q, size in zip(asked, sizes, strict=True)])
    settings = {"sampling_run": "unequal", "tau_mastery": 0.2}
    thirty, _, ten, _ = (made.llm.certainty for made in label(run, **settings, tau_certainty=0.8))
    assert ten == pytest.approx(1 - math.log(2) / math.log(10))  # the paper's value, as the fewest answers are ten
    assert thirty == certainty((15, 15), 10) and abs(thirty - ten) < 0.03
    rule = read_meta(run / "labels.jsonl")["label_rule"]
    assert rule["certainty"] == {"rule": "common", "answers": 10}
    assert rule["mastery_step"] == {"train": 1 / 30, "dev": 1 / 10}
    five = label(run, **settings, tau_certainty=0.8, certainty_answers=5)
    assert five[0].llm.certainty == certainty((15, 15), 5)
    more = label(run, **settings, tau_certainty=0.8, certainty_answers=20)
    assert [made.llm.certainty is None for made in more] == [False, False, True, True]
    assert read_meta(run / "labels.jsonl")["counts"]["llm_certainty_unknown_of_few_answers"] == 2
    done = script("label", "--run", str(run), "--sampling-run", "unequal", "--certainty", "paper")
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith(
        "error: key 'certainty': 'paper' depends on the number of answers, which differs between the questions "
        "(train 30, dev 10), so no tau fits them all; use certainty: common"
    )


def test_memory_does_not_grow_with_the_number_of_questions(tmp_path, books):
    """Ten times the questions, the same memory within 4 MB."""
    code = (
        "import runpy, sys; from kbtrain.io.provenance import peak_rss_mb\n"
        "for run in sys.argv[1:]:\n"
        "    sys.argv = ['label.py', '--run', run, '--tau-mastery', '0.2']\n"
        "    runpy.run_path('data_gen/label.py', run_name='__main__'); print(peak_rss_mb())"
    )
    runs = [tmp_path / str(n) for n in (600, 6000)]
    for run in runs:
        books.fill(run, n_train=int(run.name))
    done = subprocess.run([sys.executable, "-c", code, *map(str, runs)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    peaks = [float(line) for line in done.stdout.splitlines() if re.fullmatch(r"[\d.]+", line)]
    assert len(peaks) == 2 and peaks[1] - peaks[0] < 4, peaks
