"""Packed weights give the plain ones' products, and leave no trace."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from kbtrain.kernels import packed_linear
from kbtrain.kernels.packed_linear import PackedLinears
from kbtrain.models.forward import fp32_output_layer

bf16 = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this CPU has no 16-bit products",
)
IDS = torch.arange(40).view(2, 20)


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attention_bias=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().to(torch.bfloat16)


@bf16
@torch.inference_mode()
def test_logits_are_the_plain_ones_and_the_layers_are_as_before(model: LlamaForCausalLM) -> None:
    plain, packed = model(IDS).logits, PackedLinears(model)
    with packed:
        assert "forward" in model.lm_head.__dict__
        torch.testing.assert_close(model(IDS).logits, plain, atol=0.02, rtol=0.02)
        with fp32_output_layer(model):
            assert model(IDS).logits.dtype is torch.float32
        torch.testing.assert_close(model(IDS).logits, plain, atol=0.02, rtol=0.02)
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert torch.equal(model(IDS).logits, plain)


@bf16
def test_weights_that_changed_are_packed_anew(model: LlamaForCausalLM) -> None:
    packed = PackedLinears(model)
    with torch.inference_mode(), packed:
        before = model(IDS).logits
    with torch.no_grad():
        model.lm_head.weight.mul_(3)
    with torch.inference_mode(), packed:
        torch.testing.assert_close(model(IDS).logits, 3 * before, atol=0.05, rtol=0.05)


def test_nothing_is_packed_in_fp32_or_where_memory_is_short(
    model: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_linear, "_SHARE", 0.0)
    with PackedLinears(model):
        assert "forward" not in model.lm_head.__dict__
    monkeypatch.undo()
    with PackedLinears(model.float()):
        assert "forward" not in model.lm_head.__dict__


def test_fp32_products_are_those_of_plain_weights_where_they_are_packed(model: LlamaForCausalLM) -> None:
    ids = torch.arange(12)[None] % 50
    with torch.inference_mode():
        plain = model.float()(ids).logits
        with PackedLinears(model, packed_linear.PackedWeights(model, torch.float32)):
            assert "forward" in model.lm_head.__dict__
            packed = model(ids).logits
    assert "forward" not in model.lm_head.__dict__
    torch.testing.assert_close(packed, plain, rtol=1e-4, atol=1e-5)
