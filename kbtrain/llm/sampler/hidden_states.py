"""Hidden states of a model: the residual stream behind its layers, and the output of one layer's MLP.

The stream is read at the prompts' last tokens, and while the model begins its answers: states at an answer's own tokens
tell right from wrong better than the prompt's last token does ("LLMs Know More Than They Show", arXiv 2410.02707). They
are read in the steps that generate the answer: no further pass.

SeaKR (section 3.1) reads the MLP's output *before* it is added to the residual: for 32 layers that of layer 15 (from
0), which is not ``hidden_states[16]``. A hook finds it in any model whose layers are built as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from kbtrain.arrays import States
from kbtrain.errors import UserError, did_you_mean
from kbtrain.llm.sampler.observer import Observer, Row
from kbtrain.models.weights import no_numbers


@dataclass
class StatesReading:
    """The newest pass's states at the last position of each row, (rows, d), in the model's number format."""

    mlp: torch.Tensor | None = None
    residual: torch.Tensor | None = None


class StateTap:
    """Reads one layer of a model. ``layer`` None: the middle one; ``mlp`` None: found by the layer's structure."""

    def __init__(self, model: PreTrainedModel, layer: int | None = None, mlp: str | None = None) -> None:
        blocks = decoder_layers(model)
        self.layer = max(0, len(blocks) // 2 - 1) if layer is None else layer
        if not 0 <= self.layer < len(blocks):
            raise UserError(f"key 'layer': {self.layer} is not in 0 to {len(blocks) - 1}, the layers of this model")
        self._block = blocks[self.layer]
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

        handles = [self._mlp.register_forward_hook(of_mlp), self._block.register_forward_hook(of_block)]
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
    """Context of a pass whose states after each of ``layers`` are read at the prompts' last tokens: ``last`` are their
    places in what is fed, padded on the right; or the prompts are fed one by one."""
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


def decoder_layers(model: PreTrainedModel) -> torch.nn.ModuleList:
    """The list of a decoder's layers, as many as in its config. Raises :class:`UserError` without one."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if not isinstance(module, torch.nn.ModuleList) or len(module) != count:
            continue
        if any("att" in name for block in module for name, _ in block.named_children()):
            return module
    raise UserError(f"{type(model).__name__}: its {count} layers are not in a list; its states cannot be read")


def mlp_name(block: torch.nn.Module) -> str:
    """The one part of a layer that holds matrices and is not attention. Raises :class:`UserError` if it is not one."""
    with_matrices = [name for name, part in block.named_children() if any(p.ndim > 1 for p in part.parameters())]
    parts = [name for name in with_matrices if "att" not in name]
    if len(parts) != 1:
        raise UserError(
            f"{type(block).__name__}: its MLP is not one module ({', '.join(parts) or 'none'}); name the one whose "
            "output is added to the residual with key 'mlp'"
        )
    return parts[0]


def _last(output: Any) -> torch.Tensor:
    """Mixtures of experts return more than their states; some flatten rows and positions, one position a row."""
    states: torch.Tensor = output[0] if isinstance(output, tuple) else output
    return states[:, -1] if states.ndim == 3 else states


PARTS = 3  # states side by side: at the prompt's last token, mean over the draft, at the draft's last token


@dataclass
class _Draft:
    """States (layers, d) of one row: at the prompt's last token, summed over the draft's tokens, at the newest one."""

    at_prompt: States
    summed: States | float = 0.0
    newest: States | None = None
    read: int = 0  # tokens

    def states(self) -> States:
        """(layers, 3 d). An answer that ends before its first word counts the prompt's last token as its own."""
        last = self.at_prompt if self.newest is None else self.newest
        mean = self.summed / self.read if self.read else self.at_prompt
        return np.concatenate([self.at_prompt, mean, last], axis=-1, dtype=np.float32)


class StatesObserver(Observer):
    """States after ``layers`` (None: all) at the prompts, and at the first ``tokens`` tokens of their answers.
    ``row.notes[observer].states()``: (layers, 3 d) of prompt and draft (:data:`PARTS`), which ``take`` gets once they
    are complete, if there are ``tokens``. ``reads``: the rows whose states are read."""

    def __init__(
        self,
        tokens: int,
        layers: Sequence[int] | None = None,
        take: Callable[[Row, States], object] = lambda row, states: None,
        reads: Callable[[Row], bool] = lambda row: True,
    ) -> None:
        self.tokens = tokens
        self.layers = layers
        self.take = take
        self.reads = reads

    def tail_limit(self, max_tokens: int) -> int:
        """The last token of a draft that is cut, which is read, too."""
        return int(0 < max_tokens <= self.tokens)

    def reading(
        self, model: PreTrainedModel, rows: Sequence[Row], last: Sequence[int]
    ) -> AbstractContextManager[LastStates | None]:
        """Hooks in the passes of prompts and drafts only."""
        if not any(self._is_due(row) for row in rows):
            return nullcontext()
        return last_states(model, range(len(decoder_layers(model))) if self.layers is None else self.layers, last)

    def on_prefill(self, rows: Sequence[Row], read: LastStates | None) -> Sequence[Row]:
        if read is None:
            return rows
        states = read.array()
        for row in rows:
            if self._is_due(row):
                row.notes[self] = _Draft(states[row.sequence])
        return rows

    def on_step(self, rows: Sequence[Row], read: LastStates | None) -> None:
        """Note the states of the tokens that were fed, as far as they are the draft's."""
        if read is None:
            return
        states = read.array()
        for row in rows:
            draft: Any = row.notes.get(self)
            if draft is None or draft.read == self.tokens:
                continue
            draft.newest = states[row.sequence].copy()  # a view would keep the whole step's states
            draft.summed = draft.summed + draft.newest
            draft.read += 1
            if draft.read == self.tokens:
                self.take(row, draft.states())

    def tail(self, row: Row) -> Sequence[int]:
        """The last token of a draft that is cut; what follows an answer that has ended is not the answer's."""
        cut = row.finish == "length" and len(row.tokens) <= self.tokens
        return row.tokens[-1:] if cut and self.reads(row) else ()

    def done(self, row: Row) -> None:
        """Complete the draft of an answer that ended within it."""
        draft = row.notes.get(self)
        if draft is not None and draft.read < self.tokens:
            self.take(row, draft.states())

    def _is_due(self, row: Row) -> bool:
        """True if the row's next pass is read."""
        if self not in row.notes:
            return not row.tokens and self.reads(row)
        return bool(row.notes[self].read < self.tokens)
