"""How many processes train together, that all libraries agree on it, and what they compute in."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kbtrain.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")


def start_processes(device: str) -> int:
    """Join the other ranks that the launcher started; returns their number (1 without a launcher).

    DeepSpeed on CPU needs the explicit gloo group: without it accelerate takes each rank for a single process, and
    all would train on the same data without a word. Raises :class:`UserError` if the numbers do not agree.
    """
    from accelerate.state import PartialState  # type: ignore[import-untyped]

    require("deepspeed", "train", under_deepspeed())
    wanted = int(os.environ.get("WORLD_SIZE", "1"))
    on_cpu = device == "cpu"
    alone = wanted == 1
    explicit = not alone and on_cpu and under_deepspeed()
    if on_cpu and under_deepspeed():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if explicit:
        _compile_nothing()
    state = PartialState(backend="gloo") if explicit else PartialState(cpu=on_cpu)
    together = state.num_processes if alone or state.distributed_type.value != "NO" else 1
    if together != wanted:
        raise UserError(
            f"launcher: {wanted} processes were started but {together} would train together; "
            "use a launch file of ds_configs/"
        )
    return wanted


def _compile_nothing() -> None:
    """DeepSpeed on CPU would compile a shared-memory sum at its first start (a minute, and a C++ compiler must be
    there), which only inference uses. Gloo does without."""
    import deepspeed.ops  # type: ignore[import-not-found,import-untyped,unused-ignore]

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def require(package: str, extra: str, needed: bool) -> None:
    """Raises :class:`UserError` with the command that installs an optional package."""
    if needed and importlib.util.find_spec(package) is None:
        raise UserError(f"package '{package}' is needed and not installed: pip install \"kbtrain[{extra}]\"")


def main_first(task: Callable[[], T]) -> T:
    """Do it in the first rank, then in the others, which find its files."""
    from accelerate.state import PartialState

    with PartialState().main_process_first():
        return task()


def under_deepspeed() -> bool:
    """Whether ``accelerate launch`` was told to use DeepSpeed."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def compute_dtype(name: str, device: str, model: PreTrainedModel) -> str:
    """fp32, bf16 or fp16; ``auto`` measures, so ask once for all ranks and for every resume."""
    from kbtrain.models.precision import choose_dtype, name_of

    return name_of(choose_dtype(name, device, model.config.model_type))
