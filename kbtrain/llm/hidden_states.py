"""Hidden states of a model: the residual stream behind its layers; of one layer the output of its MLP, and how spread
its attention is.

SeaKR (section 3.1) reads the MLP's output *before* it is added to the residual: for 32 layers that of layer 15 (from
0), which is not ``hidden_states[16]``. A hook finds it in any model whose layers are built as usual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from kbtrain.arrays import States
from kbtrain.errors import UserError, did_you_mean
from kbtrain.models.weights import no_numbers


@dataclass
class StatesReading:
    """The newest pass's states at the last position of each row, (rows, d), in the model's number format.

    ``attention`` (rows,): :func:`attention_entropy` of the layer; None where the pass gave no attention weights.
    """

    mlp: torch.Tensor | None = None
    residual: torch.Tensor | None = None
    attention: torch.Tensor | None = None


class StateTap:
    """Reads one layer of a model. ``layer`` None: the middle one; ``mlp`` None: found by the layer's structure.

    Raises :class:`UserError` for a layer that is not there, or an MLP that has to be named.
    """

    def __init__(self, model: PreTrainedModel, layer: int | None = None, mlp: str | None = None) -> None:
        blocks = decoder_layers(model)
        self.layer = middle(len(blocks)) if layer is None else layer
        if not 0 <= self.layer < len(blocks):
            raise UserError(f"key 'layer': {self.layer} is not in 0 to {len(blocks) - 1}, the layers of this model")
        self._block = blocks[self.layer]
        # its attention, where that is one module
        attentions = [part for name, part in _parts(self._block) if "att" in name]
        self._attention = attentions[0] if len(attentions) == 1 else None
        self.mlp = mlp_name(self._block) if mlp is None else mlp
        try:
            self._mlp = self._block.get_submodule(self.mlp)
        except AttributeError:
            names = [name for name, _ in self._block.named_children()]
            raise UserError(
                f"key 'mlp': layer {self.layer} has no '{self.mlp}'; {did_you_mean(self.mlp, names)}"
            ) from None

    @contextmanager
    def reading(self) -> Iterator[StatesReading]:
        """Context in which each forward pass of the model replaces the content of the reading."""
        newest = StatesReading()

        def of_mlp(module: Any, args: Any, output: Any) -> None:
            newest.mlp = _last(output)

        def of_block(module: Any, args: Any, output: Any) -> None:
            newest.residual = _last(output)

        def of_attention(module: Any, args: Any, output: Any) -> None:
            weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
            newest.attention = attention_entropy(weights) if isinstance(weights, torch.Tensor) else None

        handles = [self._mlp.register_forward_hook(of_mlp), self._block.register_forward_hook(of_block)]
        handles += [] if self._attention is None else [self._attention.register_forward_hook(of_attention)]
        try:
            yield newest
        finally:
            for handle in handles:
                handle.remove()


@dataclass
class LastStates:
    """A pass's states after each of some layers, at the last token of each prompt: by layer, parts of (prompts, d)."""

    model: PreTrainedModel
    parts: list[list[torch.Tensor]]

    def array(self) -> States:
        """(prompts, layers, d) in fp32. Raises :class:`UserError` for NaN or infinity."""
        states: States = torch.stack([torch.cat(parts) for parts in self.parts], dim=1).float().cpu().numpy()
        if not np.isfinite(states).all():
            raise no_numbers(self.model, "the model's states are no numbers; try dtype fp32")
        return states


@contextmanager
def last_states(model: PreTrainedModel, layers: Sequence[int], last: Sequence[int]) -> Iterator[LastStates]:
    """Context of a pass whose states after each of ``layers`` are read at the prompts' last tokens.

    ``last`` are their places in what is fed, padded on the right; or the prompts are fed one by one.
    """
    reading = LastStates(model, [[] for _ in layers])
    blocks = decoder_layers(model)
    places = torch.tensor(last, device=model.device)
    rows = torch.arange(len(last), device=model.device)

    def keep(parts: list[torch.Tensor], output: Any) -> None:
        states: torch.Tensor = output[0] if isinstance(output, tuple) else output
        if states.ndim != 3:  # Gemma 3n's layers carry several streams
            raise UserError(
                f"{type(model).__name__}: its layers' states have {states.ndim} axes, expected prompts, tokens and "
                "width; a probe cannot read them"
            )
        together = len(states) == len(last)
        parts.append(states[rows, places].clone() if together else states[:, -1].clone())

    handles = [
        blocks[layer].register_forward_hook(lambda module, args, output, parts=parts: keep(parts, output))
        for layer, parts in zip(layers, reading.parts, strict=True)
    ]
    try:
        yield reading
    finally:
        for handle in handles:
            handle.remove()


def attention_entropy(weights: torch.Tensor) -> torch.Tensor:
    """Entropy of the last position's attention ``weights`` (rows, heads, positions, keys), divided by the logarithm of
    the number of keys that have any, mean over the heads: (rows,), from 0 (one key has all) to 1 (all have the same).

    The division makes prompts of unequal length comparable; masked keys have a weight of exactly 0.
    """
    last = weights[:, :, -1].float()
    shares = last / last.sum(-1, keepdim=True)
    n = (shares > 0).sum(-1).clamp(min=2).float()
    spread: torch.Tensor = (torch.special.entr(shares).sum(-1) / n.log()).mean(-1)
    return spread


def middle(n_layers: int) -> int:
    """SeaKR's layer: 15 (from 0) of 32."""
    return max(0, n_layers // 2 - 1)


def decoder_layers(model: PreTrainedModel) -> torch.nn.ModuleList:
    """The list of a decoder's layers, as many as in its config. Raises :class:`UserError` without one."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) == count and any(map(_is_block, module)):
            return module
    raise UserError(f"{type(model).__name__}: its {count} layers stand in no list; its states cannot be read")


def mlp_name(block: torch.nn.Module) -> str:
    """The one part of a layer that holds matrices and is not attention. Raises :class:`UserError` if it is not one."""
    parts = [name for name, _ in _parts(block) if "att" not in name]
    if len(parts) != 1:
        raise UserError(
            f"{type(block).__name__}: its MLP is not one module ({', '.join(parts) or 'none'}); name the one whose "
            "output is added to the residual with key 'mlp'"
        )
    return parts[0]


def _parts(block: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """Parts of a layer that hold matrices, by name."""
    return [(name, part) for name, part in block.named_children() if any(p.ndim > 1 for p in part.parameters())]


def _is_block(module: torch.nn.Module) -> bool:
    return any("att" in name for name, _ in module.named_children())


def _last(output: Any) -> torch.Tensor:
    """Mixtures of experts return more than their states; some flatten rows and positions, one position a row."""
    states: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return states[:, -1] if states.ndim == 3 else states
