"""``gate.json`` of gates that classify (encoder, probe, RAGate-MHA): what they read, learnt and decide by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.folder import CARD, Threshold, read_json
from kbtrain.jsonl import one_line
from kbtrain.prompts.kbm import Key
from kbtrain.provenance import write_atomically

Kind = Literal["encoder", "encoder_probe", "ragate_mha"]


class ClassifierCard(BaseModel):
    """The content of ``gate.json``. ``reads`` are the settings of the input; ``key`` the label of questions that was
    learnt; ``seed`` tells trainings on the same data apart; ``base`` the gate whose log odds it adds to."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    kind: Kind
    base_model: str | None
    reads: dict[str, Any]
    labels: Literal["hard", "soft"]
    key: Key = "mastery"
    base: Literal["dialogue_state"] | None = None
    seed: int
    thresholds: dict[str, Threshold] = {}
    label_rule: dict[str, Any] = {}
    run: dict[str, Any] = {}
    versions: dict[str, str] = {}


def write_classifier_card(folder: Path, card: ClassifierCard) -> None:
    """Write ``gate.json`` atomically."""
    write_atomically(folder / CARD, json.dumps(card.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")


def read_classifier_card(folder: Path | str, kind: Kind) -> ClassifierCard:
    """Raises :class:`UserError` for a folder that holds no gate of this kind, or a broken one."""
    data, path = read_json(folder), Path(folder) / CARD
    if data["kind"] != kind:
        raise UserError(f"{at(path)}: a gate of kind '{data['kind']}', expected '{kind}'")
    try:
        return ClassifierCard.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{at(path)}: {one_line(error)}") from None
