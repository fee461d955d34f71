"""Studies of a run folder with both answers: logs with one of them, and questions chosen to be labelled next."""

import hashlib
import json

import pytest
from support import scripts

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.records import GREEDY, Question, Sample, SampleSet
from kbtrain.retrieval.retrieve_stage import open_index


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """160 questions: those about codes need a search, the others are broken by one."""
    folder, questions, sets = tmp_path_factory.mktemp("run"), [], []
    for i in range(160):
        code = int(hashlib.sha256(str(i).encode()).hexdigest(), 16) % 2 == 0
        text = f"What is the {'internal code' if code else 'capital'} of place {i}?"
        questions.append(Question(f"q{i}", text, (f"ans{i}",), "test" if i % 4 == 0 else "train", "d"))
        for condition, right in (("llm", not code), ("rag", code)):
            greedy = Sample(GREEDY, f"ans{i}" if right else "no idea", 1, "eos", 0.0)
            sets.append(SampleSet(f"q{i}", condition, (), greedy, 10))
    jsonl.write(folder / "questions.jsonl", questions)
    with SampleStore(folder / "samples.db") as store:
        store.begin("main", {"model": "m"})
        store.put("main", sets)
    passages = ({"id": str(i), "title": "", "text": f"The code of place {i}."} for i in range(30))
    (folder / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in passages))
    open_index(folder / "passages.jsonl", folder / "bm25")
    return folder


def test_a_gate_from_one_answer_is_compared_with_one_from_both(run, capsys):
    study = scripts.load("studies/one_arm.py")
    study.main(build(study.OneArmConfig, None, {"run": run, "explore": [0.5], "max_weight": [5], "repeats": 2}))
    head, _, _, row = capsys.readouterr().out.splitlines()
    assert head == "120 training questions, 40 test questions; both answers: area 1.000"
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:2] == ["50%", "5"] and 60 < int(cells[2]) < 120 and float(cells[3].split()[0]) > 0.9


def test_rules_that_choose_questions_are_compared_with_chance(run, capsys):
    study = scripts.load("studies/next_questions.py")
    settings = {"run": run, "start": 30, "more": 20, "rounds": 1, "repeats": 2}
    study.main(build(study.NextConfig, None, settings))
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head == "| chosen by | 30 labelled | 50 labelled |"
    assert [row.split(" ")[1] for row in rows[:3]] == ["random", "uncertainty", "diversity"]
    assert len({row.split("|")[2] for row in rows[:3]}) == 1  # all rules begin with the same questions
    assert rows[3].startswith("uncertainty minus random, mean of the rounds: ") and rows[4].endswith("(2 starts)")


def test_a_run_without_both_answers_is_one_line(run, tmp_path):
    study = scripts.load("studies/one_arm.py")
    jsonl.write(tmp_path / "questions.jsonl", [Question("q", "Who?", ("Ann",), "test", "d")])
    with SampleStore(tmp_path / "samples.db") as store:
        store.begin("main", {"model": "m"})
    with pytest.raises(UserError, match="no question with a verdict on both answers"):
        study.main(build(study.OneArmConfig, None, {"run": tmp_path}))
