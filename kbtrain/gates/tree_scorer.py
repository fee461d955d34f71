"""p(True) of each key of a True/False form by a causal language model: one forward pass a batch.

The tree of answers follows the prompt in the same row. Each tree token attends to the prompt and its own ancestors
only, and its position id is its depth, so every branch computes what it would compute alone.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError
from kbtrain.gates.true_false import AnswerTree, Encoded, Encoder, Values
from kbtrain.models.batching import common_start, is_memory_error, like_length
from kbtrain.models.forward import with_cache
from kbtrain.models.weights import check_scores
from kbtrain.records import Example, GateExample

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from kbtrain.llm.sampler.prefill import SharedPrefixCache

TOKENS_PER_BATCH = 4096  # rows x (longest prompt + tree): bounds memory, and is enough to keep matrix products fast
_BLOCKS_FROM = 128  # tokens of a row, start, prompt and tree (at 160, blocks are a twentieth faster)
# Two questions without a common word, of which one has a reference: what they share is the form's own.
_PROBES = (GateExample("1", "1", "test", "Who?", "en", None), GateExample("2", "2", "test", "an", "en", "It is."))


class Scorer:
    """p(True) of each key of a form: batches of like length, one forward pass each, summed over the branches.

    The constant beginning of all prompts (system turn, instruction, demonstrations) is computed once. ``spent`` counts
    ``prompt_tokens``.
    """

    def __init__(self, model: PreTrainedModel, encoder: Encoder) -> None:
        from kbtrain.kernels.memory import FreedMemory, keep_freed_memory

        check_model(model)
        if model.device.type == "cpu":
            keep_freed_memory()
        self._freed: FreedMemory | None = FreedMemory() if model.device.type == "cpu" else None
        self.model = model
        self.encoder = encoder
        self._forget()
        self.tokens_per_batch = TOKENS_PER_BATCH
        self.spent: Counter[str] = Counter()

    def probabilities(self, examples: Sequence[Example]) -> dict[str, list[float]]:
        """p(True) of each key, in the order of the examples. Raises :class:`UserError` if one is not a number."""
        rows = [self.encoder.encode(example) for example in examples]
        self.spent["prompt_tokens"] += sum(len(row.prompt) for row in rows)
        keys = self.encoder.template.keys
        by_key: dict[str, list[float]] = {key: [math.nan] * len(rows) for key in keys}
        was_training = self.model.training
        self.model.train(False)
        if was_training:
            self._forget()
        with self._packed:
            prefix = None if was_training else self.prefix_of([row.prompt for row in rows])
            for batch in like_lengths(rows, self.tokens_per_batch):
                for i, values in zip(batch, self._batch([rows[i] for i in batch], prefix), strict=True):
                    for key, p in zip(keys, marginals(values, len(keys)), strict=True):
                        by_key[key][i] = p
                if self._freed is not None:
                    self._freed.check()
        self.model.train(was_training)
        if was_training:  # what an optimizer writes to weights need not be counted: nothing of now may serve later
            self._forget()
        check_scores(self.model, examples, map(sum, zip(*by_key.values(), strict=True)))
        return by_key

    def _forget(self) -> None:
        """Drop what was computed from the weights: their packed form, and the prompts' beginning."""
        from kbtrain.kernels.packed_linear import PackedLinears

        self._packed = PackedLinears(self.model)
        self._prefix: SharedPrefixCache | None = None

    def prefix_of(self, prompts: Sequence[Sequence[int]]) -> SharedPrefixCache | None:
        """Cache of the beginning of all prompts, recomputed after a change of weights; None if too short, or where a
        prompt begins otherwise."""
        from kbtrain.llm.sampler.prefill import current_prefix

        self._prefix = current_prefix(self._prefix, self.model, self._beginning)
        return self._prefix if self._prefix and self._prefix.fits(prompts) else None

    @cached_property
    def _beginning(self) -> tuple[int, ...]:
        """A function of model and form alone, so that a score does not depend on which others it is computed with."""
        from kbtrain.llm.sampler.prefill import keeps_all

        if not keeps_all(self.model):
            return ()
        return common_start([self.encoder.encode(probe).prompt for probe in _PROBES])

    def _batch(self, rows: list[Encoded], prefix: SharedPrefixCache | None) -> list[dict[Values, float]]:
        """One forward pass; when memory runs out, two of half the rows."""
        tokenizer = self.encoder.tokenizer
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        try:
            return value_probabilities(self.model, rows, pad, prefix)
        except (MemoryError, RuntimeError) as error:
            if not is_memory_error(error) or len(rows) == 1:
                raise
        half = len(rows) // 2
        return self._batch(rows[:half], prefix) + self._batch(rows[half:], prefix)


def marginals(conditional: Mapping[Values, float], n_keys: int) -> list[float]:
    """p(True) of each key, summed over the earlier keys' values, from p(True | earlier values)."""
    reached: dict[Values, float] = {(): 1.0}
    totals = []
    for _ in range(n_keys):
        totals.append(math.fsum(p * conditional[values] for values, p in reached.items()))
        reached = {
            (*values, value): p * (conditional[values] if value else 1 - conditional[values])
            for values, p in reached.items()
            for value in (True, False)
        }
    return totals


def like_lengths(rows: Sequence[Encoded], tokens_per_batch: int) -> list[list[int]]:
    """Indices in batches of like length, longest first; rows of a batch share their answers' tokens."""
    lengths = [len(row.prompt) + len(row.tree.tokens) for row in rows]
    return like_length(lengths, tokens_per_batch, [row.tree for row in rows])


def check_model(model: PreTrainedModel) -> None:
    """Raises :class:`UserError` for a model whose rows cannot be masked token by token."""
    if hasattr(model, "get_base_model"):  # peft's wrapper passes everything on
        model = model.get_base_model()  # type: ignore[operator]
    config = model.config.get_text_config()
    names = inspect.signature(model.forward).parameters
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention", "sliding_attention"}
    problem = None
    if getattr(model, "_is_stateful", False) or kinds:
        problem = f"its layers ({', '.join(sorted(kinds)) or 'recurrent'}) do not take an attention mask"
    elif not {"position_ids", "logits_to_keep"} <= names.keys():
        problem = "its forward() takes no position_ids and logits_to_keep"
    elif config._attn_implementation not in {"sdpa", "eager"}:
        problem = f"attention '{config._attn_implementation}' takes no 4D mask; load it with sdpa"
    if problem:
        raise UserError(f"model type '{config.model_type}' cannot be a KBM: {problem}")


def value_probabilities(
    model: PreTrainedModel, rows: Sequence[Encoded], pad_id: int, prefix: SharedPrefixCache | None = None
) -> list[dict[Values, float]]:
    """For each row (all with one tree): p(next value is True | earlier values), pair-normalised, by earlier values.

    All rows begin with ``prefix``, which is not computed again.
    """
    import torch

    from kbtrain.kernels.causal_blocks import causal_blocks, pays, plain
    from kbtrain.models.forward import fp32_output_layer

    tree, n_prefix = rows[0].tree, len(prefix.ids) if prefix else 0
    prompts = [row.prompt[n_prefix:] for row in rows]
    room = max(map(len, prompts))
    device = model.device
    ids = [[pad_id] * (room - len(prompt)) + [*prompt, *tree.tokens] for prompt in prompts]
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    positions = n_prefix + tree_positions(lengths, room, tree)
    allowed = torch.nn.functional.pad(tree_mask(lengths, room, tree), (n_prefix, 0), value=True)
    nodes = sorted({place.node for place in tree.places.values()})
    answer_tokens = sorted({token for place in tree.places.values() for token in (place.true_id, place.false_id)})
    read = torch.tensor([room + node for node in nodes], device=device)
    in_blocks = plain(model) and pays(model, allowed.shape[-1], _BLOCKS_FROM)
    with (
        torch.no_grad(),
        fp32_output_layer(model, answer_tokens),
        causal_blocks(model, read) if in_blocks else nullcontext(),
    ):
        output = model(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=_as_model_takes_it(model, allowed.to(device), positions.to(device)),
            position_ids=positions.to(device),
            logits_to_keep=read,
            **(with_cache(model, prefix.before(len(rows))) if prefix else {"use_cache": False}),
        )
    row = {node: i for i, node in enumerate(nodes)}
    column = {token: i for i, token in enumerate(answer_tokens)}
    pairs = {
        values: output.logits[:, row[p.node], [column[p.true_id], column[p.false_id]]].float().softmax(-1)[:, 0]
        for values, p in tree.places.items()
    }
    by_values = {values: p.tolist() for values, p in pairs.items()}
    return [{values: p[i] for values, p in by_values.items()} for i in range(len(rows))]


def tree_positions(lengths: torch.Tensor, room: int, tree: AnswerTree) -> torch.Tensor:
    """(rows, room + tree) position ids: a prompt counts from 0 after its left padding, a tree token from its depth."""
    import torch

    start = (room - lengths)[:, None]
    prompt = (torch.arange(room)[None] - start).clamp(min=0)
    return torch.cat([prompt, lengths[:, None] + torch.tensor(tree.depths, dtype=torch.long)[None]], dim=1)


def tree_mask(lengths: torch.Tensor, room: int, tree: AnswerTree) -> torch.Tensor:
    """(rows, 1, width, width) booleans: True where a token (third axis) attends to another (fourth).

    Padding sees itself, since a softmax over nothing would be NaN; nothing sees padding.
    """
    import torch

    size = len(tree.tokens)
    allowed = torch.zeros(len(lengths), room + size, room + size, dtype=torch.bool)
    real = torch.arange(room)[None] >= (room - lengths)[:, None]
    allowed[:, :room, :room] = real[:, None, :] & torch.ones(room, room, dtype=torch.bool).tril()
    allowed[:, room:, :room] = real[:, None, :]
    family = torch.zeros(size, size, dtype=torch.bool)
    for i, parent in enumerate(tree.parents):
        if parent >= 0:
            family[i] = family[parent]
        family[i, i] = True
    allowed[:, room:, room:] = family
    allowed |= torch.eye(room + size, dtype=torch.bool)
    return allowed[:, None]


def _as_model_takes_it(model: PreTrainedModel, allowed: torch.Tensor, positions: torch.Tensor) -> Any:
    """Booleans for sdpa, numbers for all others; one mask per kind of layer where a model has sliding windows."""
    import torch

    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    before = torch.arange(allowed.shape[-1] - positions.shape[1], device=positions.device).expand(len(positions), -1)
    distance = positions[:, None, :, None] - torch.cat([before, positions], dim=1)[:, None, None, :]
    masks = {"full_attention": allowed}
    if window is not None and (kinds is None or "sliding_attention" in kinds):
        masks["sliding_attention"] = allowed & (distance < window)
    if config._attn_implementation != "sdpa":
        least = torch.finfo(model.dtype).min
        masks = {
            kind: torch.zeros(mask.shape, dtype=model.dtype, device=mask.device).masked_fill(~mask, least)
            for kind, mask in masks.items()
        }
    return masks if kinds and len(masks) > 1 else masks.popitem()[1]
