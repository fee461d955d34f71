"""The check of a configuration: everything that is wrong with it, without a model and without its data."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from kbtrain.config_check import check_config, text
from kbtrain.errors import UserError
from kbtrain.runtime.scripts import shipped


def config(folder: Path, lines: str) -> Path:
    path = folder / "mine.yaml"
    path.write_text(textwrap.dedent(lines))
    return path


@pytest.mark.parametrize("path", shipped("configs").values(), ids=lambda path: path.stem)
def test_every_shipped_configuration_is_right_and_belongs_to_the_script_of_its_head(path):
    checked = check_config(path, [], look_for_files=False)
    assert checked.problems == ()
    assert (checked.script.split("'")[0]) in path.read_text()


def test_every_problem_is_told_at_once_with_its_line(tmp_path):
    path = config(
        tmp_path,
        """\
        # python recipes/train_kbm.py --config mine.yaml
        model: gpt2
        epochz: 3
        epochs: many
        device_batch_size: 0
        train: gone.jsonl
        """,
    )
    problems = check_config(path, []).problems
    assert problems[0] == f"{path}:3: unknown key 'epochz'; did you mean 'epochs'?"
    assert problems[1].startswith(f"{path}:4: key 'epochs': input should be a valid number")
    assert problems[2].startswith(f"{path}:5: key 'device_batch_size': input should be greater than or equal to 1")
    assert problems[3:] == (f"{path}:6: key 'train': gone.jsonl: no such file or folder",)


def test_an_impossible_pair_is_found_although_paths_are_still_to_be_given(tmp_path):
    path = config(tmp_path, "# python data_gen/collect.py --config mine.yaml\nlimit: 3\ntrain: 2\n")
    (problem,) = check_config(path, []).problems
    assert "limit is for all splits together" in problem


def test_changes_count_like_the_command_line(tmp_path):
    checked = check_config(shipped("configs")["kbm_smollm2"], ["epochs=0", "--train", "gone.jsonl"])
    assert checked.problems[0].startswith("command line: key 'epochs': input should be greater than 0, found 0")
    assert checked.problems[1] == "command line: key 'train': gone.jsonl: no such file or folder"
    assert checked.to_give == ("output",)


def test_what_the_command_line_must_add_is_said():
    path = shipped("configs")["dialogue_smollm2"]
    said = text(path, check_config(path, [], look_for_files=False))
    assert said.endswith("keys of train_dialogue are right; still to give: --train, --output, --dev")


def test_a_file_without_a_head_belongs_to_the_script_that_knows_its_keys(tmp_path):
    assert check_config(config(tmp_path, "tau_mastery: 0.5\nby: greedy\n"), []).script == "label"
    with pytest.raises(UserError, match=r"keys of collect, .*; say whose they are: --script NAME$"):
        check_config(config(tmp_path, "run: x\ndataset: atlas\n"), [])
    assert check_config(config(tmp_path, "run: x\n"), [], script="score").script == "score"


def test_a_copy_of_a_recipe_is_checked_by_its_own_config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my.py").write_text(shipped("recipes")["train_kbm"].read_text().replace("label_smoothing", "my_smoothing"))
    path = config(tmp_path, "# python my.py --config mine.yaml\nmy_smoothing: 0.1\n")
    assert check_config(path, []).problems == ()
