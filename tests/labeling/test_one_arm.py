"""Labels from logs with one answer a question: right on average, cut where asked, and fitted like any others."""

import json
from pathlib import Path

import numpy as np
import pytest
from support import scripts

from kbtrain.config import build
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.labeling.imported import OneArmRow, benefit_labels, clipped_weights, one_arm_labels
from kbtrain.records import GateExample

importing = scripts.load("data_gen/import_answers.py")
fitting = scripts.load("recipes/fit_gate.py")


def log_file(path: Path, n: int = 900, explore: float = 0.5) -> Path:
    """A gate searches for questions with 'deep'; a search helps those about codes, and breaks the others."""
    rng, lines = np.random.default_rng(4), []
    for i in range(n):
        decided, code = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
        searched = bool(rng.random() < 0.5) if rng.random() < explore else decided
        text = f"What is the {'deep' if decided else 'plain'} {'internal code' if code else 'famous town'} of item {i}?"
        propensity = 1 - explore / 2 if searched == decided else explore / 2
        lines += [{"id": f"r{i}", "question": text, "searched": searched, "propensity": propensity}]
        lines += [{"outcome_of": f"r{i}", "right": float(rng.random() < (0.9 if searched == code else 0.2))}]
    lines += [{"id": "late", "question": "Who?", "searched": True, "propensity": 0.75}]  # without a verdict
    lines += [{"id": "bare", "searched": True, "propensity": 0.75}, {"outcome_of": "bare", "right": 1}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_label_is_on_average_the_benefit_divided_by_the_largest_weight():
    rng, n = np.random.default_rng(0), 200_000
    searched = rng.random(n) < 0.1  # rarely, and known
    right = np.where(searched, rng.random(n) < 0.8, rng.random(n) < 0.3) * 1.0
    weights = clipped_weights(np.where(searched, 0.1, 0.9), 50)
    labels = benefit_labels(searched, right, weights)
    assert labels.min() >= 0 and labels.max() <= 1
    # the mean of sign * (right - 1/2) / propensity is 0.8 - 0.3; labels are divided by the largest weight, 10
    assert labels.mean() == pytest.approx(0.5 + (0.8 - 0.3) / 10, abs=0.002)


def test_weights_are_cut_counted_and_their_effective_size_is_kish_s():
    rows = [OneArmRow(f"r{i}", f"question {i}", i % 2 == 0, 0.01 if i < 4 else 0.5, 1.0) for i in range(40)]
    made = one_arm_labels(rows, (1.0, 0.0, 0.0), 20)
    assert made.clipped == 4 and len(made.examples["train"]) == 40
    weights = np.array([20.0] * 4 + [2.0] * 36)
    assert made.effective == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    labels = {example.id: example.soft_benefit for example in made.examples["train"]}
    assert labels["r0"] == 1.0 and labels["r1"] == 0.0  # right after a search; right without one
    assert labels["r4"] == pytest.approx(0.55) and labels["r5"] == pytest.approx(0.45)


def test_dev_is_thinned_to_rows_of_equal_weight():
    rows = [OneArmRow(f"r{i}", f"question {i}", True, 0.5 if i % 2 else 0.05, 1.0) for i in range(2000)]
    made = one_arm_labels(rows, (0.0, 1.0, 0.0), 50)
    rare = sum(int(example.id[1:]) % 2 == 0 for example in made.examples["dev"])
    assert rare == 1000 and 60 < len(made.examples["dev"]) - rare < 140  # a tenth of the others
    assert made.thinned == 2000 - len(made.examples["dev"])


def test_a_gate_is_fitted_from_a_log_alone(tmp_path, capsys):
    log, run = log_file(tmp_path / "log.jsonl"), tmp_path / "run"
    settings = {"path": log, "run": run, "model": "m", "one_arm": True, "shares": [0.6, 0.4, 0.0]}
    importing.main(build(importing.ImportConfig, None, settings))
    shown = capsys.readouterr().out
    assert "900 explored decisions with a verdict" in shown and "1 without a verdict" in shown
    assert "1 without the question's text" in shown and "weigh as" in shown and "0 weights cut to 5" in shown
    importing.main(build(importing.ImportConfig, None, settings))
    assert "is there already" in capsys.readouterr().out
    fitting.main(build(fitting.FitGateConfig, None, {"gate": "features", "run": run, "key": "benefit"}))
    from kbtrain import load_gate

    gate = load_gate(run / "features")
    scores = [gate.score([f"What is the plain {kind} of item {i}?" for i in range(900, 930)])
              for kind in ("internal code", "famous town")]  # fmt: skip
    assert min(scores[0]) > 0.5 > max(scores[1])
    assert {e.split for e in jsonl.read(GateExample, run / "examples" / "dev.jsonl")} == {"dev"}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"one_arm": True, "stated": {"llm": "a"}}, "whose fields are fixed: remove stated"),
        ({"max_weight": 3}, "max_weight is for one_arm"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(tmp_path, more, message):
    with pytest.raises(UserError, match=message):
        build(importing.ImportConfig, None, {"path": tmp_path / "log", "model": "m", **more})


def test_a_log_without_exploration_is_one_line(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"id": "a", "question": "Who?", "searched": true, "propensity": null}\n')
    settings = {"path": tmp_path / "log.jsonl", "run": tmp_path / "run", "model": "m", "one_arm": True}
    with pytest.raises(UserError, match=r"no explored decision with a verdict \(1 decided without exploration\)"):
        importing.main(build(importing.ImportConfig, None, settings))
