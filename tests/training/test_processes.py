from types import SimpleNamespace

import pytest
import torch

from kbtrain.errors import UserError, require
from kbtrain.training.processes import check_zero, end_processes, names_optimizer, start_processes


def test_an_optional_package_that_is_missing_is_named_with_its_extra():
    with pytest.raises(UserError, match=r'pip install "kbtrain\[train\]"'):
        require("no_such_package_here", "train", True)
    require("no_such_package_here", "train", False)


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
    monkeypatch.setattr("kbtrain.training.processes.require", lambda *_: None)
    monkeypatch.setattr("kbtrain.training.processes._compile_nothing", lambda: None)
    assert start_processes("cpu") == 2
    assert given.pop("timeout").total_seconds() >= 12 * 3600
    assert given == ({"backend": "gloo"} if deepspeed == "true" else {"cpu": True})


def test_what_deepspeed_would_do_is_read_from_its_configuration():
    def accelerator(stage, config):
        plugin = SimpleNamespace(zero_stage=stage, deepspeed_config=config)
        return SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))

    check_zero(accelerator(2, {}))
    with pytest.raises(UserError, match="launcher: ZeRO-3 splits the weights, which no recipe saves"):
        check_zero(accelerator(3, {}))
    assert names_optimizer(accelerator(2, {"optimizer": {"type": "AdamW"}}))
    assert not names_optimizer(SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=None)))


def test_a_group_of_ranks_is_ended_and_where_there_is_none_nothing_is(tmp_path):
    """NCCL warned at the end of every training that it was still there."""
    end_processes()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    end_processes()
    assert not torch.distributed.is_initialized()
