"""Of a model's last layer, what anyone reads: the states of a prompt's last token, or of a few.

Keys and values of all tokens are needed, and so are all states of the layers before; but the last layer's attention,
output and MLP for the other tokens go nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel


@dataclass(frozen=True)
class _Wanted:
    layer: int
    places: torch.Tensor  # (n,) of the tokens that are fed, rising


_WANTED: ContextVar[_Wanted | None] = ContextVar("kbtrain_wanted_states", default=None)


@contextmanager
def only(model: PreTrainedModel, places: torch.Tensor) -> Iterator[None]:
    """Within it, the last layer's states are right for the tokens at ``places`` (n,), the same in every row of a
    batch, and anything for others. For the Llama family, whose MLP is a module ``mlp`` of its layer."""
    layers: Any = model.get_decoder().layers
    mlp = layers[-1].mlp
    before = mlp.__dict__.get("forward")
    whole = mlp.forward

    def forward(states: torch.Tensor) -> torch.Tensor:
        made = torch.zeros_like(states)
        made[:, places] = whole(states[:, places])
        return made

    mlp.forward = forward
    token = _WANTED.set(_Wanted(len(layers) - 1, places.sort().values))
    try:
        yield
    finally:
        _WANTED.reset(token)
        if before is None:
            del mlp.forward
        else:
            mlp.forward = before


def unread(module: Any, start: int, end: int) -> bool:
    """Whether nobody reads what this layer's attention makes of the fed tokens ``start`` to ``end``."""
    wanted = _WANTED.get()
    if wanted is None or module.layer_idx != wanted.layer:
        return False
    return not bool(((wanted.places >= start) & (wanted.places < end)).any())
