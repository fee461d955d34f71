"""A small run folder as the stages before leave it: made-up questions whose boundary the made-up KBM half knows."""

from __future__ import annotations

import functools
import random
import shutil
import sys
import time
from pathlib import Path

import pytest
from support.scripts import load

from kbtrain.io import jsonl
from kbtrain.io.provenance import write_meta
from kbtrain.io.store import SampleStore
from kbtrain.labeling.examples import example
from kbtrain.labeling.label import indicators, label
from kbtrain.records import Evidence, GateScore, Hit, Label, Question, Sample, SampleSet, Split

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "studies"))  # as Python does for a script: studies import files beside them
SIZES: dict[Split, int] = {"train": 60, "dev": 80, "test": 200}
EVIL = "Which <script>alert('x')</script> & \"city\"?"


@pytest.fixture
def script():
    """Load a script of eval/ or studies/ by its name."""
    return lambda name: load(f"{'eval' if (ROOT / 'eval' / f'{name}.py').exists() else 'studies'}/{name}.py")


@pytest.fixture(scope="session", autouse=True)
def _drawn_once():
    """A gate's scores are drawn once: figures are most of a report's time, and many tests write the same ones."""
    module = load("eval/write_report.py")
    draw = functools.cache(module.score_bins)
    module.score_bins = lambda scores, needed, cut: draw(tuple(scores), tuple(needed), cut)


@pytest.fixture(scope="session")
def made_run(tmp_path_factory):
    """The folder; copy it before changing it (``run_folder``)."""
    return make_run(tmp_path_factory.mktemp("made") / "run")


@pytest.fixture
def sampled_run(tmp_path):
    """A smaller folder with 30 answers for every question of every split."""
    return make_run(tmp_path / "run", {"train": 20, "dev": 40, "test": 60}, ("train", "dev", "test"))


@pytest.fixture
def sampled_test(tmp_path):
    """A small folder whose test questions were sampled, and its dev questions were not."""
    return make_run(tmp_path / "sampled", {"train": 20, "dev": 20, "test": 30}, ("train", "test"))


@pytest.fixture
def run_folder(made_run, tmp_path):
    """A copy of the folder, to be changed at will."""
    return Path(shutil.copytree(made_run, tmp_path / "run"))


@pytest.fixture(scope="session")
def evaluated(made_run, tmp_path_factory):
    """The folder, evaluated with 100 draws; copy it before changing it (``evaluated_run``)."""
    folder = Path(shutil.copytree(made_run, tmp_path_factory.mktemp("evaluated") / "run"))
    module = load("eval/end_to_end.py")
    module.main(module.EndToEndConfig(run=folder, bootstrap_draws=100))
    return folder


@pytest.fixture
def evaluated_run(evaluated, tmp_path):
    """A copy of the evaluated folder, to be changed at will."""
    return Path(shutil.copytree(evaluated, tmp_path / "run"))


def make_run(folder, sizes=None, sampled=("train",)):
    """Questions, store, labels, examples, evidence and scores; 30 answers for the ``sampled`` splits."""
    rng = random.Random(0)
    questions = list(_questions(sizes or SIZES))
    chances = {q.id: (rng.random() ** 2, 0.25 + 0.6 * rng.random()) for q in questions}
    labels: list[Label] = []
    stored: list[SampleSet] = []
    with SampleStore(folder / "samples.db") as store:
        store.begin("main", {"model": "made-up", "seed": 0, "prompt_fingerprint": "0123456789abcdef"})
        for question in questions:
            n = 30 if question.split in sampled else 0
            sets = {c: _sets(rng, question, c, chances[question.id], n) for c in ("llm", "rag", "mask")}
            stored += sets.values()
            if n:
                found = {c: indicators(question, made)[0] for c, made in sets.items()}
                labels.append(label(question, found, 0.2, 0.5))
        store.put("main", stored)
    jsonl.write(folder / "questions.jsonl", questions)
    jsonl.write(folder / "labels.jsonl", labels)
    hit = Hit("p1", "A town", "Some text.", 1.0)
    jsonl.write(folder / "evidence.jsonl", (Evidence(q.id, "made-up", q.text, (hit,), True) for q in questions))
    for split in ("train", "dev", "test"):
        rows = [example(q, None) for q in questions if q.split == split]
        jsonl.write(folder / "examples" / f"{split}.jsonl", rows)
    jsonl.write(folder / "scores/gates.jsonl", _scores(rng, questions, chances))
    for name in ("questions.jsonl", "labels.jsonl", "scores/gates.jsonl"):
        write_meta(folder / name, stage="made-up", config={"seed": 0}, inputs=[], started=time.monotonic())
    return folder


def _questions(sizes):
    for split, size in sizes.items():
        for i in range(size):
            text = f"{EVIL} ({split})" if i == 0 else f"What is fact {i} of {split}?"
            yield Question(f"{split}-{i}", text, ("yes",), split, "made-up", relation=f"relation{i % 4}")


def _sets(rng, question, condition, chances, n):
    chance = {"llm": chances[0], "rag": chances[1], "mask": 0.8 * chances[0]}[condition]
    answers = ["yes" if rng.random() < chance else rng.choice(["no", "<b>none</b>", "maybe"]) for _ in range(n + 1)]
    samples = tuple(Sample(i, text, 3, "eos", -1.0) for i, text in enumerate(answers[1:]))
    return SampleSet(question.id, condition, samples, Sample(-1, answers[0], 4, "eos", -1.0), 20)


def _scores(rng, questions, chances):
    evaluated = [q for q in questions if q.split != "train"]
    for gate in ("prompt", "kbm_mastery", "kbm_certainty", "kbm_benefit"):
        for question in evaluated:
            llm, rag = chances[question.id]
            truth = {"prompt": 0.5, "kbm_benefit": (1 + rag - llm) / 2}.get(gate, 1 - llm)
            yield GateScore(question.id, gate, min(1.0, max(0.0, truth + rng.gauss(0, 0.1))))
