"""p(True) at every value position of every answer in one forward pass over the prompt.

The tree of answers follows the prompt in the same row. Each tree token attends to the prompt and its own ancestors
only, and its position id is its depth, so every branch computes what it would compute alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from transformers import PreTrainedModel

from kbtrain.errors import UserError
from kbtrain.gates.true_false.template import AnswerTree, Encoded, Values
from kbtrain.kernels.causal_blocks import causal_blocks, pays, plain
from kbtrain.kernels.fp32_output_layer import fp32_output_layer
from kbtrain.llm.sampler.prefill import SharedPrefixCache

_BLOCKS_FROM = 128  # tokens of a row, start, prompt and tree (at 160, blocks are a twentieth faster)


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


@torch.no_grad()
def value_probabilities(
    model: PreTrainedModel, rows: Sequence[Encoded], pad_id: int, prefix: SharedPrefixCache | None = None
) -> list[dict[Values, float]]:
    """For each row (all with one tree): p(next value is True | earlier values), pair-normalised, by earlier values.

    All rows begin with ``prefix``, which is not computed again.
    """
    tree, n_prefix = rows[0].tree, len(prefix.ids) if prefix else 0
    prompts = [row.prompt[n_prefix:] for row in rows]
    room = max(map(len, prompts))
    device = model.device
    ids = [[pad_id] * (room - len(prompt)) + [*prompt, *tree.tokens] for prompt in prompts]
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    positions = n_prefix + tree_positions(lengths, room, tree)
    allowed = torch.nn.functional.pad(tree_mask(lengths, room, tree), (n_prefix, 0), value=True)
    nodes = tree.nodes
    answer_tokens = sorted({token for place in tree.places.values() for token in (place.true_id, place.false_id)})
    read = torch.tensor([room + node for node in nodes], device=device)
    in_blocks = plain(model) and pays(model, allowed.shape[-1], _BLOCKS_FROM)
    with fp32_output_layer(model, answer_tokens), causal_blocks(model, read) if in_blocks else nullcontext():
        output = model(
            input_ids=torch.tensor(ids, device=device),
            attention_mask=_as_model_takes_it(model, allowed.to(device), positions.to(device)),
            position_ids=positions.to(device),
            logits_to_keep=read,
            past_key_values=prefix.before(len(rows)) if prefix else None,
            use_cache=prefix is not None,
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
    start = (room - lengths)[:, None]
    prompt = (torch.arange(room)[None] - start).clamp(min=0)
    return torch.cat([prompt, lengths[:, None] + torch.tensor(tree.depths, dtype=torch.long)[None]], dim=1)


def tree_mask(lengths: torch.Tensor, room: int, tree: AnswerTree) -> torch.Tensor:
    """(rows, 1, width, width) booleans: True where a token (third axis) attends to another (fourth).

    Padding sees itself, since a softmax over nothing would be NaN; nothing sees padding.
    """
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
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    before = torch.arange(allowed.shape[-1] - positions.shape[1], device=positions.device).expand(len(positions), -1)
    distance = positions[:, None, :, None] - torch.cat([before, positions], dim=1)[:, None, None, :]
    masks = {"full_attention": allowed}
    if window is not None and (kinds is None or "sliding_attention" in kinds):
        masks["sliding_attention"] = allowed & (distance < window)
    if config._attn_implementation != "sdpa":
        masks = {kind: _additive(mask, model.dtype) for kind, mask in masks.items()}
    return masks if kinds and len(masks) > 1 else masks.popitem()[1]


def _additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill(~allowed, torch.finfo(dtype).min)
