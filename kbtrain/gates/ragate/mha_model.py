"""RAGate-MHA's network (section 3.2): a small transformer encoder over the context, trained from scratch.

Token embedding x sqrt(d) + sinusoidal positions; layers of multi-head attention and a feed-forward network of width d,
each followed by residual connection and layer normalisation; mean over the real tokens; two classes.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from kbtrain.kernels.lean_training import Dropout

Crossing = Literal["self", "knowledge"]


class RagateMHAConfig(PretrainedConfig):
    """``attends_to``: ``self`` (queries, keys and values are the input) or ``knowledge`` (keys and values are the
    knowledge: the paper's contx x know)."""

    model_type = "ragate_mha"

    def __init__(
        self, vocab_size: int = 8000, d_model: int = 64, n_layers: int = 5, n_heads: int = 4, dropout: float = 0.1,
        attends_to: Crossing = "self", pad_token_id: int = 0, **kwargs: Any,
    ) -> None:  # fmt: skip
        self.vocab_size, self.d_model, self.n_layers, self.n_heads = vocab_size, d_model, n_layers, n_heads
        for name in ("vocab_size", "d_model", "n_layers", "n_heads"):
            if type(value := getattr(self, name)) is not int or value < 1:
                raise ValueError(f"{name}: expected a whole number, found {value!r:.40}")
        if type(pad_token_id) is not int or pad_token_id < 0:
            raise ValueError(f"pad_token_id: expected a whole number, found {pad_token_id!r:.40}")
        if self.d_model % self.n_heads or self.d_model % 2:
            raise ValueError(f"d_model {self.d_model} must be even, and divisible by {self.n_heads} heads")
        self.dropout = dropout
        self.attends_to = attends_to
        super().__init__(**kwargs)
        self.pad_token_id = pad_token_id


class _Layer(nn.Module):
    def __init__(self, config: RagateMHAConfig) -> None:
        super().__init__()
        d = config.d_model
        self.n_heads = config.n_heads
        self.d = d
        self.qkv = nn.Linear(d, 3 * d)  # query, key, value
        self.out = nn.Linear(d, d)
        self.up = nn.Linear(d, d)
        self.down = nn.Linear(d, d)
        self.norm_attention = nn.LayerNorm(d)
        self.norm_feed = nn.LayerNorm(d)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: torch.Tensor, other: torch.Tensor | None, mask: torch.Tensor | None) -> torch.Tensor:
        """``mask``: (rows, 1, 1, keys), True where a key is real; None where all are."""
        if other is None:
            queries, keys, values = self._heads(self.qkv(x), 3)
        else:
            weight, bias, d = self.qkv.weight, self.qkv.bias, self.d
            (queries,) = self._heads(linear(x, weight[:d], bias[:d]), 1)
            keys, values = self._heads(linear(other, weight[d:], bias[d:]), 2)
        mixed = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        mixed = mixed.transpose(1, 2).flatten(2)
        x = self.norm_attention(x + self.dropout(self.out(mixed)))
        fed: torch.Tensor = self.norm_feed(x + self.dropout(self.down(self.dropout(torch.relu(self.up(x))))))
        return fed

    def _heads(self, x: torch.Tensor, parts: int) -> tuple[torch.Tensor, ...]:
        """(rows, tokens, parts x d) to ``parts`` tensors (rows, heads, tokens, d / heads)."""
        split = x.view(x.shape[0], x.shape[1], parts, self.n_heads, -1).permute(2, 0, 3, 1, 4)
        return split.unbind(0)


class RagateMHAModel(PreTrainedModel):
    """Logits (rows, 2) of no and yes. Padding is masked in attention and mean: a row's logits do not depend on the
    rows beside it."""

    config: RagateMHAConfig
    config_class = RagateMHAConfig
    base_model_prefix = "ragate_mha"

    def __init__(self, config: RagateMHAConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.d_model, padding_idx=config.pad_token_id)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.n_layers))
        self.dropout = Dropout(config.dropout)
        self.classifier = nn.Linear(config.d_model, 2)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        """Xavier for matrices, 1 / sqrt(d) for embeddings, so that they and the positions are of like size."""
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.d_model**-0.5)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx].zero_()
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        knowledge_ids: torch.Tensor | None = None,
        knowledge_mask: torch.Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """(rows, tokens) each; masks are 1 for real tokens. Every row has one real token or more."""
        x = self._embedded(input_ids)
        other, keys = None, attention_mask
        if self.config.attends_to == "knowledge":
            if knowledge_ids is None or knowledge_mask is None:
                raise ValueError("contx x know needs knowledge_ids and knowledge_mask")
            other, keys = self._embedded(knowledge_ids), knowledge_mask
        real = keys.bool()
        mask = None if bool(real.all()) else real[:, None, None, :]
        for layer in self.layers:
            x = layer(x, other, mask)
        weight = attention_mask[..., None].to(x.dtype)
        mean = (x * weight).sum(1) / weight.sum(1)
        return SequenceClassifierOutput(logits=self.classifier(mean))

    def _embedded(self, ids: torch.Tensor) -> torch.Tensor:
        d = self.config.d_model
        scaled = self.embedding(ids) * math.sqrt(d)
        placed: torch.Tensor = self.dropout(scaled + sinusoids(ids.shape[1], d).to(scaled))
        return placed


def sinusoids(n: int, d: int) -> torch.Tensor:
    """(n, d): sin in the even columns, cos in the odd ones (Vaswani et al., 2017, section 3.5)."""
    place = torch.arange(n, dtype=torch.float32)[:, None]
    rate = torch.exp(torch.arange(0, d, 2, dtype=torch.float32) * (-math.log(10_000.0) / d))
    table = torch.empty(n, d)
    table[:, 0::2] = torch.sin(place * rate)
    table[:, 1::2] = torch.cos(place * rate)
    return table
