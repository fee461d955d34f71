"""Input, exceptions and comparison that the checks of benchmarks/gpu_check.py share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sampling_prompts import long_prompts, short_prompts

from kbtrain.models.load import load_model, load_tokenizer

Figures = dict[str, float | int | str]
SCORE_TOLERANCE = {"fp32": 1e-3, "bf16": 0.1}  # a probability, from the CPU's in fp32


class Wrong(Exception):
    """A promise does not hold."""


class NotHere(Exception):
    """This check has no meaning on this machine."""


@dataclass(frozen=True)
class Here:
    """Device, folder of the model, folder for what is written. ``tiny``: few questions and tokens."""

    device: str
    model: str
    work: Path
    tiny: bool

    @property
    def steps(self) -> int:
        """Of a training; a checkpoint is written after half of them."""
        return 4 if self.tiny else 20

    def open(self, dtype: str, device: str | None = None) -> tuple[Any, Any]:
        """Model and tokenizer on the device (or another)."""
        return load_model(self.model, dtype, device or self.device)

    def prompts(self, short: int, long: int, length: int) -> list[list[int]]:
        """Token ids of the atlas' questions, without and with evidence."""
        tokenizer = load_tokenizer(self.model)
        evidence = long_prompts(tokenizer, long, length).ids if long else []
        return [*short_prompts(tokenizer, short).ids, *evidence]


def largest_gap(found: Sequence[float], reference: Sequence[float]) -> float:
    """Largest difference; NaN if any is."""
    gaps = [abs(a - b) for a, b in zip(found, reference, strict=True)]
    return math.nan if any(map(math.isnan, gaps)) else max(gaps)
