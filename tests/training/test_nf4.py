"""Weights in NF4: what bitsandbytes makes of them must not change while a training goes on."""

import pytest
import torch
from tiny_kbm import make_folder

from kbtrain.models.adapters import Adapter, load_nf4

pytest.importorskip("bitsandbytes", reason='bitsandbytes is not installed: pip install "kbtrain[train]"')


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.set_num_threads(1)
    return make_folder(tmp_path_factory.mktemp("nf4"), hidden_size=64, intermediate_size=128)


def gradients(folder, evaluated):
    """Of adapters in all layers, after dev scores were taken or not."""
    base, _ = load_nf4(str(folder), "cpu", torch.bfloat16)
    model = Adapter(4, 8, 0.0, 0)(base)
    ids = torch.arange(20)[None]
    if evaluated:
        with torch.no_grad():
            model.eval()(input_ids=ids)
    model.train()(input_ids=ids).logits.float().logsumexp(-1).sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_dev_scores_in_mid_training_leave_every_gradient_as_it_was(folder):
    before, after = gradients(folder, False), gradients(folder, True)
    assert len(before) == 2 * 7 * 2 and before.keys() == after.keys()
    assert all(before[name] is not None and torch.equal(before[name], after[name]) for name in before)
    assert all(before[name].abs().sum() > 0 for name in before if "lora_B" in name)  # A learns once B is not 0
