import pytest

from kbtrain.errors import UserError, require
from kbtrain.training.processes import start_processes


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
