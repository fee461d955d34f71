"""Attention in blocks, packed weights and the output layer in fp32 give what the plain model gives, without a trace."""

from types import SimpleNamespace

import pytest
import torch
from tiny_kbm import KINDS, make_model
from transformers import LlamaConfig, LlamaForCausalLM

from kbtrain.kernels import packed_linear
from kbtrain.kernels.causal_blocks import causal_blocks, causal_blocks_attention, pays
from kbtrain.kernels.packed_linear import PackedLinears
from kbtrain.llm.sampler.prefill import prefill
from kbtrain.models.forward import fp32_output_layer


@pytest.mark.parametrize("length", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
def test_blocks_equal_one_causal_softmax(length, kv_heads):
    torch.manual_seed(length)
    query = torch.randn(2, 6, length, 8)
    key, value = torch.randn(2, kv_heads, length, 8), torch.randn(2, kv_heads, length, 8)
    made, _ = causal_blocks_attention(SimpleNamespace(), query, key, value, None, scaling=0.3)
    full = query @ key.repeat_interleave(6 // kv_heads, 1).transpose(-1, -2) * 0.3
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    weights = full.masked_fill(~seen, float("-inf")).softmax(-1)
    torch.testing.assert_close(made, (weights @ value.repeat_interleave(6 // kv_heads, 1)).transpose(1, 2))


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, attention_bias=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def bf16_model(model):
    return model.to(torch.bfloat16)


@torch.inference_mode()
def test_a_model_gives_the_same_logits_keys_and_values_in_blocks(model):
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
def test_only_the_states_that_are_read_need_be_right_in_the_last_layer(model):
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


def test_blocks_serve_long_bf16_prompts_on_a_cpu_without_amx_only(model, monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    assert not pays(model, 1000)  # fp32: the fused kernel is as fast
    model.to(torch.bfloat16)
    assert pays(model, 96) and not pays(model, 95)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    assert not pays(model, 1000)


@torch.inference_mode()
def test_long_prompts_go_through_the_model_one_by_one_and_come_back_as_one_padded_cache(model, monkeypatch):
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


bf16 = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this CPU has no 16-bit products",
)
IDS = torch.arange(40).view(2, 20)


@bf16
@torch.inference_mode()
def test_logits_are_the_plain_ones_and_the_layers_are_as_before(bf16_model):
    plain, packed = bf16_model(IDS).logits, PackedLinears(bf16_model)
    with packed:
        assert "forward" in bf16_model.lm_head.__dict__
        torch.testing.assert_close(bf16_model(IDS).logits, plain, atol=0.02, rtol=0.02)
        with fp32_output_layer(bf16_model):
            assert bf16_model(IDS).logits.dtype is torch.float32
        torch.testing.assert_close(bf16_model(IDS).logits, plain, atol=0.02, rtol=0.02)
    assert not any("forward" in module.__dict__ for module in bf16_model.modules())
    assert torch.equal(bf16_model(IDS).logits, plain)


@bf16
def test_weights_that_changed_are_packed_anew(bf16_model):
    packed = PackedLinears(bf16_model)
    with torch.inference_mode(), packed:
        before = bf16_model(IDS).logits
    with torch.no_grad():
        bf16_model.lm_head.weight.mul_(3)
    with torch.inference_mode(), packed:
        torch.testing.assert_close(bf16_model(IDS).logits, 3 * before, atol=0.05, rtol=0.05)


def test_nothing_is_packed_in_fp32_or_where_memory_is_short(bf16_model, monkeypatch):
    monkeypatch.setattr(packed_linear, "_SHARE", 0.0)
    with PackedLinears(bf16_model):
        assert "forward" not in bf16_model.lm_head.__dict__
    monkeypatch.undo()
    with PackedLinears(bf16_model.float()):
        assert "forward" not in bf16_model.lm_head.__dict__


def test_fp32_products_are_those_of_plain_weights_where_they_are_packed(bf16_model):
    ids = torch.arange(12)[None] % 50
    with torch.inference_mode():
        plain = bf16_model.float()(ids).logits
        with PackedLinears(bf16_model, packed_linear.PackedWeights(bf16_model, torch.float32)):
            assert "forward" in bf16_model.lm_head.__dict__
            packed = bf16_model(ids).logits
    assert "forward" not in bf16_model.lm_head.__dict__
    torch.testing.assert_close(packed, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [*KINDS, "gemma2"])
def test_the_wanted_columns_are_those_of_the_whole_output(kind):
    """Also where the model caps or scales its logits afterwards (gemma2)."""
    model = make_model(kind)
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        whole = model(ids).logits
        with fp32_output_layer(model, [7, 3]):
            few = model(ids).logits
        assert torch.allclose(few, whole[..., [7, 3]], atol=1e-6)
        assert torch.equal(model(ids).logits, whole)  # afterwards the model is as before


def test_logits_of_a_bf16_model_are_not_rounded_to_bf16():
    model = make_model().to(torch.bfloat16)
    ids = torch.arange(1, 9)[None]
    with torch.no_grad():
        assert torch.equal(model(ids).logits.bfloat16(), model(ids).logits)
        with fp32_output_layer(model):
            exact = model(ids).logits
    assert exact.dtype is torch.float32
    assert not torch.equal(exact.bfloat16().float(), exact)


def test_gradients_reach_the_weights_through_it_under_autocast():
    model = make_model()
    with torch.autocast("cpu", torch.bfloat16), fp32_output_layer(model):
        logits = model(torch.arange(1, 9)[None]).logits
    assert logits.dtype is torch.float32
    logits.sum().backward()
    assert model.get_output_embeddings().weight.grad.abs().sum() > 0
    assert model.model.layers[0].mlp.up_proj.weight.grad.abs().sum() > 0
