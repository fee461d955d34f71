"""The bills of ``cost.json`` for the report, if they were made."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.evaluation.cost import GateBill, Prices


@dataclass(frozen=True)
class Bills:
    """All gates' bills and the prices they were made out at."""

    prices: Prices
    gates: list[GateBill]


def read_bills(path: Path) -> Bills | None:
    """None without the file. Raises :class:`UserError` for one of another version."""
    if not path.exists():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != 1:
            raise KeyError("schema")
        gates = TypeAdapter(list[GateBill]).validate_python(document["gates"])
        return Bills(Prices.model_validate(document["prices"]), gates)
    except (json.JSONDecodeError, KeyError, TypeError, ValidationError):
        raise UserError(f"{at(path)}: not a bill of this version; run eval/cost.py again, or remove it") from None
