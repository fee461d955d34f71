"""Draw tokens from logits: inverse CDF with given uniform numbers, top-k and top-p filters, or the most probable token.

``torch.multinomial`` over a vocabulary of 49,152 takes twenty times as long as a cumulative sum and a binary search,
and its result would depend on the batch. With a top-k filter only the few tokens it leaves are sorted and summed:
sorting the whole vocabulary takes longer than a step of a small model, and so does choosing the highest 50 of 49,152
directly; they are in the 50 blocks with the highest maxima, which are found quickly.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kbtrain.llm.base import Sampling

_ROWS = 16  # rows worked on at a time, so that their float32 copies stay in the processor's cache
_BLOCK = 256  # tokens summed before the search: first the block is found, then the token in it


def filter_logits(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
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
class DrawnTokens:
    """Chosen tokens (rows,) and their natural log-probabilities (rows,), NaN where logits are not numbers."""

    tokens: torch.Tensor
    logprobs: torch.Tensor


def draw(scores: torch.Tensor, uniforms: torch.Tensor, greedy: torch.Tensor, source: Sequence[int]) -> DrawnTokens:
    """Draw a token for each of ``uniforms`` (draws,) in [0, 1), float64; the most probable one where ``greedy``. Draw i
    is from row ``source[i]``, which rises, of the logits ``scores`` (sequences, vocabulary). Sums are in float64 over
    blocks, so no token's share is lost to rounding."""
    parts: list[DrawnTokens] = []
    for sequences in torch.arange(len(scores)).split(_ROWS):
        start, stop = bisect_left(source, int(sequences[0])), bisect_right(source, int(sequences[-1]))
        if start == stop:  # no row draws from these sequences
            continue
        which = torch.tensor(source[start:stop], device=scores.device) - int(sequences[0])
        block = scores[int(sequences[0]) : int(sequences[-1]) + 1]
        parts.append(_draw_block(block, uniforms[start:stop], greedy[start:stop], which))
    return DrawnTokens(torch.cat([p.tokens for p in parts]), torch.cat([p.logprobs for p in parts]))


def _draw_block(scores: torch.Tensor, uniforms: torch.Tensor, greedy: torch.Tensor, which: torch.Tensor) -> DrawnTokens:
    top = scores.amax(dim=-1, keepdim=True)  # where it stands takes three times as long, and only greedy draws ask
    weights = (scores.float() - top.float()).exp_()
    padding = -weights.shape[-1] % _BLOCK
    whole = torch.nn.functional.pad(weights, (0, padding)) if padding else weights  # it copies even for nothing
    blocks = whole.unflatten(-1, (-1, _BLOCK))
    sums = blocks.sum(-1).double().cumsum(-1)
    total = sums[:, -1]
    # strictly under the total: a product that rounds up would fall off the end
    target = torch.minimum(uniforms * total[which], torch.nextafter(total, torch.zeros_like(total))[which])
    at = torch.searchsorted(sums[which], target.unsqueeze(-1), right=True).squeeze(-1).clamp_(max=sums.shape[-1] - 1)
    before = torch.where(at > 0, sums[which, (at - 1).clamp(min=0)], 0.0)
    inside = blocks[which, at].double().cumsum(-1)
    # the block's own sum may differ in the last digit from the float32 one that chose it: stay inside, on mass
    rest = torch.minimum(target - before, torch.nextafter(inside[:, -1], torch.zeros_like(before)))
    offset = torch.searchsorted(inside, rest.unsqueeze(-1), right=True).squeeze(-1)
    tokens = (at * _BLOCK + offset).clamp_(max=scores.shape[-1] - 1)  # past the end only where nothing is a number
    if bool(greedy.any()):
        tokens[greedy] = scores[which[greedy]].float().argmax(dim=-1)  # in 16 bits it takes six times as long
    return DrawnTokens(tokens, weights[which, tokens].double().log() - total[which].log())


_NOTHING = -1e4  # a logit so far under the highest has probability 0; -inf times 0 would be no number


def token_statistics(
    logits: torch.Tensor, tokens: torch.Tensor, source: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Entropies and surprisals (rows,) in nats, of the model's own distribution (temperature 1, nothing filtered). Row
    i drew ``tokens[i]`` from sequence ``source[i]`` of ``logits`` (sequences, vocabulary)."""
    used, sequence = torch.unique(torch.tensor(source, device=logits.device), return_inverse=True)
    sequences = logits if len(used) == len(logits) else logits[used]
    parts = [_entropy(chunk) for chunk in sequences.split(_ROWS)]
    entropies, log_totals = (torch.cat(column) for column in zip(*parts, strict=True))
    surprisals = log_totals[sequence] - sequences[sequence, tokens].float()
    return entropies[sequence].clamp(min=0.0), surprisals.clamp(min=0.0)


def _entropy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Entropy and log-sum-exp of each sequence."""
    top = logits.amax(dim=-1, keepdim=True).float()
    scores = logits.float().sub_(top) if logits.dtype is not torch.float32 else logits - top
    scores.clamp_(min=_NOTHING)
    weights = scores.exp()
    total = weights.sum(dim=-1)
    mean = weights.mul_(scores).sum(dim=-1) / total
    return total.log() - mean, total.log() + top.squeeze(-1)


_TOP_BLOCK = 64  # tokens whose maximum is looked at together


def top(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``k`` highest logits of each row, falling, and their ids: ``topk`` (of equal ones it may take another)."""
    size = logits.shape[-1]
    if k * _TOP_BLOCK * 2 > size:
        return logits.topk(k, dim=-1)
    whole = size - size % _TOP_BLOCK
    blocks = logits[:, :whole].unflatten(-1, (-1, _TOP_BLOCK))
    best = blocks.amax(dim=-1).topk(k, dim=-1).indices
    values = blocks.gather(1, best.unsqueeze(-1).expand(-1, -1, _TOP_BLOCK)).flatten(1)
    ids = (best.unsqueeze(-1) * _TOP_BLOCK + torch.arange(_TOP_BLOCK, device=logits.device)).flatten(1)
    if whole < size:
        rest = torch.arange(whole, size, device=logits.device).expand(len(logits), -1)
        values, ids = torch.cat([values, logits[:, whole:]], dim=1), torch.cat([ids, rest], dim=1)
    highest = values.topk(k, dim=-1)
    return highest.values, ids.gather(1, highest.indices)


def draw_top(
    logits: torch.Tensor, sampling: Sampling, uniforms: torch.Tensor, greedy: torch.Tensor, source: Sequence[int]
) -> DrawnTokens:
    """As ``draw(filter_logits(...))`` for a sampling with ``top_k`` > 0, to rounding; of tokens that tie at rank k that
    keeps all and this keeps k."""
    values, ids = top(logits, sampling.top_k)
    scores = values.double() / sampling.temperature
    weights = torch.exp(scores - scores[:, :1])
    before = weights.cumsum(-1) - weights
    weights = torch.where(before < sampling.top_p * weights.sum(-1, keepdim=True), weights, 0.0)
    best = ids[:, 0]
    ids, order = ids.sort(dim=-1)  # by token id, the order in which ``draw`` sums
    weights = weights.gather(-1, order)
    sequences = torch.tensor(source, device=logits.device)
    weights, ids = weights[sequences], ids[sequences]
    sums = weights.cumsum(-1)
    total = sums[:, -1]
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    at = torch.searchsorted(sums, target.unsqueeze(-1), right=True).clamp_(max=sums.shape[-1] - 1)
    at = torch.where(greedy.unsqueeze(-1), (ids == best[sequences].unsqueeze(-1)).long().argmax(-1, keepdim=True), at)
    chosen = weights.gather(-1, at).squeeze(-1)
    return DrawnTokens(ids.gather(-1, at).squeeze(-1), chosen.log() - total.log())
