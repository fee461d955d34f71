"""``gate.json`` of RAGate-PEFT: which base and adapter, which features it reads, and what it was trained from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.folder import CARD, Threshold, read_json
from kbtrain.jsonl import one_line
from kbtrain.prompts.ragate_peft_prompts import PeftFeature
from kbtrain.provenance import write_atomically


class RagatePeftCard(BaseModel):
    """The content of ``gate.json``. ``dtype``: what is computed in; ``method`` qlora: the base is opened in NF4."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    kind: Literal["ragate_peft"] = "ragate_peft"
    base_model: str
    base_fingerprint: str
    method: Literal["lora", "qlora"]
    features: tuple[PeftFeature, ...]
    prompt_fingerprint: str
    max_length: int
    dtype: str
    seed: int
    merged: bool = False  # the folder also holds the 16-bit weights with the adapter in them
    thresholds: dict[str, Threshold] = {}
    label_rule: dict[str, Any] = {}
    run: dict[str, Any] = {}
    versions: dict[str, str] = {}


def write_peft_card(folder: Path, card: RagatePeftCard) -> None:
    """Write ``gate.json`` atomically."""
    write_atomically(folder / CARD, json.dumps(card.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")


def read_peft_card(folder: Path | str) -> RagatePeftCard:
    """Raises :class:`UserError` for a folder that holds no such gate, or a broken one."""
    data, path = read_json(folder), Path(folder) / CARD
    if data["kind"] != "ragate_peft":
        raise UserError(f"{at(path)}: a gate of kind '{data['kind']}', expected 'ragate_peft'")
    try:
        return RagatePeftCard.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{at(path)}: {one_line(error)}") from None
