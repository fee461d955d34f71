"""Drawing with a top-k filter: the few tokens it leaves are all that is sorted and summed.

Sorting the whole vocabulary for top-p, as the general filters must, takes longer than a step of a small model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kbtrain.llm.draw import Drawn


def draw_top(
    logits: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    uniforms: torch.Tensor,
    greedy: torch.Tensor,
    source: Sequence[int],
) -> Drawn:
    """As ``draw(filtered(...))`` of :mod:`kbtrain.llm.draw` for ``top_k`` > 0: same tokens, to rounding.

    Of tokens that tie at rank k, ``filtered`` keeps all and this keeps k.
    """
    values, ids = logits.topk(top_k, dim=-1)  # falling
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
