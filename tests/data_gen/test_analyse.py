"""analyse.py: every number of the page from stored answers, the same in HTML, Markdown and JSON."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from kbtrain.io import jsonl
from kbtrain.io.provenance import read_meta, write_meta
from kbtrain.io.store import SampleStore
from kbtrain.records import Question, Sample, SampleSet

Script = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def two_models(run_folder: Path, books: Any) -> Path:
    """A second model in the same store, which was asked under mask as well and copies MASK in every answer."""
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    jsonl.write(run_folder / "questions.jsonl", [*questions[:-1], _nasty(questions[-1])])
    with SampleStore(run_folder / "samples.db") as store:
        store.begin("second", {"model": "org/second<model>", "samples": {"train": 6}})
        for asked in questions[:6]:
            made = [books.sample_set(asked, condition, 3, n=6) for condition in ("llm", "rag")]
            copied = tuple(Sample(i, "MASK.", 2, "eos", -1.0) for i in range(6))
            store.put(
                "second", [*made, SampleSet(asked.id, "mask", copied, copied[0].__class__(-1, "x", 1, "eos", 0), 9)]
            )
    return run_folder


def _nasty(question: Question) -> Question:
    return Question(question.id, "<script>alert(1)</script> | *x*", question.answers, question.split, "books")


def test_passages_of_other_questions_are_not_looked_through_for_answers(run_folder: Path, script: Script) -> None:
    questions, evidence = run_folder / "questions.jsonl", run_folder / "evidence.jsonl"
    write_meta(evidence, stage="retrieve", config=None, inputs=[questions])
    assert script("analyse", "--runs", f"[{run_folder}]").returncode == 0
    first, *others = jsonl.read(Question, questions)
    jsonl.write(questions, [replace(first, text="Who else?"), *others])
    done = script("analyse", "--runs", f"[{run_folder}]")
    assert done.returncode == 2, done.stdout
    assert done.stderr == f"error: {evidence}: made from another questions.jsonl; run `kbtrain run retrieve` again\n"


def test_the_page_holds_both_models_and_its_numbers_are_those_of_the_store(two_models: Path, script: Script) -> None:
    config = ("--config", "data_gen/configs/analyse_demo.yaml")
    done = script("analyse", *config, "--runs", f"[{two_models}]", "--tau-mastery", "0.2", "--examples", "3")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("2 sampling runs, 60 questions, ")
    document = json.loads((two_models / "analysis.json").read_text())
    first, second = document["runs"]
    assert (first["model"], second["model"]) == ("tiny", "org/second<model>")
    # 20 train questions, right in i % 11 of 10 answers: 0..10 and 0..8
    expected = sum(i % 11 for i in range(20)) / 200
    assert first["figure_1"]["conditions"]["llm"]["sampled"]["mean"] == pytest.approx(expected)
    assert first["figure_1"]["conditions"]["rag"]["sampled"]["mean"] == pytest.approx(1 - expected)
    assert first["figure_1"]["n"] == 30 and first["stability"]["tau_mastery"] == 0.2
    assert second["figure_2"]["share"][0] == 1 and second["figure_2"]["n_certain"] == 6
    assert second["figure_1"]["n"] == 6 and second["counts"]["questions_without_answers"] == 24
    assert first["pearson"] is not None and len(second["least_certain"]) == 3
    at_0 = next(row for row in first["tau_sweep"]["mastery"]["same"] if row["tau"] == 0)
    assert at_0["saved"] == pytest.approx(18 / 20)  # two questions of 20 are never right
    assert read_meta(two_models / "analysis.json")["stage"] == "analyse"


def test_the_page_is_whole_and_nothing_in_it_runs(two_models: Path, script: Script) -> None:
    assert script("analyse", "--runs", f"[{two_models}]", "--examples", "60").returncode == 0
    html = (two_models / "analysis.html").read_text(encoding="utf-8")
    markdown = (two_models / "analysis.md").read_text(encoding="utf-8")
    assert "second&lt;model&gt;" in html and "second<model>" not in html and "<script" not in html
    figures = html.split("<svg")[1:]
    assert len(figures) >= 9
    for figure in figures:
        ElementTree.fromstring("<svg" + figure.split("</svg>")[0] + "</svg>")
    ids = [part.split('"')[0] for part in html.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    for section in ("Accuracy by condition", "Copied masks", "Mastery and certainty", "What a threshold saves",
                    "How many answers a label needs", "Least certain questions"):  # fmt: skip
        assert section in html and section in markdown
    widths = {line.count("|") for line in markdown.splitlines() if line.startswith("| tiny | mastery")}
    assert len(widths) == 1


def test_figures_1_to_3_of_a_run_are_shown_for_each_of_its_data_sets_too(run_folder: Path, script: Script) -> None:
    questions = list(jsonl.read(Question, run_folder / "questions.jsonl"))
    named = [replace(q, dataset="even" if i % 2 == 0 else "odd") for i, q in enumerate(questions)]
    jsonl.write(run_folder / "questions.jsonl", named)
    done = script("analyse", "--runs", f"[{run_folder}]")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("1 sampling runs, 30 questions, ")
    whole, even, odd = json.loads((run_folder / "analysis.json").read_text())["runs"]
    assert [(run["name"], run["dataset"]) for run in (whole, even, odd)] == [
        ("tiny", None), ("tiny, even", "even"), ("tiny, odd", "odd")
    ]  # fmt: skip
    # question i of train is right in i % 11 of 10 answers
    for run, first in ((even, 0), (odd, 1)):
        rows = run["figure_1"]["conditions"]["llm"]["sampled"]
        assert rows["mean"] == pytest.approx(sum(i % 11 for i in range(first, 20, 2)) / 100)
        assert run["figure_1"]["n"] == 15
    for figure in ("figure_1", "figure_2"):
        key = "n" if figure == "figure_1" else "n_questions"
        assert whole[figure][key] == even[figure][key] + odd[figure][key]
    panels = [{(p["indicator"], p["condition"], p["interval"], p["effect"]): p["n"] for p in run["figure_3"]}
              for run in (whole, even, odd)]  # fmt: skip
    assert all(n == panels[1].get(cell, 0) + panels[2].get(cell, 0) for cell, n in panels[0].items())
    page = (run_folder / "analysis.md").read_text()
    assert "tiny, even" in page and "tiny, odd" in page


def test_a_run_without_answers_is_one_line(run_folder: Path, script: Script) -> None:
    with SampleStore(run_folder / "samples.db") as store:
        store.begin("empty", {})
    done = script("analyse", "--runs", f"[{run_folder}]", "--sampling-runs", "[empty]")
    assert done.returncode == 2 and "run 'empty' holds no answers; run `kbtrain run sample`" in done.stderr
    with contextlib.closing(sqlite3.connect(run_folder / "samples.db")) as store, store:
        store.execute("DELETE FROM runs")
    done = script("analyse", "--runs", f"[{run_folder}]")
    assert done.returncode == 2 and "samples.db: no sampling run in it; run `kbtrain run sample`" in done.stderr
    done = script("analyse", "--runs", f"[{run_folder}/gone]")
    assert done.returncode == 2 and "no such file" in done.stderr and "Traceback" not in done.stderr
