"""What a run's folder holds, and trackers: real files of wandb (offline) and TensorBoard with the losses in them."""

import json
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from support import scripts
from tiny_kbm import labelled, make_folder

from kbtrain.config import Config
from kbtrain.io.jsonl import write
from kbtrain.io.provenance import file_sha256
from kbtrain.training.finish import curves, write_run_files

ROOT = Path(__file__).parents[2]
HISTORY = [{"step": s, "loss": 1 / s} for s in (1, 2, 3)] + [{"step": 3, "eval_loss": 0.4, "eval_auroc": 0.8}]


def test_curves_are_an_svg_with_loss_and_dev_and_the_same_every_time():
    text = curves(HISTORY)
    root = ElementTree.fromstring(text[text.index("<svg") :])
    assert root.tag.endswith("svg")
    assert "dev auroc" in text and "dev loss" in text and "step" in text
    assert curves(HISTORY) == text
    assert "dev" not in curves(HISTORY[:3])


def test_the_folder_holds_config_environment_and_data_hashes(tmp_path):
    class Settings(Config):
        train: Path
        dev: Path | None = None
        epochs: int = 3

    (tmp_path / "train.jsonl").write_text("ab")
    write_run_files(tmp_path, Settings(train=tmp_path / "train.jsonl"), ("train", "dev"), HISTORY)
    kept = {"train": str(tmp_path / "train.jsonl"), "dev": None, "epochs": 3}
    assert yaml.safe_load((tmp_path / "config.yaml").read_text()) == kept
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["data_sha256"] == {"train": file_sha256(tmp_path / "train.jsonl")}
    assert {"packages", "git_commit", "python", "platform", "device"} <= environment.keys()
    assert (tmp_path / "curves.svg").exists()
    (tmp_path / "curves.svg").unlink()
    write_run_files(tmp_path, Settings(train=tmp_path / "train.jsonl"), ("train", "dev"), None)
    assert not (tmp_path / "curves.svg").exists()


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
    hashes = json.loads((run / "environment.json").read_text())["data_sha256"]
    assert hashes["train"] == file_sha256(tmp_path / "train.jsonl")
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
