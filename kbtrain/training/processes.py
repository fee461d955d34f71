"""How many processes train together, and that all libraries agree on it."""

from __future__ import annotations

import os

from kbtrain.errors import UserError


def start_processes(device: str) -> int:
    """Join the other ranks that the launcher started; returns their number (1 without a launcher).

    Without the explicit gloo group, accelerate takes DeepSpeed ranks on CPU for single processes, and each would
    train on all data without a word. Raises :class:`UserError` if the numbers do not agree.
    """
    from accelerate.state import PartialState  # type: ignore[import-untyped]

    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = device == "cpu"
    state = PartialState(backend="gloo") if wanted > 1 and on_cpu else PartialState(cpu=on_cpu)
    if state.num_processes != wanted:
        raise UserError(
            f"launcher: {wanted} processes were started but accelerate sees {state.num_processes}; "
            "use a launch file of ds_configs/"
        )
    return wanted


def under_deepspeed() -> bool:
    """Whether ``accelerate launch`` was told to use DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"
