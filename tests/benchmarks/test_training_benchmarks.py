"""benchmarks/training.py and scoring.py run on a tiny model; TRL's part where TRL is installed."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import scripts
from tiny_kbm import make_folder

ROOT = Path(__file__).parents[2]
PEERS = ["kbtrain", "kbtrain_padded", *(["trl_best"] if find_spec("trl") else [])]


def run(script, **keys):
    given = [part for key, value in keys.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    return scripts.run(f"benchmarks/{script}", *given, nested=True)


def test_the_training_benchmark_gives_rates_memory_losses_and_a_figure(tmp_path):
    model = make_folder(tmp_path / "model")
    done = run(
        "training.py", model=model, dtype="fp32", examples=8, longest=60, max_length=2000, batch=2, epochs=2,
        peers=json.dumps(PEERS), output=tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "out" / "training_full.json").read_text())
    for reply in found.values():
        assert reply["steps"] == len(reply["losses"]) == 8
        assert reply["tokens"] > 0 and reply["seconds"] > 0 and reply["peak_rss_mb"] > 100
        assert 0 < reply["least_seconds"] < reply["seconds"]
    assert "kbtrain" in done.stdout and (tmp_path / "out" / "training_full.svg").read_text().startswith("<svg")
    assert found["kbtrain"]["final_loss"] == pytest.approx(found["kbtrain_padded"]["final_loss"], rel=1e-3)
    if "trl_best" in found:
        assert found["kbtrain"]["final_loss"] == pytest.approx(found["trl_best"]["final_loss"], rel=0.1)


def test_the_training_benchmark_says_what_is_missing():
    if find_spec("trl"):
        pytest.skip("TRL is installed")
    done = run("training.py")
    assert done.returncode == 2 and "package 'trl' is needed" in done.stderr


def test_the_scoring_benchmark_gives_both_rates(tmp_path):
    model = make_folder(tmp_path / "model")
    out = tmp_path / "s.json"
    done = run("scoring.py", model=model, dtype="fp32", examples=4, longest="[0, 40]", rounds=1, output=out)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(out.read_text())
    assert list(found) == [f"{tokens} tokens, {size} at once" for tokens in (0, 40) for size in (1, 8)]
    for rates in found.values():
        assert rates["kbtrain"] > 0 and rates["generate"] > 0
        assert f"({rates['unread']} of 4 unreadable)" in done.stdout


def test_the_operations_of_a_training_epoch_are_three_times_those_of_a_forward_pass(tmp_path, monkeypatch):
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import LlamaConfig, LlamaForCausalLM

    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from training_limit import operations

    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with FlopCounterMode(display=False) as counter:
        model(torch.ones(1, 64, dtype=torch.long), logits_to_keep=5)
    parts = operations(model, [64], 5)
    square = parts["attention"] / 65 * 64 * 2  # eager attention computes the whole square, we count what is seen
    assert operations(model, [64, 64], 5, shared=64)["body"] == parts["body"]
    assert counter.get_total_flops() == pytest.approx((parts["body"] + square + parts["head"]) / 3, rel=0.01)
