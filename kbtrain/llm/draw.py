"""From logits to tokens: inverse CDF with given uniform numbers, or the most probable token.

``torch.multinomial`` over a vocabulary of 49,152 takes twenty times as long as a cumulative sum and a binary search,
and its result would depend on the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def filtered(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Logits (rows, vocabulary) in float32 after temperature, then top-k, then top-p (0 and 1 switch these off)."""
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    scores = logits.float()
    if temperature != 1.0:
        scores = scores / temperature
    ids = scores.new_empty(0).long()  # the warpers' signature wants the text so far and does not look at it
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(ids, scores)
    return scores


def inverse_cdf(scores: torch.Tensor, uniforms: torch.Tensor, row: torch.Tensor | None = None) -> torch.Tensor:
    """Draw one token for each uniform number.

    ``scores`` (rows, vocabulary) are float32 logits; ``uniforms`` (draws,) in [0, 1); ``row`` (draws,) says which row
    of ``scores`` a draw comes from (None: draw i from row i). Returns token ids (draws,).
    A token of probability 0 is never drawn.
    """
    import torch

    weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
    cdf = weights.cumsum(dim=-1)
    total = cdf[:, -1]
    if row is not None:
        cdf, total = cdf[row], total[row]
    target = uniforms.to(cdf) * total
    # a number that rounds up to the total would fall off the end
    target = torch.minimum(target, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cdf, target.unsqueeze(-1), right=True).squeeze(-1)


def log_probability(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Natural log-probability of each row's token (rows,)."""
    import torch

    return scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - torch.logsumexp(scores, dim=-1)
