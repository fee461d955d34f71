"""What an encoder starts from: held-out log odds for training turns, a line through them, questions refused."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from tiny_turns import turn

from kbtrain.errors import UserError
from kbtrain.gates.encoder.gate import OffsetGate, turns_only
from kbtrain.gates.turns import DialogueStateGate
from kbtrain.records import GateExample

TURNS = [turn(i, label=(i % 4 == 0) != (i % 11 == 0), dialogue_id=f"d{i // 4}") for i in range(44)]
WEIGHTS = (0.3, 0.7)


@pytest.fixture(scope="module")
def fitted():
    return OffsetGate.fit(TURNS, WEIGHTS, folds=11)


def test_a_training_turn_s_offset_comes_from_a_gate_that_never_saw_its_dialogue(fitted):
    base, offsets = fitted
    for i in (0, 5, 43):
        others = [one for one in TURNS if one.dialogue_id != TURNS[i].dialogue_id]
        alone = DialogueStateGate.fit(others).log_odds(TURNS[i])
        assert offsets[i] == pytest.approx(base.intercept + base.slope * alone, abs=1e-9)
    assert offsets != pytest.approx(base.offsets(TURNS), abs=1e-3)


def test_other_turns_get_those_of_the_gate_fitted_to_all(fitted):
    base, _ = fitted
    new = turn(48, "test")
    score = DialogueStateGate.fit(TURNS).score([new])[0]
    expected = base.intercept + base.slope * (math.log(score) - math.log1p(-score))
    assert base.offsets([new]) == [pytest.approx(expected, abs=1e-9)]


def test_the_line_is_the_weighted_logistic_regression_on_held_out_log_odds(fitted):
    base, offsets = fitted
    held_out = (np.array(offsets) - base.intercept) / base.slope
    labels = np.array([one.label for one in TURNS])
    again = LogisticRegression().fit(held_out[:, None], labels, sample_weight=np.where(labels, 0.7, 0.3))
    assert (again.coef_[0, 0], again.intercept_[0]) == pytest.approx((base.slope, base.intercept), abs=1e-4)
    said = np.where(labels, 0.7, 0.3) * (labels - 1 / (1 + np.exp(-np.array(offsets))))
    assert said.sum() == pytest.approx(0, abs=1e-3)  # an encoder that adds a constant would make the loss worse


def test_heavier_positives_raise_every_offset(fitted):
    heavy, offsets = OffsetGate.fit(TURNS, (0.1, 0.9), folds=11)
    assert heavy.gate == fitted[0].gate
    assert all(raised > value for raised, value in zip(offsets, fitted[1], strict=True))


def test_a_folder_gives_the_same_base_again(fitted, tmp_path):
    base, _ = fitted
    base.save(tmp_path)
    opened = OffsetGate.load(tmp_path)
    assert opened == base and opened.offsets(TURNS) == base.offsets(TURNS)


def test_a_missing_or_broken_base_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"base.json: no such file; the gate adds to its base, copy the whole folder"):
        OffsetGate.load(tmp_path)
    (tmp_path / "base.json").write_text('{"slope": 1, "intercept": "much"}')
    with pytest.raises(UserError, match=r"base.json: ") as error:
        OffsetGate.load(tmp_path)
    assert "\n" not in str(error.value)


def test_questions_are_refused_by_name(fitted):
    asked = [TURNS[0], GateExample.ask("Where?")]
    with pytest.raises(UserError, match=r"base 'dialogue_state' reads dialogue turns; leave the key 'base' out"):
        fitted[0].offsets(asked)
    assert turns_only(TURNS) == TURNS


@pytest.mark.parametrize(
    ("turns", "words"),
    [
        ([replace(one, dialogue_id="d") for one in TURNS], "1 dialogue to train on, needs two at least"),
        ([replace(one, label=True) for one in TURNS], "turns of one class, nothing to learn"),
        # alike but for the label, in pairs: whoever has not seen a turn expects the other's label
        ([turn(0, label=i % 2 == 0, dialogue_id=f"d{i}") for i in range(8)], "not better than chance"),
    ],
)
def test_a_base_that_can_tell_nothing_is_one_line(turns, words):
    with pytest.raises(UserError, match=words):
        OffsetGate.fit(turns, WEIGHTS)
