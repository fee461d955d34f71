"""RAGate-MHA's network built from torch's own nn.TransformerEncoder: what benchmarks and tests hold ours against."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from kbtrain.gates.ragate.mha_model import RagateMHAConfig, RagateMHAModel, sinusoids


class ReferenceMHA(nn.Module):
    """The same numbers as :class:`~kbtrain.gates.ragate.mha_model.RagateMHAModel` for the same weights.

    Dropout is where ours is: not on the attention's weights.
    """

    def __init__(self, config: RagateMHAConfig) -> None:
        super().__init__()
        d = config.d_model
        self.d = d
        self.embedding = nn.Embedding(config.vocab_size, d, padding_idx=config.pad_token_id)
        layer = nn.TransformerEncoderLayer(d, config.n_heads, d, config.dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, config.n_layers, enable_nested_tensor=False)
        for made in self.encoder.layers:
            made.self_attn.dropout = 0.0
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(d, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Logits (rows, 2)."""
        placed = self.embedding(input_ids) * math.sqrt(self.d) + sinusoids(input_ids.shape[1], self.d)
        seen = self.encoder(self.dropout(placed), src_key_padding_mask=attention_mask == 0)
        weight = attention_mask[..., None].to(seen.dtype)
        logits: torch.Tensor = self.classifier((seen * weight).sum(1) / weight.sum(1))
        return logits


def copy_weights(ours: RagateMHAModel, reference: ReferenceMHA) -> None:
    """Ours into torch's names; torch keeps query, key and value in one matrix."""
    reference.embedding.load_state_dict(ours.embedding.state_dict())
    reference.classifier.load_state_dict(ours.classifier.state_dict())
    for mine, theirs in zip(ours.layers, reference.encoder.layers, strict=True):
        layer: Any = mine
        attention = {f"in_proj_{name}": getattr(layer.qkv, name) for name in ("weight", "bias")}
        attention |= {f"out_proj.{name}": getattr(layer.out, name) for name in ("weight", "bias")}
        theirs.self_attn.load_state_dict(attention)
        names = {"linear1": layer.up, "linear2": layer.down, "norm1": layer.norm_attention, "norm2": layer.norm_feed}
        for name, part in names.items():
            getattr(theirs, name).load_state_dict(part.state_dict())
