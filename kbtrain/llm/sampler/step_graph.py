"""Decode steps replayed as a CUDA graph: on a GPU a step else takes as long as Python needs to start its small kernels.

A graph repeats its kernels on tensors of fixed sizes: each prompt has ``width`` rows of the model's batch, used or not.
A model is captured if its keys and values have one shape in all layers, and if the replayed logits equal those of the
same steps started from Python. So are passes with further forward hooks: a replay runs none.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel

from kbtrain.kernels.packed_linear import weight_versions
from kbtrain.llm.sampler.observer import Row
from kbtrain.llm.sampler.shared_prefix import Layout, OwnLayer, Prefix, attend_to
from kbtrain.models.forward import with_cache

_PAYS = 16  # tokens of an answer from which a capture, which takes as long as a few steps, pays
_WASTE = 2  # a grid may have this multiple of the rows, or prompt places, that are needed
_ALIGNED = 32  # places are a multiple of it
_CHECKED = 3  # steps that are compared
_SAME = 0.02  # of the logits' spread: what the number format may round otherwise in a replay
_CANNOT = (RuntimeError, ValueError, TypeError, AttributeError, KeyError)


@dataclass(frozen=True)
class Grid:
    """Sizes of a decoding: prompts, rows of each, places of a prompt's tokens and of an answer's."""

    questions: int
    width: int
    length: int
    room: int

    def serves(self, needed: Grid) -> bool:
        """True if ``needed`` fits into this one and leaves little of it unused."""
        fits = all(size >= need for size, need in zip(astuple(self), astuple(needed), strict=True))
        rows, places = (grid.questions * grid.width for grid in (self, needed)), self.questions * self.length
        return fits and next(rows) <= _WASTE * next(rows) and places <= _WASTE * needed.questions * needed.length

    def rounded(self) -> Grid:
        """The next sizes that are captured: lengths in steps of an eighth to a quarter of them."""
        step = max(_ALIGNED, 2 ** (self.length.bit_length() - 3))
        return Grid(self.questions, self.width, -(-self.length // step) * step, -(-self.room // _ALIGNED) * _ALIGNED)


class _GridLayer(OwnLayer):
    """As :class:`OwnLayer`, with every row, and the place of the newest token in a tensor ``newest`` (1,)."""

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, newest: torch.Tensor) -> None:
        super().__init__(len(keys), keys.shape[2])
        self.keys, self.values, self.newest = keys, values, newest
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (rows, kv heads, 1, size) to the newest place; returns all places."""
        self.length += 1
        keys, values = self._both()
        return keys.index_copy_(2, self.newest, key_states), values.index_copy_(2, self.newest, value_states)


class StepGraph:
    """Decode the rows of a grid in lockstep; row i of question q is row ``q * width + i`` of the batch. The next step
    overwrites the logits."""

    def __init__(self, model: PreTrainedModel, grid: Grid, cache: DynamicCache, capture: bool = True) -> None:
        """``cache``: of such prompts; its layers' sizes are taken. ``capture`` False: each step is started from Python.
        Raises RuntimeError where the model's step cannot be captured, or a replay computes something else."""
        self.model, self.grid = model, grid
        layers: list[Any] = cache.layers
        _, heads, _, size = layers[0].keys.shape
        rows, places = grid.questions * grid.width, grid.length + grid.room
        # keys and values of all layers, side by side
        self._prompts = layers[0].keys.new_zeros(2, len(layers), grid.questions, heads, places, size)
        self._own = layers[0].keys.new_zeros(2, len(layers), rows, heads, grid.room, size)
        self._bias = layers[0].keys.new_zeros(grid.questions, 1, 1, places)
        self._newest = torch.zeros(1, dtype=torch.long, device=model.device)
        self._tokens, self._positions = self._newest.new_zeros(2, rows, 1)
        self._layers = [_GridLayer(keys, values, self._newest) for keys, values in zip(*self._own, strict=True)]
        self._cache = DynamicCache()
        self._cache.layers = list(self._layers)
        layout = Layout(grid.questions, grid.width, None)
        keys, values = map(list, self._prompts)
        self._prefix = Prefix(keys, values, self._bias, layout, grid.room, bias_end=grid.room)
        self._modules = list(model.modules())
        self._hooks = self._count_hooks()
        self._logits: torch.Tensor | None = None
        if capture:
            self._capture()

    def begin(self, cache: DynamicCache, lengths: Sequence[int]) -> None:
        """Take over what the cache holds of prompts of these lengths."""
        self._clear(lengths)
        longest, layers = max(lengths), list[Any](cache.layers)
        for whole, name in zip(self._prompts, ("keys", "values"), strict=True):
            for states, layer in zip(whole, layers, strict=True):
                states[: len(lengths), :, :longest] = getattr(layer, name)[:, :, :longest]
                setattr(layer, name, None)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed each row's newest token (rows,), of unused ones any; logits of the next one, (rows, vocabulary)."""
        self._tokens.copy_(tokens.unsqueeze(1))
        if self._logits is None or self._count_hooks() != self._hooks:
            return self._start()
        self._graph.replay()
        return self._logits

    def copy(self, rows: Sequence[int], to: Sequence[int]) -> None:
        """Write copies of the rows' tokens to other rows of their questions."""
        source, target = (torch.tensor(places, device=self.model.device) for places in (rows, to))
        self._own.index_copy_(2, target, self._own.index_select(2, source))

    def _count_hooks(self) -> int:
        return sum(len(module._forward_hooks) for module in self._modules)

    def _start(self) -> torch.Tensor:
        """A step, each of its kernels started from Python: what is captured."""
        self._newest += 1
        self._positions += 1
        self._bias.index_fill_(-1, self._newest + self.grid.length, 0.0)
        with attend_to(self._prefix, self.model):
            output = self.model(
                input_ids=self._tokens, position_ids=self._positions, **with_cache(self.model, self._cache)
            )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _clear(self, lengths: Sequence[int]) -> None:
        """Empty tensors before prompts of these lengths; a question without a prompt has one token of zeros."""
        self._prompts.zero_()
        self._own.zero_()
        self._newest.fill_(-1)
        every = torch.tensor([*lengths, *[1] * (self.grid.questions - len(lengths))], device=self.model.device)
        behind = torch.arange(self._bias.shape[-1], device=self.model.device) >= every.unsqueeze(1)
        self._bias.zero_().masked_fill_(behind[:, None, None], float("-inf"))
        self._positions.copy_((every - 1).repeat_interleave(self.grid.width).unsqueeze(1))
        for layer in self._layers:
            layer.length = 0

    def _capture(self) -> None:
        """Capture a step, and compare its replays with the same steps started from Python."""
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            expected = self._trial(self._start)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            logits = self._start()
        current.wait_stream(stream)

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        gap = float((self._trial(replay) - expected).square().mean().sqrt() / expected.std())
        if not gap <= _SAME:
            raise RuntimeError(f"its replayed logits differ by {gap:.2g} of their spread")
        self._graph, self._logits = graph, logits

    def _trial(self, step: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Logits of some rows behind steps of given tokens over random prompts. Raises RuntimeError for a step that
        waits for the GPU: it cannot be captured."""
        random = torch.Generator(self.model.device).manual_seed(0)
        self._clear([self.grid.length] * self.grid.questions)
        self._prompts[..., : self.grid.length, :].normal_(generator=random)
        mode = torch.cuda.get_sync_debug_mode()
        for i in range(_CHECKED):
            self._tokens.fill_(i + 1)
            torch.cuda.set_sync_debug_mode("error" if i else mode)  # the first one may prepare things
            try:
                logits = step()
            finally:
                torch.cuda.set_sync_debug_mode(mode)
        return logits[:: max(1, len(logits) // _ALIGNED)].float()


class StepGraphs:
    """The newest graph of a model's decode steps, captured anew where it does not serve; none on a CPU. ``problem``:
    why the model's steps are started from Python; a warning says so, once."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        on_gpu = model.device.type == "cuda" and model.device.index in (None, torch.cuda.current_device())
        self.problem: str | None = None if on_gpu else "it is not on the current GPU"
        if os.environ.get("KBTRAIN_CUDA_GRAPHS") == "0":
            self.problem = "KBTRAIN_CUDA_GRAPHS is 0"
        self.capture = True
        self._kept: StepGraph | None = None
        self._versions: list[tuple[int, int]] = []

    def take(self, cache: DynamicCache, lengths: Sequence[int], rows: Sequence[Row], room: int) -> StepGraph | None:
        """A graph for these rows, the caller's until :meth:`keep`, with the cache's content; None: steps are started
        from Python."""
        per_question = [0] * len(lengths)
        for row in rows:
            per_question[row.sequence] += 1
        needed = Grid(len(lengths), max(per_question), max(lengths), room)
        if self.problem or room < _PAYS or needed.questions * needed.width > _WASTE * len(rows):
            return None
        layers: list[Any] = cache.layers
        if len({(s.shape, s.dtype, s.device) for layer in layers for s in (layer.keys, layer.values)}) != 1:
            self.problem = "its layers' keys and values have several shapes"
            return None
        versions = weight_versions(itertools.chain(self.model.parameters(), self.model.buffers()))
        if versions != self._versions:  # a graph would read the old ones
            self._kept, self._versions = None, versions
        graph, self._kept = self._kept, None  # another decoding may not use it meanwhile
        if graph is None or not graph.grid.serves(needed):
            graph = None  # its memory is free for the new one
            graph = self._new(needed.rounded(), cache)
        if graph is not None:
            graph.begin(cache, lengths)
        return graph

    def keep(self, graph: StepGraph) -> None:
        """Keep a graph for the next decoding."""
        self._kept = graph

    def _new(self, grid: Grid, cache: DynamicCache) -> StepGraph | None:
        try:
            return StepGraph(self.model, grid, cache, self.capture)
        except _CANNOT as error:
            if "out of memory" in str(error):
                raise
            self.problem = str(error).splitlines()[0][:100]
            warnings.warn(f"each kernel of a decode step is started from Python (slow): {self.problem}", stacklevel=2)
            return None


class GridSequences:
    """As :class:`~kbtrain.llm.sampler.sampler.DistinctSequences`, each sequence a row of a grid."""

    def __init__(self, rows: Sequence[Row], grid: Grid, merge: bool = True) -> None:
        self._width = grid.width
        self.newest = [0] * (grid.questions * grid.width)
        used = [0] * grid.questions
        places: dict[tuple[int, int, int], int] = {}
        for i, row in enumerate(rows):
            question = row.sequence
            start = (question, row.feed[0], 0 if merge else i)
            if start not in places:
                places[start] = question * grid.width + used[question]
                used[question] += 1
            row.sequence = places[start]
            self.newest[row.sequence] = row.feed[0]

    def grow(self, rows: Sequence[Row], graph: StepGraph) -> None:
        """Append each row's next token."""
        steps = list(dict.fromkeys((row.sequence, row.feed[0]) for row in rows))
        first, used = dict(reversed(steps)), {sequence for sequence, _ in steps}
        places, sources, targets = dict[tuple[int, int], int](), list[int](), list[int]()
        for sequence, token in steps:
            place = sequence
            if first[sequence] != token:
                start = sequence - sequence % self._width
                place = next(place for place in range(start, start + self._width) if place not in used)
                used.add(place)
                sources.append(sequence)
                targets.append(place)
            places[sequence, token] = place
            self.newest[place] = token
        if sources:
            graph.copy(sources, targets)
        for row in rows:
            row.sequence = places[row.sequence, row.feed[0]]
