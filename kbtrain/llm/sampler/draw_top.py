"""Drawing with a top-k filter: the few tokens it leaves are all that is sorted and summed.

Sorting the whole vocabulary for top-p, as the general filters must, takes longer than a step of a small model; even
choosing the highest 50 of 49,152 does. They stand in the 50 blocks with the highest maxima, which are found quickly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kbtrain.llm.sampler.draw import Drawn

_BLOCK = 64  # tokens whose maximum is looked at together


def top(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``k`` highest logits of each line, falling, and their ids: ``topk`` (of equal ones it may take another)."""
    size = logits.shape[-1]
    if k * _BLOCK * 2 > size:
        return logits.topk(k, dim=-1)
    whole = size - size % _BLOCK
    blocks = logits[:, :whole].unflatten(-1, (-1, _BLOCK))
    best = blocks.amax(dim=-1).topk(k, dim=-1).indices
    values = blocks.gather(1, best.unsqueeze(-1).expand(-1, -1, _BLOCK)).flatten(1)
    ids = (best.unsqueeze(-1) * _BLOCK + torch.arange(_BLOCK, device=logits.device)).flatten(1)
    if whole < size:
        rest = torch.arange(whole, size, device=logits.device).expand(len(logits), -1)
        values, ids = torch.cat([values, logits[:, whole:]], dim=1), torch.cat([ids, rest], dim=1)
    highest = values.topk(k, dim=-1)
    return highest.values, ids.gather(1, highest.indices)


def draw_top(
    logits: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    uniforms: torch.Tensor,
    greedy: torch.Tensor,
    source: Sequence[int],
) -> Drawn:
    """As ``draw(filtered(...))`` of :mod:`kbtrain.llm.sampler.draw` for ``top_k`` > 0: same tokens, to rounding.

    Of tokens that tie at rank k, ``filtered`` keeps all and this keeps k.
    """
    values, ids = top(logits, top_k)
    scores = values.double() / temperature
    weights = torch.exp(scores - scores[:, :1])
    before = weights.cumsum(-1) - weights
    weights = torch.where(before < top_p * weights.sum(-1, keepdim=True), weights, 0.0)
    best = ids[:, 0]
    ids, order = ids.sort(dim=-1)  # by token id, the order in which ``draw`` sums
    weights = weights.gather(-1, order)
    lines = torch.tensor(source, device=logits.device)
    weights, ids = weights[lines], ids[lines]
    sums = weights.cumsum(-1)
    total = sums[:, -1]
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    at = torch.searchsorted(sums, target.unsqueeze(-1), right=True)
    at = torch.where(greedy.unsqueeze(-1), (ids == best[lines].unsqueeze(-1)).long().argmax(-1, keepdim=True), at)
    chosen = weights.gather(-1, at).squeeze(-1)
    return Drawn(ids.gather(-1, at).squeeze(-1), chosen.log() - total.log())
