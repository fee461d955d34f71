"""The frame of a recipe: who speaks, what a bar shows, and what a card records of a run."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from kbtrain.errors import UserError
from kbtrain.training.base_trainer import ProgressBar, check_zero, names_optimizer
from kbtrain.training.config import TrainingConfig
from kbtrain.training.recipe import Recipe, start_processes


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


def test_ranks_that_would_not_train_together_are_refused(monkeypatch):
    """Without the check each would train on all data and say nothing."""
    monkeypatch.setenv("WORLD_SIZE", "2")

    class Alone:
        def __init__(self, **_):
            self.num_processes = 2

            class Kind:
                value = "NO"

            self.distributed_type = Kind

    monkeypatch.setattr("accelerate.state.PartialState", Alone)
    with pytest.raises(UserError, match="2 processes were started but 1 would train together"):
        start_processes("cpu")


@pytest.mark.parametrize("deepspeed", ["true", "false"])
def test_ranks_wait_for_as_long_as_the_first_saves_and_scores(monkeypatch, deepspeed):
    """After torch's own 10 minutes (gloo: 30) they ended the training that the first was about to finish."""
    given = {}

    def state(**how):
        given.update(how)
        return SimpleNamespace(num_processes=2, distributed_type=SimpleNamespace(value="MULTI_CPU"))

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", deepspeed)
    monkeypatch.setattr("accelerate.state.PartialState", state)
    monkeypatch.setattr("kbtrain.training.recipe.require", lambda *_: None)
    monkeypatch.setattr("kbtrain.training.recipe._compile_nothing", lambda: None)
    assert start_processes("cpu") == 2
    assert given.pop("timeout").total_seconds() >= 12 * 3600
    assert given == ({"backend": "gloo"} if deepspeed == "true" else {"cpu": True})


def test_what_deepspeed_would_do_is_read_from_its_configuration():
    def accelerator(stage, config):
        plugin = SimpleNamespace(zero_stage=stage, deepspeed_config=config)
        return SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))

    check_zero(accelerator(2, {}))
    with pytest.raises(UserError, match="launcher: ZeRO-3 shards parameters, which no recipe saves"):
        check_zero(accelerator(3, {}))
    assert names_optimizer(accelerator(2, {"optimizer": {"type": "AdamW"}}))
    assert not names_optimizer(SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=None)))
