"""The keys of a recipe's YAML file that decide what a training needs (the others are read and left alone)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from kbtrain.config import build
from kbtrain.training.config import TrainingConfig

Method = Literal["full", "lora", "qlora"]


class PlannedTraining(TrainingConfig):
    """A recipe of a causal language model (train_kbm.py, train_ragate_peft.py), with or without its files."""

    train: Path | None = Field(None, description="training examples")  # type: ignore[assignment]
    output: Path | None = Field(None, description="folder")  # type: ignore[assignment]
    max_length: int = Field(1580, ge=16, description="tokens of prompt and answer")
    method: Method = Field("full", description="what is trained")
    lora_rank: int = Field(16, ge=1, description="rank of the adapters")
    lora_alpha: int = Field(32, ge=1, description="scale of the adapters")
    lora_dropout: float = Field(0.05, ge=0, lt=1, description="dropout before the adapters")
    merge_adapter: bool = Field(True, description="also save merged weights")
    select: str = Field("loss", description="checkpoint kept")  # type: ignore[assignment]
    keys: Any = None
    labels: Any = None
    features: Any = None
    test: Any = None


def read_planned(path: Path, changes: dict[str, Any] | None = None) -> PlannedTraining:
    """A recipe's YAML file, with some keys changed. Raises :class:`~kbtrain.errors.UserError`."""
    return build(PlannedTraining, path, changes or {})


def planned(config: TrainingConfig) -> PlannedTraining:
    """A recipe's own configuration as a plan reads it."""
    return PlannedTraining.model_validate(config.model_dump(include=set(PlannedTraining.model_fields)))
