"""Plain attention in training: the same gradients, and only where it pays and fits."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kbtrain.training.attention import attention_for_training, kept_bytes


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> LlamaForCausalLM:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def used(model: LlamaForCausalLM, shape: tuple[int, int], bf16: bool = True) -> str:
    with attention_for_training(model, shape, bf16):
        inside = str(model.config._attn_implementation)
    assert model.config._attn_implementation == "sdpa"
    return inside


def test_plain_attention_only_where_the_fused_kernel_is_slow_and_the_weights_fit(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kept_bytes(model.config, 8, 100) == 8 * 8 * 100 * 100 * 4 * 2
    assert used(model, (8, 140)) == "eager"
    assert used(model, (8, 140), bf16=False) == "sdpa"
    assert used(model, (8, 4000)) == "sdpa"  # 8 GB of weights
    model.gradient_checkpointing_enable()
    assert used(model, (8, 140)) == "sdpa"
    model.gradient_checkpointing_disable()
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert used(model, (8, 140)) == "sdpa"


def test_both_attentions_give_the_same_loss_and_gradients_with_left_padding(model: LlamaForCausalLM) -> None:
    ids = torch.arange(2 * 20).view(2, 20) % 64
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, :7] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    found = []
    for bf16 in (False, True):  # the model stays in fp32: only the attention differs
        model.zero_grad()
        with attention_for_training(model, (2, 20), bf16):
            logits = model(ids, attention_mask=mask, position_ids=positions).logits
        loss = torch.nn.functional.cross_entropy(logits[:, -5:-1].flatten(0, 1), ids[:, -4:].flatten())
        loss.backward()
        found.append((loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    (one, first), (other, second) = found
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
