"""Fidelity to always searching: figures by a second implementation, thresholds noted with their promise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import binomtest, hypergeom

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.evaluation.calibrate import calibrate_change
from kbtrain.evaluation.fidelity import Changes, fidelity, left_out_lines, read_changes
from kbtrain.gate.card import read_gate_json
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.records import Question, Sample, SampleSet
from kbtrain.report.fidelity import beside_accuracy, sentences

Load = Callable[[str], ModuleType]


def stored(question: str, text: str, finish: str = "eos") -> SampleSet:
    return SampleSet(question, "llm", (), Sample(-1, text, 3, finish, -1.0), 20)  # type: ignore[arg-type]


def asked(name: str) -> Question:
    return Question(name, f"Who is {name}?", (), "dev", "made-up", gold="hidden")


def test_a_question_counts_where_it_has_two_answers_and_others_are_counted() -> None:
    changes = Changes()
    changes.add(asked("a"), stored("a", "Ann"), stored("a", "It is Ann."))
    changes.add(asked("b"), stored("b", "Ann"), stored("b", "Bob"))
    changes.add(asked("c"), stored("c", "Ann"), None)
    changes.add(asked("d"), stored("d", "", "thought"), stored("d", "Bob"))
    assert changes.differs.tolist() == [0.0, 1.0] and [q.id for q in changes.questions] == ["a", "b"]
    assert left_out_lines({"dev": changes}) == [
        "skipped: 1 dev questions without a stored answer",
        "skipped: 1 dev questions whose answer was cut before it began, or is a thought alone",
    ]


def test_figures_on_test_worked_by_hand() -> None:
    dev = np.arange(100.0)
    chosen = calibrate_change(dev, (dev >= 60).astype(float), 0.05, 0.1)
    assert chosen.threshold == 60.5
    assert chosen.evidence["changed"] == 0.01 and chosen.evidence["changed_never"] == 0.4
    test = np.array([10.0, 20, 30, 40, 50, 70, 80, 90, 95, 99])
    changed = np.array([0.0, 0, 0, 0, 1, 1, 1, 1, 0, 1])
    one = fidelity("features_change", chosen, test, changed)
    assert (one.skipped.mean, one.changed.mean, one.changed_never, one.at_random) == (0.5, 0.1, 0.5, 0.25)
    interval = binomtest(1, 10).proportion_ci(method="wilson")
    assert (one.changed.low, one.changed.high) == pytest.approx((interval.low, interval.high))
    assert one.p == pytest.approx(float(hypergeom(10, 5, 5).sf(3)))  # 4 or more of the 5 searched are changed
    text = sentences(one)
    assert text[0] == (
        "features change skips 50.0 % of the searches, and 10.0 % [1.8, 40.4] of the answers differ from always "
        "searching."
    )
    assert text[1].startswith("Promised for new questions of the same kind: at most 5.0 % of the answers differ")
    assert text[2].startswith(
        "Not shown by these questions: as many searches skipped at random change 25.0 % of the answers"
    )
    assert "best of 3 gates on dev" in sentences(one, 3)[1]
    assert not any("right" in sentence.replace("Whether an answer is right is not known", "") for sentence in text)


def test_beside_accepted_answers_the_sentence_says_how_many_are_right() -> None:
    dev = np.arange(100.0)
    chosen = calibrate_change(dev, (dev >= 60).astype(float), 0.05, 0.1)
    one = fidelity("features_change", chosen, dev, (dev >= 60).astype(float))
    assert beside_accuracy(one, 0.431, 0.439) == (
        "Set to skip searches that change no answer, features change skips 61.0 % of the searches. Then 1.0 % "
        "[0.2, 5.4] of the answers differ from always searching (promised: at most 5.0 %, with probability 0.9), and "
        "43.1 % of all answers are right (43.9 % when always searching)."
    )


def test_a_gate_that_may_skip_nothing_says_so() -> None:
    dev = np.arange(45.0)
    chosen = calibrate_change(dev, np.ones(45), 0.05, 0.1)
    one = fidelity("features_change", chosen, dev, np.ones(45))
    assert (one.dev_skipped, one.p) == (0.0, 1.0)
    assert sentences(one)[0].startswith("Always search: on 45 dev questions features change can skip no search")


def test_the_script_measures_every_gate_and_reads_no_accepted_answer(
    run_folder: Path, script: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    module = script("fidelity")
    module.main(build(module.FidelityConfig, None, {"run": run_folder, "max_change": 0.1}))
    found = json.loads((run_folder / "fidelity.json").read_text())
    assert found["n"] == 200 and found["n_dev"] == 80
    with SampleStore(run_folder / "samples.db", read_only=True) as store:
        texts = {
            condition: {made.question_id: made.greedy.text for made in store.iterate("main", condition) if made.greedy}
            for condition in ("llm", "rag")
        }
    lines = (run_folder / "scores/gates.jsonl").read_text().splitlines()
    rows = [row for row in map(json.loads, lines) if row["gate"] == "kbm_benefit"]
    scores = {row["question_id"]: row["score"] for row in rows}
    one = next(gate for gate in found["gates"] if gate["gate"] == "kbm_benefit")
    tests = [f"test-{i}" for i in range(200)]
    skipped = [name for name in tests if scores[name] <= one["threshold"]]
    differ = [name for name in skipped if texts["llm"][name] != texts["rag"][name]]  # made-up answers are verbatim
    assert one["skipped"]["mean"] == len(skipped) / 200 and one["changed"]["mean"] == len(differ) / 200
    assert "test questions; without any search" in capsys.readouterr().out
    questions = [
        Question(**{**vars(question), "answers": (), "gold": "hidden"})
        for question in jsonl.read(Question, run_folder / "questions.jsonl")
    ]
    before = read_changes(run_folder)
    (run_folder / "questions.jsonl.meta.json").unlink()
    jsonl.write(run_folder / "questions.jsonl", questions)
    assert read_changes(run_folder)["test"].differ == before["test"].differ


def test_calibrate_notes_the_promise_and_refuses_too_few_questions(
    run_folder: Path, script: Load, capsys: pytest.CaptureFixture[str]
) -> None:
    from kbtrain.gates.seakr.engine import SeakrSettings
    from kbtrain.gates.seakr.gate import SeakrCard
    from kbtrain.gates.seakr.uncertainty import Scale

    measured = Scale(n=2, low=1.0, mean=1.5, high=2.0, floor=-9.0, ceiling=9.0, mean_floor=-9.0)
    SeakrCard(base_model="m", dtype="fp32", prompt_fingerprint="0", settings=SeakrSettings(), measured=measured).write(
        run_folder / "gate"
    )
    module = script("calibrate")
    wanted = {"run": run_folder, "gate": "kbm_benefit", "folder": run_folder / "gate", "goal": "max_change"}
    module.main(build(module.CalibrateConfig, None, {**wanted, "max_change": 0.1}))
    text = capsys.readouterr().out
    assert "of the answers differ from always searching" in text
    assert "; promised: at most 10 % of the answers differ from always searching, with probability 0.9, if" in text
    assert " searches, 20,000 prompt and 4,000 completion tokens, " in text  # of each stored answer: 20 and 4
    noted = read_gate_json(run_folder / "gate")["thresholds"]["kbm_benefit"]
    assert noted["rule"] == "max_change 0.1 with probability 0.9" and noted["n_dev"] == 80
    assert noted["evidence"]["guarantee"]["promise"] == "answers_changed"
    with pytest.raises(UserError, match=r"80 calibration questions are too few .*230 are needed"):
        module.main(build(module.CalibrateConfig, None, {**wanted, "max_change": 0.01, "replace": True}))
    with pytest.raises(UserError, match="key 'max_change'"):
        build(module.CalibrateConfig, None, {**wanted, "goal": "ratio", "max_change": 0.1})
