"""Attention of many answers to one prompt, with the prompt's keys and values kept once.

The queries of a question's rows become one matrix product against it, whose scores are joined with those of each row's
own few tokens in one softmax. The function goes through transformers' attention interface, so it serves every causal
model that does, with full attention (or a window that is not full yet). :func:`prefix_problem` checks a model by its
config, then measures it against its own attention.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from kbtrain.llm.sampler.prefill import prefill
from kbtrain.models.forward import with_cache

NAME = "kbtrain_shared_prefix"


@dataclass
class Layout:
    """Assignment of rows to questions: row r sits in ``slots[r]`` of a (questions, width) grid."""

    n_questions: int
    width: int
    slots: torch.Tensor | None  # on the rows' device; None: the grid is full and in order

    @classmethod
    def from_rows(cls, question_of_row: Sequence[int], n_questions: int, device: torch.device | str = "cpu") -> Layout:
        counts = [0] * n_questions
        position = []
        for question in question_of_row:
            position.append((question, counts[question]))
            counts[question] += 1
        width = max(counts)
        in_order = all(count == width for count in counts) and list(question_of_row) == sorted(question_of_row)
        slots = None if in_order else torch.tensor([q * width + i for q, i in position], device=device)
        return cls(n_questions, width, slots)

    def to_grid(self, rows: torch.Tensor) -> torch.Tensor:
        """(rows, ...) to (questions, width, ...); empty places hold zeros."""
        if self.slots is None:
            return rows.view(self.n_questions, self.width, *rows.shape[1:])
        grid = rows.new_zeros(self.n_questions * self.width, *rows.shape[1:])
        return grid.index_copy_(0, self.slots, rows).view(self.n_questions, self.width, *rows.shape[1:])

    def to_rows(self, grid: torch.Tensor) -> torch.Tensor:
        flat = grid.flatten(0, 1)
        return flat if self.slots is None else flat.index_select(0, self.slots)


@dataclass
class Prefix:
    """Keys and values of the prompts, (questions, kv heads, length + room, head size) per layer, padded on the right.
    Scores to a row's own tokens are in the room, which is all zeros, so that scores and their products with the
    values are whole matrices, which need not be copied."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    bias: torch.Tensor | None  # (questions, 1, 1, last places of the prompts): -inf on padding; None without
    layout: Layout
    n_own: int = 0  # own tokens that each row has by now; places behind them are masked


ACTIVE: ContextVar[Prefix] = ContextVar("kbtrain_active_prefix")  # that the attention function reads


@contextmanager
def attend_to(prefix: Prefix, model: PreTrainedModel) -> Iterator[None]:
    """Context in which the model's attention is :func:`shared_prefix_attention`, to this prefix."""
    implementation, token = model.config._attn_implementation, ACTIVE.set(prefix)
    model.set_attn_implementation(NAME)
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)
        ACTIVE.reset(token)


class OwnLayer(DynamicLayer):
    """Keys and values of the generated tokens, written in place: appending by concatenation copies all of them."""

    def __init__(self, rows: int, capacity: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = rows
        self.capacity = capacity
        self.length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (rows, kv heads, 1, size); returns all so far, with zeros up to the capacity."""
        if not self.is_initialized:
            self.keys, self.values = (
                states.new_zeros(self.rows, states.shape[1], self.capacity, states.shape[-1])
                for states in (key_states, value_states)
            )
            self.is_initialized = True
        n, end = len(key_states), self.length + key_states.shape[-2]
        for whole, states in zip(self._both(), (key_states, value_states), strict=True):
            whole[:n, :, self.length : end] = states
        self.length = end
        keys, values = self._both()
        return keys[:n], values[:n]

    def copy(self, rows: torch.Tensor, to: int) -> None:
        """Write copies of these rows to the places from ``to`` on."""
        for whole in self._both():
            whole[to : to + len(rows), :, : self.length] = whole[rows, :, : self.length]

    def get_seq_length(self) -> int:
        return self.length

    def _both(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.keys is not None and self.values is not None  # for the type checker
        return self.keys, self.values


def shared_prefix_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention function. ``query`` (rows, heads, 1, size); ``key``/``value`` hold own tokens only,
    (rows, kv heads, room, size)."""
    if kwargs.get("s_aux") is not None or kwargs.get("position_bias") is not None:
        raise ValueError("attention sinks and position biases are not served by the shared prefix")
    prefix, (rows, heads, _, size) = ACTIVE.get(), query.shape
    scale = size**-0.5 if scaling is None else scaling
    scaled = (query * scale).view(rows, key.shape[1], -1, size)  # the heads that share a kv head side by side
    scores = _scores(scaled, prefix.keys[module.layer_idx], key, prefix.layout)
    if (softcap := kwargs.get("softcap")) is not None:
        scores.div_(softcap).tanh_().mul_(softcap)
    length = scores.shape[-1] - key.shape[2]
    if prefix.bias is not None:
        scores[..., length - prefix.bias.shape[-1] : length] += prefix.bias
    scores[..., length + prefix.n_own :] = float("-inf")
    torch.softmax(scores, dim=-1, out=scores)  # in place: writing it elsewhere costs as much as computing it
    output = _mixed(scores, prefix.values[module.layer_idx], value, prefix.layout)
    return output.reshape(rows, 1, heads, -1), None


def _scores(query: torch.Tensor, shared: torch.Tensor, generated: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Scores of ``query`` (rows, kv heads, group, size): (questions, kv heads, width * group, length + room)."""
    _, kv_heads, group, size = query.shape
    room = generated.shape[2]
    grid = layout.to_grid(query).transpose(1, 2).reshape(-1, layout.width * group, size)
    scores = torch.bmm(grid, shared.flatten(0, 1).transpose(1, 2))
    to_own = layout.to_grid(query @ generated.transpose(-1, -2)).transpose(1, 2)
    scores.view(-1, kv_heads, layout.width, group, scores.shape[-1])[..., -room:] = to_own
    return scores.view(-1, kv_heads, layout.width * group, scores.shape[-1])


def _mixed(shares: torch.Tensor, shared: torch.Tensor, generated: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Values (rows, kv heads, group, size) weighed by what :func:`_scores` became in the softmax."""
    kv_heads, room = generated.shape[1:3]
    flat = shares.flatten(0, 1)
    from_prefix = torch.bmm(flat, shared.flatten(0, 1))

    def back(x: torch.Tensor) -> torch.Tensor:
        grid = x.view(-1, kv_heads, layout.width, x.shape[1] // layout.width, x.shape[2])
        return layout.to_rows(grid.transpose(1, 2))

    return back(from_prefix) + back(flat[..., -room:].contiguous()) @ generated


AttentionInterface.register(NAME, shared_prefix_attention)

_LEAVE = 0.8  # prompts that no sequence continues leave once they are a fifth: leaving copies the others (measured)
_ALIGNED = 32  # row lengths of scores are a multiple of it: softmax is a fifth slower over odd ones (measured)


def room_behind(lengths: Sequence[int], tokens: int) -> int:
    """Places behind the longest of the prompts for ``tokens`` tokens of an answer."""
    return tokens + -(max(lengths) + tokens) % _ALIGNED


class SharedPrefixDecoder:
    """Decode sequences of several questions in lockstep, ``room`` tokens at most; it takes over what ``cache`` holds. A
    sequence is a row of the model's batch; ``most`` (None: as many as at first) is how many there may come to be."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: DynamicCache,
        lengths: Sequence[int],
        question_of_sequence: Sequence[int],
        room: int,
        most: int | None = None,
    ) -> None:
        self.model = model
        self.lengths = list(lengths)
        self.question_of_sequence = list(question_of_sequence)
        self.step_count = 0
        room = room_behind(lengths, room)
        self._own = [OwnLayer(most or len(question_of_sequence), room) for _ in cache.layers]
        self._cache = DynamicCache()
        self._cache.layers = list(self._own)
        layers: list[Any] = cache.layers
        bias = None
        if min(lengths) < max(lengths):  # -inf on padding, over the places that the shortest prompt does not reach
            padded = torch.arange(min(lengths), max(lengths)) >= torch.tensor(self.lengths).unsqueeze(1)
            zeros = layers[0].keys.new_zeros(padded.shape)
            bias = zeros.masked_fill_(padded.to(zeros.device), float("-inf"))[:, None, None, :]
        keys, values = zip(*(_take_cache(layer, max(lengths) + room) for layer in layers), strict=True)
        self._prefix = Prefix(
            list(keys), list(values), bias, Layout.from_rows(question_of_sequence, len(self.lengths), model.device)
        )

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Feed each sequence's newest token (sequences,); logits of the next one, (sequences, vocabulary)."""
        positions = torch.tensor([self.lengths[q] + self.step_count for q in self.question_of_sequence])
        self.step_count += 1
        self._prefix.n_own = self.step_count
        with attend_to(self._prefix, self.model):
            output = self.model(
                input_ids=tokens.unsqueeze(1),
                position_ids=positions.unsqueeze(1).to(self.model.device),
                **with_cache(self.model, self._cache),
            )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def branch(self, sequences: Sequence[int]) -> None:
        """Add copies of these sequences behind all others."""
        self._place(sequences, len(self.question_of_sequence))
        self._lay([*self.question_of_sequence, *(self.question_of_sequence[sequence] for sequence in sequences)])

    def keep(self, sequences: Sequence[int]) -> None:
        """Continue with these sequences only (rising order)."""
        self._place(sequences, 0)
        going = [self.question_of_sequence[sequence] for sequence in sequences]
        live = sorted(set(going))
        if len(live) <= _LEAVE * len(self.lengths):
            self._leave_but(live)
            place = {question: i for i, question in enumerate(live)}
            going = [place[question] for question in going]
        self._lay(going)

    def _leave_but(self, live: Sequence[int]) -> None:
        """Let go of all prompts but these: attention multiplies with every prompt that is held. Their places stay."""
        self.lengths = [self.lengths[question] for question in live]
        which = torch.tensor(live, device=self.model.device)
        for layers in (self._prefix.keys, self._prefix.values):
            for i, states in enumerate(layers):  # one after the other: the whole ones go at once
                layers[i] = states.index_select(0, which)
        if self._prefix.bias is not None:
            self._prefix.bias = self._prefix.bias.index_select(0, which)

    def _place(self, sequences: Sequence[int], to: int) -> None:
        which = torch.tensor(sequences, device=self.model.device)
        for layer in self._own:
            layer.copy(which, to)

    def _lay(self, question_of_sequence: list[int]) -> None:
        self.question_of_sequence = question_of_sequence
        self._prefix.layout = Layout.from_rows(question_of_sequence, len(self.lengths), self.model.device)


class CopiedPrefixDecoder:
    """The fallback for one question: the model's own attention over a copy of the prompt's cache for every row."""

    def __init__(
        self,
        model: PreTrainedModel,
        cache: DynamicCache,
        lengths: Sequence[int],
        question_of_sequence: Sequence[int],
        room: int,
        most: int | None = None,
    ) -> None:
        if len(lengths) != 1:
            raise ValueError(f"a copied prefix serves one question at a time, got {len(lengths)}")
        self.model = model
        self.position = lengths[0]
        self.cache = cache
        self.keep([0] * len(question_of_sequence))

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.full((len(tokens), 1), self.position, device=self.model.device)
        output = self.model(input_ids=tokens.unsqueeze(1), position_ids=positions, **with_cache(self.model, self.cache))
        self.position += 1
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def branch(self, sequences: Sequence[int]) -> None:
        """As :meth:`SharedPrefixDecoder.branch`; the prompt's keys and values are copied as well."""
        self.keep([*range(self._count), *sequences])

    def keep(self, sequences: Sequence[int]) -> None:
        which: Any = torch.tensor(sequences, device=self.model.device)
        self.cache.reorder_cache(which)  # every kind of layer has it; not every one has keys
        self._count = len(sequences)


def _take_cache(layer: Any, places: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A layer's keys and values, (questions, kv heads, places, size); the layer itself lets go of them."""
    keys, values = layer.keys, layer.values
    missing = places - keys.shape[2]
    if missing:  # a prefill that knew of the decoder left room for it
        keys, values = (torch.nn.functional.pad(states, (0, 0, 0, missing)) for states in (keys, values))
    layer.keys = layer.values = None
    return keys, values


_TOLERANCE = 0.2  # of the logits' spread: bf16 measured 0.03 to 0.12 (Gemma 3 270M), a lost prefix 0.5 and more


def prefix_problem(model: PreTrainedModel) -> str | None:
    """Reason why answers cannot share their prompt's keys and values, within a sliding window; None if they can."""
    if not all(type(layer).__name__ in _PLAIN_LAYERS for layer in DynamicCache(config=model.config).layers):
        return "its layers keep more than keys and values of every token"
    try:
        gap = _gap(model)
    except _CANNOT as error:
        return f"its attention cannot be replaced ({str(error).splitlines()[0][:100]})"
    return None if gap < _TOLERANCE else f"its logits differ from its own attention's by {gap:.2f} of their spread"


def prefix_sharing(model: PreTrainedModel, prompt_tokens: int, answer_tokens: int) -> tuple[bool, int | None]:
    """True if the answers to a prompt share it, and the sliding window that both must fit into for that. Warns where
    prompts of up to ``prompt_tokens`` tokens are copied, with answers of ``answer_tokens``."""
    window, problem, which = sliding_window(model), prefix_problem(model), "prompts"
    shared = problem is None
    if shared and window is not None and window < prompt_tokens + answer_tokens:
        which = f"prompts of more than {max(0, window - answer_tokens)} tokens"
        problem = f"its sliding window of {window} tokens"
    if problem:
        name = model.config.name_or_path or type(model).__name__
        warnings.warn(f"model '{name}': {which} are copied for every answer (slow): {problem}", stacklevel=3)
    return shared, window


_PLAIN_LAYERS = {"DynamicLayer", "DynamicSlidingWindowLayer"}
_CANNOT = (KeyError, ValueError, TypeError, AttributeError, RuntimeError)


def sliding_window(model: PreTrainedModel) -> int | None:
    """The smallest window that a layer really uses (Qwen2 names one that it switches off)."""
    layers: list[Any] = DynamicCache(config=model.config).layers
    windows = [layer.sliding_window for layer in layers if getattr(layer, "is_sliding", False)]
    return min(windows, default=None)


@torch.inference_mode()
def _gap(model: PreTrainedModel) -> float:
    """Root mean square difference, over their spread, of next-token logits behind three answers (two of the first of
    two prompts) to plain passes."""
    size = model.config.get_text_config().vocab_size
    prompts = [[(7 * i + 3) % size for i in range(8)], [(5 * i + 2) % size for i in range(5)]]
    new, of_answer = [11 % size, 13 % size, 17 % size], [0, 0, 1]
    cache, _ = prefill(model, prompts)
    decoder = SharedPrefixDecoder(model, cache, [len(ids) for ids in prompts], of_answer, 2)
    decoder.step(torch.tensor(new, device=model.device))
    logits = decoder.step(torch.tensor(new, device=model.device)).float()
    whole = [[*prompts[prompt], token, token] for prompt, token in zip(of_answer, new, strict=True)]
    plain = [model(input_ids=torch.tensor([ids], device=model.device)).logits[0, -1].float() for ids in whole]
    reference = torch.stack(plain)
    return float((logits - reference).square().mean().sqrt() / reference.std())
