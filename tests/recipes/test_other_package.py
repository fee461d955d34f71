"""A gate of another package, installed by pip: fitted by the one recipe, kept, opened, scored, and it decides."""

import json
import os
import sys
from dataclasses import replace

import pytest
from support.package import installed_gate
from support.scripts import ROOT, here, run_command

import kbtrain
from kbtrain import cli
from kbtrain.gates.registry import kinds
from kbtrain.io import jsonl
from kbtrain.records import GateExample, GateScore

SOURCE = '''
from kbtrain.gate.card import GateCard
from kbtrain.gate.gate import Gate
from kbtrain.gates.registry import Kind

class Card(GateCard):
    kind: str = "long_questions"
    direction: float

class LongQuestions(Gate):
    """Score = the question's length, with the sign that the labels show."""
    name = "long_questions"

    def __init__(self, card):
        self.card = card

    @classmethod
    def fit(cls, examples, need):
        mean = sum(need) / len(need)
        return cls(Card(direction=sum((n - mean) * len(e.question) for e, n in zip(examples, need))))

    def score_examples(self, examples):
        return [self.card.direction * len(example.question) for example in examples]

KIND = Kind(Card, lambda folder, dtype, device: LongQuestions(Card.read(folder)), frozenset({"question"}),
            "recipes/fit_gate.py", fit=LongQuestions.fit)
'''


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A site folder with the package installed by pip, from its sources."""
    return installed_gate(tmp_path_factory.mktemp("other"), "long_questions", SOURCE)


@pytest.fixture
def package(site, monkeypatch):
    """The package's module, on the path as pip leaves it; nothing of it stays."""
    monkeypatch.syspath_prepend(str(site))
    import long_questions

    assert "long_questions" in kinds()
    yield long_questions
    sys.modules.pop("long_questions")


@pytest.fixture
def run(tmp_path):
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


def fit(run, output, *more, code=0):
    data = [part for split in ("train", "dev") for part in (f"--{split}", run / "examples" / f"{split}.jsonl")]
    done = here("recipes/fit_gate.py", "--gate", "long_questions", *data, "--output", run / output, "--labels", "hard",
                *more)  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_it_is_fitted_kept_opened_scored_and_decides(package, site, run, capsys):
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
    code = f"from kbtrain import load_gate; print(load_gate({str(run / 'long_questions')!r}).score({texts!r}))"
    fresh = run_command(sys.executable, "-c", code, env={"PYTHONPATH": f"{site}{os.pathsep}{ROOT}"})
    assert json.loads(fresh.stdout) == pytest.approx(gate.score(texts)), fresh.stderr
    assert cli.main(["decide", str(run / "long_questions"), *texts]) == 0
    assert [json.loads(line)["retrieve"] for line in capsys.readouterr().out.splitlines()] == [False, True]
