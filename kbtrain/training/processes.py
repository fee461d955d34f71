"""Processes of a training: their number, agreed on by all libraries, number formats, and ZeRO-3's split weights.

ZeRO-3 splits every weight over the ranks; here they are gathered to be scored and saved.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from kbtrain.errors import UserError, at, require
from kbtrain.models.adapters import under_deepspeed

if TYPE_CHECKING:
    from torch import Tensor

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


def is_zero3(accelerator: Any) -> bool:
    """True if the launcher uses ZeRO-3."""
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    return plugin is not None and int(plugin.zero_stage) == 3


def names_optimizer(accelerator: Any) -> bool:
    """True if the launcher's DeepSpeed configuration names an optimizer: it has one learning rate for all weights."""
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    return plugin is not None and "optimizer" in plugin.deepspeed_config


def extra_batches(own_batches: int) -> int:
    """Forward passes that this rank must make on top of its own, so that all ranks make as many as the busiest.

    In ZeRO-3 each pass gathers weights from all ranks: one that stops early would leave the others waiting.
    """
    import torch

    counts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(counts, own_batches)
    return int(max(counts)) - own_batches


def gather_weights(model: Any) -> dict[str, Tensor]:
    """All weights whole, on the CPU of the first rank (the others get none); one at a time, so that none runs out of
    memory. Every rank must call it."""
    import deepspeed  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import torch

    first = torch.distributed.get_rank() == 0
    weights = {}
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if first:
                weights[name] = parameter.detach().cpu().clone()
    return weights


def load_weights_into(fresh: Callable[[], Any], weights: dict[str, Tensor]) -> Any:
    """A newly opened model, not split, with these weights. Raises :class:`UserError` if any is missing."""
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()  # else from_pretrained would split it again, waiting for ranks that do not come
    model = fresh()
    result = model.load_state_dict(weights, strict=False)
    named = {name for name, _ in model.named_parameters()}
    missing = [name for name in result.missing_keys if name in named]
    if missing or result.unexpected_keys:
        wrong = (*missing, *result.unexpected_keys)[0]
        raise UserError(f"gathering the weights of ZeRO-3: '{wrong}' does not fit the model; nothing was saved")
    return model
