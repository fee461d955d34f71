"""All that a result must carry: gathered from the meta data that every stage left in the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kbtrain.provenance import meta_path, read_meta

STAGES = (
    "questions.jsonl",
    "passages.jsonl",
    "evidence.jsonl",
    "samples.db",
    "labels.jsonl",
    "examples/train.jsonl",
    "examples/dev.jsonl",
    "examples/test.jsonl",
    "kbm",
    "scores.jsonl",
)


def stages(folder: Path) -> dict[str, dict[str, Any]]:
    """The meta data of each file of a run, as far as it is there; package versions stand once in the result."""
    found = {}
    for name in STAGES:
        if meta_path(folder / name).exists():
            meta = read_meta(folder / name)
            found[name] = {key: value for key, value in meta.items() if key != "packages"}
    return found


def gate_card(folder: Path) -> dict[str, Any] | None:
    """The ``gate.json`` of a gate folder, or None."""
    path = folder / "gate.json"
    if not path.exists():
        return None
    card: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return card
