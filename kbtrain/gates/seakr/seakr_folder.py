"""SeaKR's gate folder: ``gate.json`` alone. The weights are the base model's, which it names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.folder import CARD, Threshold, read_json
from kbtrain.gates.seakr.engine import SeakrSettings, Thought
from kbtrain.gates.seakr.uncertainty import Scale
from kbtrain.jsonl import one_line
from kbtrain.provenance import write_atomically


class MeasuredScale(BaseModel):
    """The squared norms of states over ``n`` questions, and the floor and ceiling of U that follow from them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    n: int
    low: float
    mean: float
    high: float
    floor: float
    ceiling: float
    mean_floor: float


class SeakrCard(BaseModel):
    """The content of a SeaKR gate's ``gate.json``; ``settings`` name the layer and MLP whose states are read."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    kind: Literal["seakr"] = "seakr"
    base_model: str
    dtype: str
    prompt_fingerprint: str
    settings: SeakrSettings
    measured: MeasuredScale | None = None
    thresholds: dict[str, Threshold] = {}
    run: dict[str, Any] = {}
    versions: dict[str, str] = {}

    @property
    def scale(self) -> Scale | None:
        """What U can be here, if it was measured and U is what decides."""
        if self.measured is None:
            return None
        m = self.measured
        return Scale(self.settings.k, self.settings.alpha, m.n, m.low, m.mean, m.high)


def measured_scale(thoughts: Sequence[Thought], settings: SeakrSettings) -> MeasuredScale:
    """From the norms of some questions' states."""
    from kbtrain.gates.seakr.uncertainty import floor

    scale = Scale.of([thought.squared_norm for thought in thoughts], settings.k, settings.alpha)
    return MeasuredScale(
        n=scale.n,
        low=scale.low,
        mean=scale.mean,
        high=scale.high,
        floor=scale.floor,
        ceiling=scale.ceiling,
        mean_floor=floor(scale.mean, scale.k, scale.alpha),
    )


def write_seakr_card(folder: Path, card: SeakrCard) -> None:
    """Write ``gate.json`` atomically."""
    write_atomically(folder / CARD, json.dumps(card.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")


def read_seakr_card(folder: Path | str) -> SeakrCard:
    """Raises :class:`UserError` for a folder that holds no SeaKR gate."""
    data = read_json(folder)
    if data["kind"] != "seakr":
        raise UserError(f"{at(Path(folder) / CARD)}: a gate of kind '{data['kind']}', expected 'seakr'")
    try:
        return SeakrCard.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{at(Path(folder) / CARD)}: {one_line(error)}") from None


def scale_of(folder: Path | str, gate: str) -> Scale | None:
    """What U can be in a SeaKR gate's folder; None for other kinds and for its other signals."""
    if gate != "seakr" or read_json(folder)["kind"] != "seakr":
        return None
    return read_seakr_card(folder).scale
