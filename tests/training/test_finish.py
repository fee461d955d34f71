"""The one ending: a folder that scores otherwise than the model never arrives, one that does arrives card last."""

import json
import os
from types import SimpleNamespace

import pytest

from kbtrain.errors import UserError
from kbtrain.gate.card import BestKey, Threshold, read_gate_json, set_best, set_threshold
from kbtrain.training.finish import save_checked


def write(folder):
    (folder / "adapter").mkdir()
    (folder / "adapter" / "weights").write_text("new")
    (folder / "adapter" / "weights").chmod(0o600)  # as safetensors' files are
    (folder / "gate.json").write_text("{}")


def readme(worst):
    return f"differs by {worst:.1e}"


def ending(folder, write=write, difference=0.0, readme=readme):
    """An ending with these parts."""
    return SimpleNamespace(
        config=SimpleNamespace(output=folder), write=write, difference=lambda saved: difference, tolerance=1e-6,
        readme=readme, questions=(), members=(),
    )  # fmt: skip


def test_the_card_arrives_last_and_older_files_are_replaced(tmp_path, monkeypatch):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "weights").write_text("old")
    moved, replace = [], os.replace
    monkeypatch.setattr(os, "replace", lambda source, target: (moved.append(target.name), replace(source, target)))
    assert save_checked(ending(tmp_path, difference=1e-7), "gate.json") == 1e-7
    assert (tmp_path / "adapter" / "weights").stat().st_mode == (tmp_path / "README.md").stat().st_mode
    assert moved[-1] == "gate.json" and set(moved) == {"adapter", "gate.json", "README.md"}
    assert (tmp_path / "adapter" / "weights").read_text() == "new"
    assert (tmp_path / "README.md").read_text() == "differs by 1.0e-07"
    assert not (tmp_path / "saving").exists()


@pytest.mark.parametrize("difference", [2e-6, float("nan")])
def test_another_score_than_the_trained_model_s_leaves_the_folder_as_it_was(tmp_path, difference):
    with pytest.raises(UserError, match=r"scores differently from the trained one \(by up to"):
        save_checked(ending(tmp_path, difference=difference), "gate.json")
    assert os.listdir(tmp_path) == ["saving"]
    assert save_checked(ending(tmp_path), "gate.json") == 0  # what was left is not in the way
    assert set(os.listdir(tmp_path)) == {"adapter", "gate.json", "README.md"}


def test_a_calibrated_threshold_outlives_another_fit_of_the_very_same_gate(tmp_path):
    def noted(weight, run):
        def card(folder):
            own = {**chosen["best_f1"], "n_dev": run}
            made = {"kind": "a", "weight": weight, "run": {"seconds": run}, "thresholds": {"a": own}}
            (folder / "gate.json").write_text(json.dumps(made))

        page = "# A\n\n## Threshold\nby dev\n\n## Run\n"
        save_checked(ending(tmp_path, card, readme=lambda worst: page), "gate.json")
        found = json.loads((tmp_path / "gate.json").read_text())["thresholds"]["a"]["threshold"]
        return found, (tmp_path / "README.md").read_text().split("\n")[3]

    by_rule = {"best_f1": {}, "ratio": {}, "max_loss": {"guarantee": {"limit": 0.05, "delta": 0.1}}}
    of = {rule: Threshold(threshold=len(rule), rule=rule, dev_file_sha256="", n_dev=9, evidence=evidence)
          for rule, evidence in by_rule.items()}  # fmt: skip
    chosen = {rule: one.model_dump(mode="json") for rule, one in of.items()}
    assert noted(0.5, 1) == (7, "by dev")
    assert noted(0.5, 4) == (7, "by dev")
    assert read_gate_json(tmp_path)["thresholds"]["a"]["n_dev"] == 4  # its own, of another dev
    set_best(tmp_path, BestKey(key="benefit", rule="area", n_dev=9, areas={}))
    set_threshold(tmp_path, "a", of["ratio"])
    assert noted(0.5, 2)[0] == 5  # whatever was noted for the very same gate, somebody chose
    assert read_gate_json(tmp_path)["best"]["key"] == "benefit"
    set_threshold(tmp_path, "a", of["max_loss"])
    kept, said = noted(0.5, 3)
    assert kept == 8 and said.startswith("- `a`: search if score > 8 (rule max_loss, 9 dev questions; promised:")
    with pytest.warns(UserWarning, match=r"threshold 8 \(max_loss\) of a was another gate's and is removed"):
        assert noted(0.6, 4) == (7, "by dev")
