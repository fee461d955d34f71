"""Lean layers give the plain ones' values and gradients, and keep less."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

from kbtrain.kernels.lean_training import RMSNorm, SiluTimes, lean_layers

SIZES = {
    "vocab_size": 64, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
LEAN = [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config]
IDS = torch.arange(60).view(2, 30) % 64


def make(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(**SIZES))
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model


def loss_and_gradients(model, bf16):
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss = model(IDS, labels=IDS).loss
    loss.backward()
    return loss.detach(), {name: weight.grad for name, weight in model.named_parameters()}


def test_gradients_are_the_derivatives():
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3, 5, dtype=torch.double), torch.rand(5, dtype=torch.double)
    gate, up = torch.randn(2, 3, 5, dtype=torch.double), torch.randn(2, 3, 5, dtype=torch.double)
    for tensor in (x, weight, gate, up):
        tensor.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: RMSNorm.apply(x, w, 1e-5, torch.double), (x, weight))
    assert torch.autograd.gradcheck(SiluTimes.apply, (gate, up))


@pytest.mark.parametrize("config", LEAN)
def test_loss_and_gradients_are_the_plain_models(config):
    plain = make(config)
    lean = copy.deepcopy(plain)
    with lean_layers(lean):
        first = lean.model.layers[0]
        assert all("forward" in module.__dict__ for module in (first.input_layernorm, first.mlp))
        assert "forward" not in lean.model.norm.__dict__
        loss, gradients = loss_and_gradients(lean, bf16=False)
    assert not any("forward" in module.__dict__ for module in lean.modules())
    expected_loss, expected = loss_and_gradients(plain, bf16=False)
    torch.testing.assert_close(loss, expected_loss)
    for name, gradient in expected.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-6, rtol=1e-4)


def test_in_16_bits_it_is_as_near_to_fp32_as_the_plain_model_and_keeps_a_fifth_less():
    plain = make(LlamaConfig)
    lean, exact = copy.deepcopy(plain), copy.deepcopy(plain)
    kept = dict.fromkeys(("plain", "lean"), 0)
    gradients = {}
    for name, model in (("plain", plain), ("lean", lean)):
        seen = set()

        def keep(tensor, name=name, seen=seen):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in seen and not isinstance(tensor, torch.nn.Parameter):
                seen.add(storage.data_ptr())
                kept[name] += storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            if name == "lean":
                with lean_layers(model):
                    gradients[name] = loss_and_gradients(model, bf16=True)[1]
            else:
                gradients[name] = loss_and_gradients(model, bf16=True)[1]
    truth = loss_and_gradients(exact, bf16=False)[1]

    def error(found):
        return sum(float((found[n] - truth[n]).square().sum()) for n in truth) ** 0.5

    assert error(gradients["lean"]) < 1.1 * error(gradients["plain"])
    assert kept["lean"] < 0.8 * kept["plain"]


def test_other_families_and_gradient_checkpointing_are_left_alone():
    gemma, llama = make(Gemma2Config), make(LlamaConfig)
    llama.gradient_checkpointing_enable()
    for model in (gemma, llama):
        with lean_layers(model):
            assert not any("forward" in module.__dict__ for module in model.modules())
