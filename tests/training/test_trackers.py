"""Trackers: real files of wandb (offline) and TensorBoard with the losses in them."""

import json
from importlib.util import find_spec

import pytest
import yaml
from support import scripts
from tiny_kbm import labelled, make_folder

from kbtrain.io.jsonl import write


def trained(tmp_path, tracker):
    make_folder(tmp_path / "model")
    write(tmp_path / "train.jsonl", [labelled(i) for i in range(8)])
    write(tmp_path / "dev.jsonl", [labelled(i, "dev") for i in range(9)])
    keys = {"model": tmp_path / "model", "train": tmp_path / "train.jsonl", "dev": tmp_path / "dev.jsonl"}
    keys |= {"output": tmp_path / "run", "epochs": 1, "dtype": "fp32", "device": "cpu", "report_to": tracker}
    given = [part for key, value in keys.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    environment = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    done = scripts.run("recipes/train_kbm.py", *given, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    return tmp_path / "run", [log["loss"] for log in state["log_history"] if "loss" in log]


@pytest.mark.skipif(find_spec("wandb") is None, reason='wandb is not installed: pip install "kbtrain[wandb]"')
def test_wandb_offline_writes_a_run_with_the_losses(tmp_path):
    run, losses = trained(tmp_path, "wandb")
    (path,) = run.glob("wandb/offline-run-*/run-*.wandb")
    assert all(str(loss)[:5].encode() in path.read_bytes() for loss in losses)
    assert yaml.safe_load((run / "config.yaml").read_text())["report_to"] == "wandb"
    card = (run / "README.md").read_text()
    assert "auroc_mastery | 0." in card and "[0." in card and "## Threshold\nNone is set by training" in card


@pytest.mark.skipif(
    find_spec("tensorboard") is None, reason='tensorboard is not installed: pip install "kbtrain[tensorboard]"'
)
def test_tensorboard_writes_events_with_the_losses(tmp_path):
    run, losses = trained(tmp_path, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "tensorboard"))
    found.Reload()
    assert [event.value for event in found.Scalars("train/loss")] == pytest.approx(losses, rel=1e-6)
