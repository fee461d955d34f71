"""A training recipe's main in the process of the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kbtrain.config import Config, parse_args
from support import scripts


class Recipe:
    """``recipes/train_<name>.py``: called with command-line arguments, it trains; ``config`` is its configuration."""

    def __init__(self, name: str) -> None:
        self.module = scripts.load(f"recipes/train_{name}.py")
        kinds = [kind for kind in vars(self.module).values() if isinstance(kind, type) and issubclass(kind, Config)]
        (self.config,) = (kind for kind in kinds if kind.__module__ == self.module.__name__)

    def __call__(self, arguments: list[str]) -> None:
        import torch
        from accelerate.state import AcceleratorState, GradientState, PartialState

        torch.set_num_threads(1)
        states: Any = (AcceleratorState, GradientState, PartialState)
        for state in states:  # of the whole process, left by the training before
            state._reset_state()
        self.module.main(parse_args(self.config, arguments))


def losses(folder: Path) -> list[float]:
    """The losses that a training has logged, step by step."""
    state = json.loads((folder / "trainer_state.json").read_text())
    return [log["loss"] for log in state["log_history"] if "loss" in log]
