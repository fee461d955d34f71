"""The gate that reads no words: ten numbers of the past, and scikit-learn's own scores."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tiny_turns import turn

import kbtrain
from kbtrain.errors import UserError
from kbtrain.gates.turns import FEATURES, StructuralGate, structure
from kbtrain.records import Utterance


def test_the_ten_numbers_of_a_turn():
    context = (
        Utterance("USER", "A bus to Rome?", ("Buses_1",)),
        Utterance("SYSTEM", "When?", ("Buses_1",)),
        Utterance("USER", "On May 5th, and Hotel Roma too", ("Hotels_1",)),
    )
    found = dict(
        zip(FEATURES, structure(turn(0, turn=3, context=context, services=("Buses_1", "Hotels_1"))), strict=True)
    )
    assert found == {
        "turn": 3, "log_turn": pytest.approx(np.log(4)), "words_last": 7, "words_context": 12, "question_last": 0,
        "question_before": 1, "capitals_last": 3, "numbers_last": 1, "services": 2, "new_service": 1,
    }  # fmt: skip


def test_nothing_of_the_future_is_read():
    one = turn(5)
    other = replace(
        one, label=True, response="x", response_acts=("OFFER",), position=0.9, gold_snippets=("a",), split="test"
    )
    assert structure(one) == structure(other)


def test_scores_are_those_of_scikit_learn_and_survive_a_folder(tmp_path):
    examples = [turn(i) for i in range(40)]
    gate = StructuralGate.fit(examples)
    rows = np.array([structure(example) for example in examples])
    scaler = StandardScaler().fit(rows)
    model = LogisticRegression(class_weight="balanced", max_iter=1000)
    model.fit(scaler.transform(rows), [bool(e.label) for e in examples])
    assert gate.score(examples) == pytest.approx(model.predict_proba(scaler.transform(rows))[:, 1])
    gate.card.write(tmp_path)
    opened = kbtrain.load_gate(tmp_path)
    assert isinstance(opened, StructuralGate) and opened.score(examples) == gate.score(examples)


def test_one_class_or_a_broken_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match="2 labelled turns of one class"):
        StructuralGate.fit([turn(0), turn(4)])
    (tmp_path / "gate.json").write_text('{"kind": "structural"}')
    with pytest.raises(UserError, match=r"gate.json: field 'mean': missing"):
        kbtrain.load_gate(tmp_path)
