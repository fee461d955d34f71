"""Attention in blocks is the model's own attention."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kbtrain.kernels.causal_blocks import causal_blocks, causal_blocks_attention, pays
from kbtrain.llm.sampler.prefill import prefill


@pytest.mark.parametrize("length", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_blocks_equal_one_causal_softmax(length: int, kv_heads: int) -> None:
    torch.manual_seed(length)
    query = torch.randn(2, 6, length, 8)
    key, value = torch.randn(2, kv_heads, length, 8), torch.randn(2, kv_heads, length, 8)
    made, _ = causal_blocks_attention(SimpleNamespace(), query, key, value, None, scaling=0.3)
    full = query @ key.repeat_interleave(6 // kv_heads, 1).transpose(-1, -2) * 0.3
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    weights = full.masked_fill(~seen, float("-inf")).softmax(-1)
    torch.testing.assert_close(made, (weights @ value.repeat_interleave(6 // kv_heads, 1)).transpose(1, 2))


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@torch.inference_mode()
def test_a_model_gives_the_same_logits_keys_and_values_in_blocks(model: LlamaForCausalLM) -> None:
    prompts = [[(3 * i) % 64 for i in range(290)], [(5 * i) % 64 for i in range(270)]]
    plain, theirs = prefill(model, prompts)
    with causal_blocks(model):
        blocks, ours = prefill(model, prompts)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for a, b in zip(plain.layers, blocks.layers, strict=True):
        torch.testing.assert_close(a.keys, b.keys, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(a.values, b.values, atol=1e-5, rtol=1e-5)
    assert model.config._attn_implementation == "sdpa"


@torch.inference_mode()
def test_only_the_states_that_are_read_need_be_right_in_the_last_layer(model: LlamaForCausalLM) -> None:
    ids = torch.tensor([[(3 * i) % 64 for i in range(300)], [(7 * i) % 64 for i in range(300)]])
    read = torch.tensor([299, 140, 3])
    with causal_blocks(model):
        whole = model(ids).logits
    with causal_blocks(model, read):
        few = model(ids, logits_to_keep=read).logits
        wrong = model(ids, logits_to_keep=torch.tensor([200])).logits[:, 0]
    torch.testing.assert_close(few, whole[:, read], atol=1e-5, rtol=1e-5)
    assert (wrong - whole[:, 200]).abs().max() > 1e-3  # else nothing was skipped
    assert "forward" not in model.model.layers[-1].mlp.__dict__


def test_blocks_serve_long_bf16_prompts_on_a_cpu_without_amx_only(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert not pays(model, 1000)  # fp32: the fused kernel is as fast
    model.to(torch.bfloat16)
    assert pays(model, 96) and not pays(model, 95)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert not pays(model, 1000)


@torch.inference_mode()
def test_long_prompts_go_through_the_model_one_by_one_and_come_back_as_one_padded_cache(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kbtrain.llm.sampler.prefill.pays", lambda model, length: True)
    monkeypatch.setattr("kbtrain.llm.sampler.prefill._ALONE", 280)
    prompts = [[(3 * i) % 64 for i in range(290)], [(5 * i) % 64 for i in range(270)]]
    plain, theirs = prefill(model, prompts)
    shapes: list[torch.Size] = []
    watch = model.register_forward_pre_hook(lambda _, a, k: shapes.append(k["input_ids"].shape), with_kwargs=True)
    last: list[torch.Size] = []
    seen = model.model.layers[-1].mlp.up_proj.register_forward_pre_hook(lambda _, a: last.append(a[0].shape))
    joined, ours = prefill(model, prompts, blocks=True, room=7)
    watch.remove()
    seen.remove()
    assert shapes == [(1, 290), (1, 270)]
    assert last == [(1, 1, 32)] * 2  # of the last layer, nobody reads the states of earlier tokens
    assert "forward" not in model.model.layers[-1].mlp.__dict__
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for a, b in zip(plain.layers, joined.layers, strict=True):
        for whole, made in ((a.keys, b.keys), (a.values, b.values)):
            assert made.shape[2] == 297 and not made[:, :, 290:].any()
            torch.testing.assert_close(made[0, :, :290], whole[0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(made[1, :, :270], whole[1, :, :270], atol=1e-5, rtol=1e-5)
            assert not made[1, :, 270:].any()
