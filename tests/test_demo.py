"""The demo's chain: one definition for `make demo` and `kbtrain demo`, every command one that its script takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbtrain.config import parse_args
from kbtrain.config_check import config_class
from kbtrain.demo import chain, run_folder

ROOT = Path(__file__).resolve().parent.parent
SIZES = ("tiny", "demo", "full")


@pytest.mark.parametrize("size", SIZES)
def test_every_stage_takes_its_arguments_and_stays_in_the_run_folder(size):
    steps = chain(size)
    names = "collect retrieve sample label build train_kbm score end_to_end classify write_report"
    assert [step.script for step in steps] == names.split()
    for step in steps:
        script = next(Path(word) for word in step.command() if word.endswith(f"{step.script}.py"))
        config = parse_args(config_class(script), step.arguments)
        folder = getattr(config, "run", None) or config.output.parent
        assert folder == run_folder(size)


def test_the_demo_trains_two_passes_and_the_full_one_half_as_many():
    epochs = {size: next(s for s in chain(size) if s.script == "train_kbm").arguments[3] for size in SIZES}
    assert epochs == {"tiny": "1", "demo": "2", "full": "1"}


def test_make_runs_the_same_chain():
    text = (ROOT / "Makefile").read_text()
    assert "kbtrain.cli demo\n" in text and "kbtrain.cli demo --full\n" in text
    assert "data_gen/" not in text
