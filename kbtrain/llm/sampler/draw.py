"""From logits to tokens: inverse CDF with given uniform numbers, or the most probable token.

``torch.multinomial`` over a vocabulary of 49,152 takes twenty times as long as a cumulative sum and a binary search,
and its result would depend on the batch.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


_ROWS = 16  # rows worked on at a time, so that their float32 copies stay in the processor's cache
_BLOCK = 256  # tokens summed before the search: first the block is found, then the token in it


def filtered(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Logits (rows, vocabulary) after temperature, then top-k, then top-p (1, 0 and 1 switch these off)."""
    from transformers import TopKLogitsWarper, TopPLogitsWarper

    scores = logits if temperature == 1.0 else logits.float() / temperature
    ids = scores.new_empty(0).long()  # the warpers' signature wants the text so far and does not look at it
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores.float())
    if top_p < 1.0:
        scores = TopPLogitsWarper(top_p)(ids, scores.float())
    return scores


@dataclass(frozen=True)
class Drawn:
    """Chosen tokens (rows,) and their natural log-probabilities (rows,)."""

    tokens: torch.Tensor
    logprobs: torch.Tensor


def draw(scores: torch.Tensor, uniforms: torch.Tensor, greedy: torch.Tensor, source: Sequence[int]) -> Drawn:
    """Draw a token for each of ``uniforms`` (draws,) in [0, 1), float64; the most probable one where ``greedy``.

    ``scores`` (lines, vocabulary) are logits; draw i is from line ``source[i]``, and ``source`` rises. A token of
    probability 0 is never drawn. Sums are in float64 over blocks, so no token's share is lost to rounding.
    """
    import torch

    parts: list[Drawn] = []
    for lines in torch.arange(len(scores)).split(_ROWS):
        start, stop = bisect_left(source, int(lines[0])), bisect_right(source, int(lines[-1]))
        if start == stop:  # nobody draws from these lines
            continue
        which = torch.tensor(source[start:stop], device=scores.device) - int(lines[0])
        block = scores[int(lines[0]) : int(lines[-1]) + 1]
        parts.append(_draw_block(block, uniforms[start:stop], greedy[start:stop], which))
    return Drawn(torch.cat([p.tokens for p in parts]), torch.cat([p.logprobs for p in parts]))


def _draw_block(scores: torch.Tensor, uniforms: torch.Tensor, greedy: torch.Tensor, which: torch.Tensor) -> Drawn:
    import torch

    top = scores.amax(dim=-1, keepdim=True)  # where it stands takes three times as long, and only greedy draws ask
    weights = (scores.float() - top.float()).exp_()
    padding = -weights.shape[-1] % _BLOCK
    whole = torch.nn.functional.pad(weights, (0, padding)) if padding else weights  # it copies even for nothing
    blocks = whole.unflatten(-1, (-1, _BLOCK))
    sums = blocks.sum(-1).double().cumsum(-1)
    total = sums[:, -1]
    # strictly under the total: a product that rounds up would fall off the end
    target = torch.minimum(uniforms * total[which], torch.nextafter(total, torch.zeros_like(total))[which])
    at = torch.searchsorted(sums[which], target.unsqueeze(-1), right=True).squeeze(-1)
    before = torch.where(at > 0, sums[which, (at - 1).clamp(min=0)], 0.0)
    inside = blocks[which, at].double().cumsum(-1)
    # the block's own sum may differ in the last digit from the float32 one that chose it: stay inside, on mass
    rest = torch.minimum(target - before, torch.nextafter(inside[:, -1], torch.zeros_like(before)))
    offset = torch.searchsorted(inside, rest.unsqueeze(-1), right=True).squeeze(-1)
    tokens = at * _BLOCK + offset
    if bool(greedy.any()):
        tokens[greedy] = scores.argmax(dim=-1)[which[greedy]]
    return Drawn(tokens, weights[which, tokens].double().log() - total[which].log())
