"""The frame of a recipe: who speaks, what a bar shows, and what a card records of a run."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kbtrain.training.base_trainer import ProgressBar
from kbtrain.training.config import TrainingConfig
from kbtrain.training.recipe import Recipe


@pytest.fixture
def config(tmp_path):
    return TrainingConfig(model="m", train=Path("train.jsonl"), output=tmp_path)


def test_only_the_first_rank_speaks(config, capsys, monkeypatch):
    Recipe("train_kbm", config).say("done")
    monkeypatch.setenv("RANK", "1")
    Recipe("train_kbm", config).say("done")
    Recipe("train_kbm", config).show("a table")
    assert capsys.readouterr().out == "train_kbm: done\n"


def test_the_bar_shows_the_loss_and_dev_s_last_figures():
    bar = ProgressBar("train", silent=True)
    for step, logs in ((8, {"loss": 0.5}), (8, {"eval_loss": 0.25}), (9, {"loss": 0.4}), (10, {"train_runtime": 1.0})):
        bar.on_log(None, SimpleNamespace(is_world_process_zero=True, global_step=step, max_steps=10), None, logs)
    assert bar.figures == {"loss": 0.4, "dev loss": 0.25}
    assert (bar.bar.total, bar.bar.initial) == (10, 7)  # steps 1 to 7 were done before the run was killed


def test_a_card_records_key_facts_and_device(config):
    recipe = Recipe("train_kbm", config)
    recipe.key, recipe.device, recipe.processes = {"train_sha256": "00"}, "cpu", 2
    facts = recipe.facts(compute="fp32")
    assert facts.pop("seconds") >= 0
    assert facts == {"train_sha256": "00", "compute": "fp32", "device": "cpu", "processes": 2}


def test_the_group_of_ranks_ends_with_the_process_and_not_with_its_first_training(config, tmp_path, monkeypatch):
    """Ended at once, the next training in the same processes waited for ranks that did not come."""
    at_end = []
    monkeypatch.setattr("atexit.register", at_end.append)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    try:
        Recipe("train_kbm", config).leave()
        assert torch.distributed.is_initialized()
        at_end[-1]()
        assert not torch.distributed.is_initialized()
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
