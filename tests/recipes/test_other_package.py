"""A gate of another package, installed by pip: fitted by the one recipe, kept, opened, scored, and it decides."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.package import installed_gate
from support.scripts import here

import kbtrain
from kbtrain import cli
from kbtrain.gates.registry import kinds
from kbtrain.io import jsonl
from kbtrain.records import GateExample, GateScore

SOURCE = '''
import numpy as np
from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate
from kbtrain.gates.registry import Kind

extracted = []  # questions, in the order in which their features were asked for

def features(examples):
    extracted.extend(example.question for example in examples)
    return np.array([[len(example.question), example.question.count("?")] for example in examples], dtype=np.float32)

class Card(GateCard):
    kind: str = "long_questions"
    direction: tuple[float, ...]

class LongQuestions(Gate):
    """Score = the question's features along the direction in which the need of retrieval grows."""
    name = "long_questions"

    def __init__(self, card):
        self.card = card

    @classmethod
    def fit(cls, examples, need, found):
        need = np.asarray(need)
        return cls(Card(direction=tuple(float(x) for x in (need - need.mean()) @ found)))

    def score_features(self, found):
        return list(found @ np.asarray(self.card.direction))

    def score_examples(self, examples):
        return self.score_features(features(examples))

KIND = Kind(Card, lambda folder, dtype, device: LongQuestions(Card.read(folder)), frozenset({"question"}),
            "recipes/fit_gate.py", fit=LongQuestions.fit, features=features)
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site folder with the package installed by pip, from its sources."""
    return installed_gate(tmp_path_factory.mktemp("other"), "long_questions", SOURCE)


@pytest.fixture
def package(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """The package's module, on the path as pip leaves it; nothing of it stays."""
    monkeypatch.syspath_prepend(str(site))
    import long_questions  # type: ignore[import-not-found]

    assert "long_questions" in kinds()
    yield long_questions
    sys.modules.pop("long_questions")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder: long questions are not mastered, and a search helps with them."""
    for split, n in (("train", 24), ("dev", 12), ("test", 4)):
        rows = []
        for i in range(n):
            text = f"What is the {split} {i}?" + " And why is that so?" * (i % 2)
            known = {"mastery": i % 2 == 0, "benefit": i % 2 == 1} if split != "test" else {}
            example = replace(GateExample.ask(text), id=f"{split}{i}", question_id=f"{split}{i}", split=split, **known)
            rows.append(example)
        jsonl.write(tmp_path / "run" / "examples" / f"{split}.jsonl", rows)
    return tmp_path / "run"


def fit(run: Path, output: str, *more: str, code: int = 0) -> str:
    data = [part for split in ("train", "dev") for part in (f"--{split}", run / "examples" / f"{split}.jsonl")]
    done = here("recipes/fit_gate.py", "--gate", "long_questions", *data, "--output", run / output, "--labels", "hard",
                *more)  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_it_is_fitted_kept_opened_scored_and_decides(package, run, capsys):
    said = fit(run, "long_questions")
    assert "24 examples, fitted in" in said and "saved, opened again, scores equal" in said
    gate = kbtrain.load_gate(run / "long_questions")
    assert type(gate).__name__ == "LongQuestions" and gate.card.run["key"] == "benefit"
    texts = ["Why?", "What is it? And why is that so, all in all?"]
    assert [one.retrieve for one in gate.decide(texts)] == [False, True]
    done = here("eval/score.py", "--run", run, "--only", "long_questions")
    assert done.returncode == 0, done.stderr
    stored = {row.question_id: row.score for row in jsonl.read(GateScore, run / "scores" / "long_questions.jsonl")}
    test = list(jsonl.read(GateExample, run / "examples" / "test.jsonl"))
    assert [stored[example.id] for example in test] == pytest.approx(gate.score(test))
    assert cli.main(["decide", str(run / "long_questions"), *texts]) == 0
    assert [json.loads(line)["retrieve"] for line in capsys.readouterr().out.splitlines()] == [False, True]


def test_features_are_extracted_once_for_all_labels(package, run):
    package.extracted.clear()
    fit(run, "mine")
    assert len(set(package.extracted[:36])) == 36  # each once, whatever the label
    assert len(package.extracted) == 36 + 8  # and a few by the gate that was opened again, to compare


def test_features_that_are_none_are_one_line(package, run, monkeypatch):
    wrong = ([[1.0]], [["a"]] * 24, [[float("nan")]] * 24, [1.0] * 24)
    for rows in wrong:
        kind = replace(package.KIND, features=lambda examples, rows=rows: rows)
        monkeypatch.setattr(package, "KIND", kind)
        said = fit(run, "two", code=2)
        assert "gate 'long_questions': " in said and said.count("\n") == 1
    monkeypatch.delattr(package.LongQuestions, "score_features")
    monkeypatch.setattr(package, "KIND", replace(kind, features=package.features))
    assert "names features but has no score_features(features)" in fit(run, "three", code=2)
