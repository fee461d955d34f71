"""What a step's logits say beside the drawn token: the entropy of the distribution, and the token's surprisal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

_LINES = 16  # worked on at a time, so that their float32 copies stay in the processor's cache
_NOTHING = -1e4  # a logit so far under the highest has probability 0; -inf times 0 would be no number


@dataclass(frozen=True)
class TokenStatistics:
    """One number per row, in nats, of the model's own distribution (temperature 1, nothing filtered)."""

    entropies: torch.Tensor
    surprisals: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, tokens: torch.Tensor, source: Sequence[int]) -> TokenStatistics:
        """``logits`` (lines, vocabulary); row i drew ``tokens[i]`` from line ``source[i]``."""
        used, line = torch.unique(torch.tensor(source, device=logits.device), return_inverse=True)
        lines = logits if len(used) == len(logits) else logits[used]
        parts = [_entropy(chunk) for chunk in lines.split(_LINES)]
        entropies, log_totals = (torch.cat(column) for column in zip(*parts, strict=True))
        surprisals = log_totals[line] - lines[line, tokens].float()
        return cls(entropies[line].clamp(min=0.0), surprisals.clamp(min=0.0))


def _entropy(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Entropy and log-sum-exp of each line."""
    top = logits.amax(dim=-1, keepdim=True).float()
    scores = logits.float().sub_(top) if logits.dtype is not torch.float32 else logits - top
    scores.clamp_(min=_NOTHING)
    weights = scores.exp()
    total = weights.sum(dim=-1)
    mean = weights.mul_(scores).sum(dim=-1) / total
    return total.log() - mean, total.log() + top.squeeze(-1)
