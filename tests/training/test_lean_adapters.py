"""Lean adapters are peft's: same results and gradients, dropout that is dropout, less kept, nothing left behind."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_kbm import make_model
from torch import nn

from kbtrain.kernels.lean_training import DroppedProduct, kept_places, lean_adapters
from kbtrain.models.adapters import Adapter


def adapted(dropout, seed=0):
    """A tiny model with adapters whose second halves are not zero, as they are at the start."""
    torch.manual_seed(seed)
    settings = LoraConfig(r=4, lora_alpha=8, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(make_model(vocabulary=50), settings).train()
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            weight.data.normal_(0, 0.1)
    return model


def step(model, autocast=False):
    """Logits, the adapters' gradients, and bytes that are kept for the backward pass."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    ids = torch.arange(40).view(2, 20)
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = model(input_ids=ids).logits
    logits.float().square().sum().backward()
    grads = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    return logits.detach().float(), grads, sum(kept.values())


@pytest.mark.parametrize("autocast", [False, True])
def test_without_dropout_results_and_gradients_are_those_of_peft(autocast):
    plain, lean = adapted(0.0), adapted(0.0)
    with lean_adapters(lean):
        logits, grads, _ = step(lean, autocast)
    expected, expected_grads, _ = step(plain, autocast)
    close = {"rtol": 0.05, "atol": 0.02 * expected.abs().max().item()} if autocast else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(logits, expected, **close)
    for name, grad in expected_grads.items():
        scale = max(grad.abs().max().item(), 1e-6)
        torch.testing.assert_close(grads[name] / scale, grad / scale, rtol=0, atol=0.05 if autocast else 1e-4)


def test_dropout_zeroes_and_scales_and_its_gradients_are_right():
    x = torch.randn(3, 5, 8, dtype=torch.double, requires_grad=True)
    weight = torch.randn(4, 8, dtype=torch.double, requires_grad=True)

    def seeded(x, weight):
        torch.manual_seed(7)
        return DroppedProduct.apply(x, weight, 0.3, torch.double)

    assert torch.autograd.gradcheck(seeded, (x, weight))
    torch.manual_seed(7)
    kept, scale = kept_places(x, 0.3)
    assert kept.any() and not kept.all() and scale == pytest.approx(1 / 0.7, rel=1e-4)
    torch.testing.assert_close(seeded(x, weight), (x * kept * scale) @ weight.T)


def test_seeds_decide_and_evaluation_drops_nothing():
    model, plain = adapted(0.5), adapted(0.0)
    with lean_adapters(model):
        torch.manual_seed(1)
        first = step(model)[0]
        assert not torch.equal(step(model)[0], first)
        torch.manual_seed(1)
        assert torch.equal(step(model)[0], first)
        torch.testing.assert_close(step(model.eval())[0], step(plain)[0], rtol=1e-4, atol=1e-5)


def test_afterwards_all_is_as_before_and_what_others_changed_is_left_alone():
    model = adapted(0.1)
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    layer = next(m for m in model.modules() if hasattr(m, "lora_A") and isinstance(m.lora_A, nn.ModuleDict))
    mine = copy.copy(layer.lora_A["default"].forward)
    layer.lora_A["default"].forward = mine
    with lean_adapters(model):
        assert layer.lora_A["default"].forward is mine and layer.cast_input_dtype_enabled
    assert layer.lora_A["default"].forward is mine
    del layer.lora_A["default"].forward
    with pytest.raises(ZeroDivisionError), lean_adapters(model):
        assert any("forward" in vars(module) for module in model.modules())
        raise ZeroDivisionError
    assert {name: dict(vars(module)) for name, module in model.named_modules()} == before


def test_the_built_adapter_scales_by_alpha_over_rank():
    """What the adapters add to a layer's output, by hand from their two matrices: x A' B' alpha / rank."""
    for rank, alpha in ((4, 8), (4, 32), (2, 3)):
        model = Adapter(rank, alpha, 0.0, seed=1)(make_model(vocabulary=50)).eval()
        layer = next(module for name, module in model.named_modules() if name.endswith("q_proj"))
        down, up = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        torch.nn.init.normal_(up)
        x = torch.randn(3, down.shape[1])
        added = layer(x) - layer.base_layer(x)
        torch.testing.assert_close(added, x @ down.T @ up.T * alpha / rank, rtol=1e-4, atol=1e-4)
        assert down.shape[0] == rank
