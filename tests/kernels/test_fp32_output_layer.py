import pytest
import torch
from tiny_kbm import KINDS, make_model

from kbtrain.models.forward import fp32_output_layer


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
