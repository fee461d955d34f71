"""States of prompts read on a Ray cluster: those of one process, written by the caller alone, and never of others."""

from __future__ import annotations

import json
import os
from dataclasses import asdict

import numpy as np
import pytest
import torch
from tiny_kbm import QUESTIONS, make_folder

from kbtrain.distributed.scoring import RayStates, ReadModel, StateWorker, packed, unpacked
from kbtrain.errors import UserError
from kbtrain.gates.probe.gate import Reader, state_facts
from kbtrain.gates.probe.states import StateStore, prompt_key, prompt_states
from kbtrain.models.adapters import base_fingerprint
from kbtrain.models.load import load_model
from kbtrain.records import GateExample


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("states") / "model", num_hidden_layers=3)


@pytest.fixture(scope="module")
def read(folder):
    return ReadModel(str(folder), base_fingerprint(str(folder)), "fp32", "cpu")


@pytest.fixture(scope="module")
def model_and_prompts(folder):
    model, tokenizer = load_model(str(folder), "fp32", "cpu")
    rows = [GateExample(f"e{i}", f"q{i}", "train", f"{i}. {q}", "en", None) for i, q in enumerate(QUESTIONS)]
    return model, Reader(model, tokenizer).prompts(rows)


def test_states_pass_through_text_with_the_16_bits_that_are_stored():
    states = np.random.default_rng(0).normal(size=(3, 2, 5)).astype(np.float32)
    there = unpacked(packed(states))
    assert there.shape == states.shape and there.dtype == np.float32
    assert np.array_equal(there, torch.from_numpy(states).bfloat16().float().numpy())
    assert packed(there) == packed(states)


def test_a_worker_s_states_are_those_of_one_process(read, model_and_prompts):
    model, prompts = model_and_prompts
    worker = StateWorker(json.dumps(asdict(read)), os.getcwd())
    done = worker({"number": [0], "row": [json.dumps([list(ids) for ids in prompts])]})["done"][0]
    assert unpacked(json.loads(done)) == pytest.approx(
        unpacked(packed(prompt_states(model, prompts))), rel=0.01, abs=1e-4
    )


def test_a_worker_with_other_weights_refuses(read, tmp_path):
    other = make_folder(tmp_path / "other", num_hidden_layers=3, initializer_range=0.1)
    with pytest.raises(UserError, match="other weights here than where the extraction was started"):
        StateWorker(json.dumps(asdict(ReadModel(str(other), read.fingerprint, "fp32", "cpu"))), os.getcwd())


class Here(RayStates):
    """The rows in this process, the last one first, as machines of unequal speed finish them."""

    def map_rows(self, worker, config, rows, unit, gpus=1):
        opened = worker(json.dumps(asdict(config)), ".")
        for number, row in reversed(rows.items()):
            yield number, json.loads(json.dumps(opened.do(row)))


def test_what_is_stored_is_not_read_again_and_each_state_stands_at_its_prompt(
    read, model_and_prompts, tmp_path, monkeypatch
):
    monkeypatch.setattr("kbtrain.distributed.scoring.PER_ROW", 3)
    model, prompts = model_and_prompts
    one = StateStore(tmp_path / "one", state_facts(read.fingerprint, "fp32"))
    assert sum(one.extract(model, prompts)) == len(prompts)
    other = StateStore(tmp_path / "other", state_facts(read.fingerprint, "fp32"))
    assert sum(other.extract(model, prompts[:2])) == 2
    assert sum(Here().extract(other, read, prompts)) == len(prompts) - 2
    assert list(Here().extract(other, read, prompts)) == []
    again = StateStore(tmp_path / "other", state_facts(read.fingerprint, "fp32"))
    keys = [prompt_key(ids) for ids in prompts]
    for layer in range(3):
        assert again.layer(keys, layer) == pytest.approx(one.layer(keys, layer), rel=0.01, abs=1e-4)


def test_a_real_cluster_reads_them(read, model_and_prompts, tmp_path, cluster):
    model, prompts = model_and_prompts
    one = StateStore(tmp_path / "one", state_facts(read.fingerprint, "fp32"))
    other = StateStore(tmp_path / "other", state_facts(read.fingerprint, "fp32"))
    assert sum(one.extract(model, prompts)) == sum(RayStates().extract(other, read, prompts)) == len(prompts)
    keys = [prompt_key(ids) for ids in prompts]
    assert other.layers(keys, [0, 2]) == pytest.approx(one.layers(keys, [0, 2]), rel=0.01, abs=1e-4)
