"""Cross-validation over dialogues: no turn is scored by a fit to its dialogue, and test turns wait for the choice."""

import json
from dataclasses import replace

import cross_validation as cv
import numpy as np
import pytest
from support import scripts
from tiny_turns import bert_folder, turn

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.metrics.ranking import auroc


@pytest.fixture(scope="module")
def table():
    """96 turns of 48 dialogues, half of them flipped to the other label in every eighth."""
    turns = [replace(turn(i), dialogue_id=f"d{i // 2}") for i in range(96)]
    texts = sorted({u.text for one in turns for u in one.context})
    rng = np.random.default_rng(0)
    return cv.TurnTable(turns, {text: rng.normal(size=4).astype(np.float32) for text in texts}, 4)


def test_no_dialogue_is_on_both_sides_of_a_fold_and_every_turn_is_held_out_once(table):
    found = cv.folds(table, range(96), 4, seed=1)
    assert sorted(place for _, rest in found for place in rest) == list(range(96))
    for fitted, rest in found:
        assert not {table.dialogues[i] for i in fitted} & {table.dialogues[i] for i in rest}
        assert sorted(fitted + rest) == list(range(96))
    assert cv.folds(table, range(96), 4, seed=1) == found != cv.folds(table, range(96), 4, seed=2)
    with pytest.raises(UserError, match="50 folds of 48 dialogues; use fewer"):
        cv.folds(table, range(96), 50, seed=0)


def test_held_out_scores_are_those_of_a_fit_to_the_other_dialogues(table, tmp_path):
    steps: list[int] = []
    first = list(cv.cross_validated(table, (1, 3, 2), 0, tmp_path, "these", lambda: steps.append(1)))
    assert len(steps) == 3 and len(list(tmp_path.glob("fold-*.npz"))) == 3
    part = cv.Part(1, "dialogue_state")
    for fold in first[0]:
        again = cv.log_odds(part, table, fold.fitted, table, fold.rest)
        assert fold.outer[part.name] == pytest.approx(again)
        assert len(fold.inner[part.name]) == len(fold.fitted) and np.all(fold.inner[part.name] != 0)
    (tmp_path / first_name(tmp_path)).unlink()  # a killed run: one fold is missing
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("fold-*.npz")}
    second = list(cv.cross_validated(table, (1, 3, 2), 0, tmp_path, "these", lambda: None))
    assert all((tmp_path / name).stat().st_mtime_ns == time for name, time in kept.items())
    for one, other in zip(first[0], second[0], strict=True):
        assert one.outer[part.name].tolist() == other.outer[part.name].tolist()
    made = cv.candidates_held_out(table, first)
    assert set(made) == {*cv.CANDIDATES, cv.INSIDE}
    assert float(auroc(table.truth, made["dialogue_state"][0].scores)[0]) > 0.95  # the act tells the label


def first_name(folder):
    return min(path.name for path in folder.glob("fold-*.npz"))


def test_figures_are_those_worked_by_hand():
    truth = np.array([True, False, True, False])
    good = cv.HeldOut(np.array([0.9, 0.1, 0.8, 0.2]), np.array([True, False, False, True]))
    bad = cv.HeldOut(np.array([0.1, 0.9, 0.8, 0.2]), np.array([False, True, True, True]))
    made = {"good": [good], "both": [good, bad]}
    found = cv.figures_of_candidates(truth, made, cv.drawn_figures(truth, ["a", "b", "c", "d"], made))
    assert found["good"].auroc.mean == 1.0 and found["good"].f1.mean == pytest.approx(0.5)
    assert (found["good"].precision, found["good"].recall) == (0.5, 0.5)
    assert found["both"].by_repeat == [1.0, 0.25]
    assert found["both"].f1.mean == pytest.approx((0.5 + 2 * 1 / (3 + 2)) / 2)
    area, f1 = found["good"].minus["both"]
    assert area.mean == pytest.approx(0.375) and f1.mean == pytest.approx(0.05)


def test_the_script_chooses_first_and_looks_at_the_test_turns_only_then(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(cv, "DRAWS", 40)
    turns = [turn(i, "train" if i < 40 else "dev") for i in range(48)] + [turn(i, "test") for i in range(24)]
    source, out = tmp_path / "turns.jsonl", tmp_path / "out"
    jsonl.write(source, turns)
    module = scripts.load("studies/cross_validate.py")
    settings = {"turns": source, "encoder": str(bert_folder(tmp_path / "bert")), "repeats": 1, "folds": 3, "inner": 2,
                "sizes": [20, 32, 40], "out": out}  # fmt: skip
    config = module.CrossValidateConfig.model_validate(settings)
    looking = module.CrossValidateConfig.model_validate({**settings, "test": True})
    with pytest.raises(UserError, match="call this without --test first"):
        module.main(looking)
    module.main(config)
    found = json.loads((out / "cross_validation.json").read_text())
    assert (found["dialogues"], found["turns"], found["positive"]) == (48, 48, 12)
    assert found["chosen"] in cv.CANDIDATES and found["chosen_without_annotation"] in ("text", "text_context")
    assert set(found["by_dialogues"][found["chosen"]]) == {"20", "32"}  # no fold has 40 to fit to
    assert set(found["corrected"]) == {found["chosen"], found["chosen_without_annotation"]}
    told = capsys.readouterr().out
    assert "Corrected for its choice: `" in told
    assert all(1 <= factor <= 3**0.5 for factor in found["inflation"].values())
    assert "excluded from the learning curve: 40; a fold has 32 dialogues to fit to\n" in told
    assert f"Chosen: `{found['chosen']}`" in told and (out / "cross_validation.svg").exists()
    assert not (out / "test.json").exists()
    module.main(looking)
    seen = json.loads((out / "test.json").read_text())
    assert seen["turns"] == 24 and set(seen["candidates"]) == {found["chosen"], found["chosen_without_annotation"]}
    renamed = [replace(one, dialogue_id=f"other-{one.dialogue_id}") for one in turns]
    for changed in (turns[4:], renamed):  # fewer of them, and as many others
        jsonl.write(source, changed)
        with pytest.raises(UserError, match=r"chosen from other turns than .*turns\.jsonl; call this without --test"):
            module.main(looking)


def test_nested_cross_validation_widens_the_interval_between_once_and_the_root_of_the_folds():
    """Worked by hand: mean of (inner - outer)^2 - variance is 0.0125; 4/5 of it is 4 times the resamples' variance."""
    inner, outer = np.zeros((1, 5)), np.array([[0.1, -0.1, 0.2, -0.2, 0.05]])
    spread = np.full((1, 5), 0.0205 - 0.0125)
    assert cv.nested_inflation(inner, outer, spread, 0.01 / 4) == pytest.approx(2.0)
    assert cv.nested_inflation(inner, outer, spread, 1.0) == 1.0 == cv.nested_inflation(inner, outer, spread, 0.0)
    assert cv.nested_inflation(inner, outer, spread, 1e-9) == pytest.approx(5**0.5)
