"""Processes of a training: their number, agreed on by all libraries, and what DeepSpeed is to do in them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from kbtrain.errors import UserError, at, require
from kbtrain.models.adapters import under_deepspeed

T = TypeVar("T")

_PATIENCE = timedelta(days=1)  # of ranks that wait while the first saves and scores; torch's own is 10 or 30 minutes


def start_processes(device: str) -> int:
    """Join the other ranks that the launcher started; returns their number (1 without a launcher).

    DeepSpeed on CPU needs the explicit gloo group: without it accelerate takes each rank for a single process, and
    all would train on the same data without a word. Raises :class:`UserError` if the numbers do not agree.
    """
    from accelerate.state import PartialState  # type: ignore[import-untyped]

    require("deepspeed", "train", under_deepspeed())
    expected = int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = device == "cpu"
    alone = expected == 1
    explicit = not alone and on_cpu and under_deepspeed()
    if on_cpu:  # said, so that DeepSpeed does not warn of having found nothing better, wherever it is installed
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if explicit:
        _compile_nothing()
    how: dict[str, Any] = {"backend": "gloo"} if explicit else {"cpu": on_cpu}
    state = PartialState(**how, timeout=_PATIENCE)
    together = state.num_processes if alone or state.distributed_type.value != "NO" else 1
    if together != expected:
        raise UserError(
            f"launcher: {expected} processes were started but {together} would train together; "
            "use a launch file of ds_configs/"
        )
    return expected


def end_processes() -> None:
    """End the group of ranks, where there is one."""
    import torch

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _compile_nothing() -> None:
    """DeepSpeed on CPU would compile a shared-memory sum at its first start (a minute, and a C++ compiler must be
    there), which only inference uses. Gloo does without."""
    import deepspeed.ops  # type: ignore[import-not-found,import-untyped,unused-ignore]

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def check_shared(folder: Path, patience: float = 60) -> None:
    """Raise :class:`UserError` in every rank unless all see the first one's ``folder``: on several machines it must
    lie on a disk that they share, or a resumed training would find its checkpoint on one of them alone.

    ``patience``: seconds until a network disk shows what another machine has written.
    """
    import torch

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    first, name_of_note = torch.distributed.get_rank() == 0, [uuid4().hex]
    torch.distributed.broadcast_object_list(name_of_note)
    note = folder / f".together-{name_of_note[0]}"
    if first:
        folder.mkdir(parents=True, exist_ok=True)
        note.touch()
    torch.distributed.barrier()
    until = time.monotonic() + patience
    while not (is_visible := note.exists()) and time.monotonic() < until:
        time.sleep(0.1)
    without: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(without, None if is_visible else socket.gethostname())
    if first:
        note.unlink()
    if lacking := sorted({name for name in without if name is not None}):
        raise UserError(
            f"{at(folder)}: not the same folder on all machines ({', '.join(lacking)} did not see what the first rank "
            "wrote there); give an output on a disk that they share"
        )


def main_first(task: Callable[[], T]) -> T:
    """Do it in the first rank, then in the others, which find its files."""
    from accelerate.state import PartialState

    with PartialState().main_process_first():
        return task()


def check_zero(accelerator: Any) -> None:
    """Raise :class:`UserError` for ZeRO-3, whose split weights the first rank cannot save alone."""
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    if plugin is not None and int(plugin.zero_stage) == 3:
        raise UserError("launcher: ZeRO-3 splits the weights, which no recipe saves; use ds_configs/zero2.json")


def names_optimizer(accelerator: Any) -> bool:
    """True if the launcher's DeepSpeed configuration names an optimizer: it has one learning rate for all weights."""
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    return plugin is not None and "optimizer" in plugin.deepspeed_config
