"""What a step's logits say beside the drawn token: the entropy of the distribution, and the token's surprisal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class TokenStatistics:
    """One number per row, in nats, of the model's own distribution (temperature 1, nothing filtered)."""

    entropies: torch.Tensor
    surprisals: torch.Tensor

    @classmethod
    def of(cls, logits: torch.Tensor, tokens: torch.Tensor, source: Sequence[int]) -> TokenStatistics:
        """``logits`` (lines, vocabulary); row i drew ``tokens[i]`` from line ``source[i]``."""
        lines = torch.tensor(source, device=logits.device)
        used, line = torch.unique(lines, return_inverse=True)
        scores = (logits if len(used) == len(logits) else logits[used]).float()
        top = scores.amax(dim=-1, keepdim=True)
        weights = torch.exp(scores - top)
        total = weights.sum(dim=-1)
        log_total = top.squeeze(-1) + total.log()
        # a token of probability 0 (logit -inf) adds nothing; 0 * -inf would be no number
        mean = (weights * torch.where(weights > 0, scores, 0.0)).sum(dim=-1) / total
        drawn = scores[line, tokens]
        return cls((log_total - mean)[line].clamp(min=0.0), (log_total[line] - drawn).clamp(min=0.0))
