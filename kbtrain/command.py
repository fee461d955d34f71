"""``kbtrain plan``: its arguments checked, and turned into a plan."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import yaml

from kbtrain.errors import UserError
from kbtrain.training.plan.config import PlannedTraining, read_planned
from kbtrain.training.plan.text import text_plan


def plan_command(args: argparse.Namespace) -> str:
    """The text to print. Raises :class:`UserError`."""
    if args.gpus < 1 or args.gpu_memory <= 0:
        raise UserError("command line: --gpus and --gpu-memory must be above 0")
    path, changes = Path(args.config), dict(_change(text) for text in args.set)
    examples, tokens = args.examples, args.tokens
    if args.train:
        examples, tokens = lengths(read_planned(path, changes), Path(args.train))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of other packages, about each other
        return text_plan(path, args.gpus, args.gpu_memory, changes, examples, tokens, _rate(args.rate))


def _change(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(f"command line: --set {text}: write KEY=VALUE")
    return key, yaml.safe_load(value)


def _rate(text: str | None) -> float | None:
    """TFLOP/s as given, or the rate of this machine's matrix products in 16 bits."""
    if text is None:
        return None
    if text == "measure":
        import torch

        from kbtrain.models.precision import matmul_rate

        return max(matmul_rate(torch.bfloat16), matmul_rate(torch.float32)) / 1e12
    try:
        return float(text)
    except ValueError:
        raise UserError(f"command line: --rate {text}: give a number of TFLOP/s, or measure") from None


def lengths(config: PlannedTraining, train: Path) -> tuple[int, float]:
    """Number of examples in a KBM's training file and their mean length in the model's own tokens."""
    from kbtrain.gates.true_false.form import Encoder, kbm_form
    from kbtrain.jsonl import read
    from kbtrain.models.load import load_tokenizer
    from kbtrain.prompts.kbm import PAPER_KEYS
    from kbtrain.records import GateExample

    encoder = Encoder(load_tokenizer(config.model), kbm_form(config.keys or PAPER_KEYS), config.max_length)
    found = [encoder.encode(example).length for example in read(GateExample, train)]
    if not found:
        raise UserError(f"{train}: no examples in it")
    return len(found), sum(found) / len(found)
