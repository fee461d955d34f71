"""Weights that are skipped, added or out of order are one line, with no hash in the card."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.gate_folders import FOLDERS
from torture.folders import without_hashes

from kbtrain.errors import UserError
from kbtrain.gates.registry import load_gate

Tensors = dict[str, torch.Tensor]
WEIGHTS = {
    "kbm": "model.safetensors", "probe": "probe.safetensors", "features": "words.safetensors",
    "encoder": "model.safetensors", "ragate_mha": "model.safetensors",
    "ragate_peft": "adapter/adapter_model.safetensors",
}  # fmt: skip


def _fractions(tensors):
    return next(name for name, value in tensors.items() if value.is_floating_point())


DAMAGE: dict[str, Callable[[Tensors], object]] = {
    "one skipped": lambda tensors: tensors.pop(_fractions(tensors)),
    "one more": lambda tensors: tensors.update({"one.more": torch.zeros(2)}),
}


def _reversed(hashes):
    return torch.tensor(hashes.tolist()[::-1], dtype=hashes.dtype)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    place = tmp_path_factory.mktemp("whole")
    for kind in WEIGHTS:
        FOLDERS[kind](place / kind)
        without_hashes(place / kind)
    return place


def _changed(whole, kind, change):
    path, said = whole / kind / WEIGHTS[kind], list[warnings.WarningMessage]()
    before = path.read_bytes()
    try:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path, {"format": "pt"})
        with warnings.catch_warnings(record=True) as said:  # what libraries say beside the line is seen by the user too
            warnings.simplefilter("always")
            load_gate(whole / kind, dtype="fp32", device="cpu")
    finally:
        path.write_bytes(before)
        assert not [one for one in said if "missing" in str(one.message)]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_that_are_not_the_gate_s_are_one_line(kind, damage, whole):
    with pytest.raises(UserError) as caught:
        _changed(whole, kind, DAMAGE[damage])
    assert str(whole / kind) in str(caught.value) and "\n" not in str(caught.value)


def test_words_out_of_order_would_be_sought_in_vain(whole):
    with pytest.raises(UserError, match=r"words\.safetensors: broken \(words are out of order\)"):
        _changed(whole, "features", lambda tensors: tensors.update(hashes=_reversed(tensors["hashes"])))
