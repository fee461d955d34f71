"""Attention in blocks in training: the same gradients, and only where it pays."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kbtrain.kernels.training_attention import NAME, BlockAttention, Span, attention_for_training, packs


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=4096,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def used(model, shape, bf16=True):
    with attention_for_training(model, torch.ones(shape, dtype=torch.long), bf16):
        inside = str(model.config._attn_implementation)
    assert model.config._attn_implementation == "sdpa"
    return inside


def test_blocks_are_used_only_where_the_fused_kernel_is_slow_and_attention_is_plain(model, monkeypatch):
    assert used(model, (8, 140)) == NAME
    assert used(model, (8, 140), bf16=False) == "sdpa"
    model.config.sliding_window = 139
    assert used(model, (8, 140)) == "sdpa"
    model.config.sliding_window = None
    model.gradient_checkpointing_enable()
    assert used(model, (8, 140)) == "sdpa"
    model.gradient_checkpointing_disable()
    model.config.model_type = "gemma2"
    assert used(model, (8, 140)) == "sdpa"
    model.config.model_type = "llama"
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert used(model, (8, 140)) == "sdpa"


def test_rows_lie_end_to_end_where_attention_is_plain_and_nothing_is_computed_again(model):
    assert packs(model, 140)
    model.config.sliding_window = 139
    assert not packs(model, 140) and packs(model, 139)
    model.config.sliding_window = None
    model.gradient_checkpointing_enable()
    assert not packs(model, 140)
    model.gradient_checkpointing_disable()
    model.set_attn_implementation("eager")
    assert not packs(model, 140)
    model.set_attn_implementation("sdpa")
    model.config.model_type = "gemma2"
    assert not packs(model, 140)


@pytest.mark.parametrize("lengths", [[5, 3], [7, 1], [300, 170]])
def test_gradients_are_those_of_one_masked_softmax(lengths):
    torch.manual_seed(0)
    width, heads, kv_heads = max(lengths), 6, 2
    shapes = ((heads, width, 4), (kv_heads, width, 4), (kv_heads, width, 4))
    inputs = [torch.randn(len(lengths), *shape, dtype=torch.double, requires_grad=True) for shape in shapes]
    query, key, value = inputs
    made = BlockAttention.apply(query, key, value, [Span(i, width - n, width) for i, n in enumerate(lengths)])
    real = torch.arange(width) >= width - torch.tensor(lengths)[:, None]
    seen = torch.ones(width, width, dtype=torch.bool).tril() & real[:, None, None, :]
    scores = (query @ key.repeat_interleave(3, 1).transpose(-1, -2)).masked_fill(~seen, -1e9)
    expected = (scores.softmax(-1) @ value.repeat_interleave(3, 1)).transpose(1, 2) * real[:, :, None, None]
    torch.testing.assert_close(made, expected, atol=1e-6, rtol=1e-6)
    direction = torch.randn_like(expected)
    ours, theirs = (torch.autograd.grad((x * direction).sum(), inputs, retain_graph=True) for x in (made, expected))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)


def test_both_attentions_give_the_same_loss_and_gradients_with_left_padding(model):
    ids = torch.arange(2 * 20).view(2, 20) % 64
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[1, :7] = 0
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    found = []
    for bf16 in (False, True):  # the model stays in fp32: only the attention differs
        model.zero_grad()
        with attention_for_training(model, mask, bf16):
            logits = model(ids, attention_mask=mask, position_ids=positions).logits
        loss = torch.nn.functional.cross_entropy(logits[:, -5:-1].flatten(0, 1), ids[:, -4:].flatten())
        loss.backward()
        found.append((loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]))
    (one, first), (other, second) = found
    torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
