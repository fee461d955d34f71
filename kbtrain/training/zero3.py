"""ZeRO-3 splits every weight over the ranks: how they are put together again to be scored and saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor


def is_zero3(accelerator: Any) -> bool:
    """Whether the launcher asked for ZeRO-3."""
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    return plugin is not None and int(plugin.zero_stage) == 3


def equal_turns(mine: int) -> int:
    """Forward passes that this rank must make on top of its own, so that all ranks make as many as the busiest.

    In ZeRO-3 each pass gathers weights from all ranks: one that stops early would leave the others waiting.
    """
    import torch

    counts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(counts, mine)
    return int(max(counts)) - mine


def gathered(model: Any) -> dict[str, Tensor]:
    """All weights whole, on the CPU of the first rank (the others get none); one at a time, so that none runs out of
    memory. Every rank must call it."""
    import deepspeed  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import torch

    first = torch.distributed.get_rank() == 0
    found = {}
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            if first:
                found[name] = parameter.detach().cpu().clone()
    return found


def put_into(fresh: Callable[[], Any], weights: dict[str, Tensor]) -> Any:
    """A model opened anew, not split, with these weights. Raises :class:`UserError` if any is missing."""
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
