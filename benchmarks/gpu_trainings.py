"""The trainings of benchmarks/gpu_check.py: a recipe whole, and broken off and resumed, beside each other."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import importlib.util
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from unittest import mock

import torch
from gpu_here import SCORE_TOLERANCE, Figures, Here, NotHere, Wrong, largest_gap
from peers.machine import seconds_of
from training_data import long_and_short

from kbtrain.gates.ragate.mha import RagateMHA
from kbtrain.io import jsonl
from kbtrain.io.provenance import peak_rss_mb
from kbtrain.prompts.kbm import PAPER_KEYS
from kbtrain.runtime.scripts import find

Method = Literal["full", "lora", "qlora"]


LOSS_TOLERANCE = 0.02  # of a resumed training's loss; a GPU's sums have no fixed order


def training(here: Here, method: Method) -> Figures:
    """20 steps (tiny: 4) of the KBM's recipe; the same broken off behind its checkpoint and resumed: equal losses."""
    if method == "qlora" and here.device == "cpu":
        raise NotHere("not on cpu: trainings beside 4-bit weights there are in tests/recipes")
    if method == "qlora" and importlib.util.find_spec("bitsandbytes") is None:
        raise NotHere('bitsandbytes is not installed: pip install "kbtrain[train]"')
    recipe = recipe_module("train_kbm")
    (train, dev), half = examples_files(here), here.steps // 2
    keys: dict[str, Any] = {
        "model": here.model, "train": train, "dev": dev, "method": method, "epochs": 1,
        "device_batch_size": rows_a_step(here), "save_steps": half, "device": here.device,
        "dtype": "bf16" if here.device == "cuda" else "fp32",
        "keys": PAPER_KEYS, "select": "last", "merge_adapter": False,
    }  # fmt: skip
    if here.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    whole, resumed = (here.work / f"{method}-{name}" for name in ("whole", "resumed"))
    seconds = seconds_of(lambda: train_once(recipe, recipe.TrainKBMConfig(**keys, output=whole)), here.device)
    peak = torch.cuda.max_memory_allocated() / 2**20 if here.device == "cuda" else peak_rss_mb()
    again = recipe.TrainKBMConfig(**keys, output=resumed)
    with broken_off_behind(half), contextlib.suppress(BrokenOff):
        train_once(recipe, again)
    if not (resumed / "checkpoints" / f"checkpoint-{half}").is_dir():
        raise Wrong(f"no checkpoint of step {half}")
    train_once(recipe, again)
    first, second = (losses(folder) for folder in (whole, resumed))
    if not len(first) == len(second) == here.steps:
        raise Wrong(f"{len(first)} and {len(second)} steps, expected {here.steps}")
    gap = largest_gap([a / b for a, b in zip(first, second, strict=True)], [1.0] * here.steps)
    if not gap <= LOSS_TOLERANCE:
        raise Wrong(f"a resumed training's loss differs by {gap:.2%}; tolerance {LOSS_TOLERANCE:.0%}")
    return {
        "steps": here.steps, "seconds": seconds, "first_loss": first[0], "last_loss": first[-1], "gap_resumed": gap,
        "tolerance": LOSS_TOLERANCE, "peak_mb": peak,
    }  # fmt: skip


def mha(here: Here) -> Figures:
    """RAGate-MHA: as many steps of its recipe, then its scores beside the CPU's."""
    recipe, (train, dev) = recipe_module("train_ragate_mha"), examples_files(here)
    config = recipe.TrainRagateMHAConfig(
        train=train, dev=dev, output=here.work / "mha", key="mastery", inputs="contx", layers=2, heads=4, d_model=64,
        vocabulary=300 if here.tiny else 2000, max_length=128, epochs=1, device_batch_size=rows_a_step(here),
        learning_rate=1e-3, dtype="fp32", device=here.device, select="last",
    )  # fmt: skip
    seconds = seconds_of(lambda: train_once(recipe, config), here.device)
    examples = long_and_short(6, 60)
    found, reference = (
        RagateMHA.load(here.work / "mha", "fp32", device).score_examples(examples) for device in (here.device, "cpu")
    )
    gap = largest_gap(found, reference)
    if not gap <= SCORE_TOLERANCE["fp32"]:
        raise Wrong(f"scores differ from the CPU's by {gap:.4f}; tolerance {SCORE_TOLERANCE['fp32']}")
    return {"steps": here.steps, "seconds": seconds, "gap": gap, "tolerance": SCORE_TOLERANCE["fp32"]}


def examples_files(here: Here) -> tuple[Path, Path]:
    """Training and dev examples in files: as many rows as :func:`rows_a_step` takes, both classes in each."""
    rows = rows_a_step(here) * here.steps
    made = sorted(long_and_short(rows + 4, 30 if here.tiny else 300), key=lambda example: bool(example.mastery))
    dev = [dataclasses.replace(example, split="dev") for example in (*made[:2], *made[-2:])]
    paths = here.work / "train.jsonl", here.work / "dev.jsonl"
    for path, part in zip(paths, (made[2:-2], dev), strict=True):
        jsonl.write(path, part)
    return paths


def rows_a_step(here: Here) -> int:
    """Examples in a step of a training."""
    return 1 if here.tiny else 2


def recipe_module(name: str) -> ModuleType:
    """A recipe's script as a module."""
    spec = importlib.util.spec_from_file_location(name, find(name, "recipes", what="recipe"))
    if spec is None or spec.loader is None:
        raise FileNotFoundError(name)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks there for the types of a config's fields
    spec.loader.exec_module(module)
    return module


def train_once(recipe: ModuleType, config: Any) -> None:
    """A recipe's main in this process; its output is the recipe's, not ours."""
    from accelerate.state import AcceleratorState, GradientState, PartialState

    kinds: tuple[Any, ...] = (AcceleratorState, GradientState, PartialState)
    for kind in kinds:  # of the whole process, left by the training before
        kind._reset_state()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            recipe.main(config)
    finally:
        gc.collect()


class BrokenOff(BaseException):
    """A training that is ended in its middle, as by a signal: nothing in between catches it."""


@contextlib.contextmanager
def broken_off_behind(step: int) -> Iterator[None]:
    """Within it, a training ends with :class:`BrokenOff` at the first step behind ``step``."""
    from transformers.trainer_callback import DefaultFlowCallback

    before: Callable[..., Any] = DefaultFlowCallback.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **more: Any) -> Any:
        if state.global_step > step:
            raise BrokenOff
        return before(self, args, state, control, **more)

    with mock.patch.object(DefaultFlowCallback, "on_step_end", on_step_end):
        yield


def losses(folder: Path) -> list[float]:
    """The logged loss of each step."""
    history = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]
