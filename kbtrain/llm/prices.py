"""Prices and latencies of the system to be deployed, and the keys of a look ahead at what a stage will cost."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain.config import Config, build
from kbtrain.errors import UserError
from kbtrain.runtime.scripts import find

PRICES = Path("eval/configs/prices.yaml")


class Prices(Config):
    """Prices and latencies of the system to be deployed: assumptions, set by the user."""

    currency: str = Field("USD", description="of all prices")
    search: float = Field(ge=0, description="price of one search")
    million_tokens_in: float = Field(ge=0, description="price of a million prompt tokens")
    million_tokens_out: float = Field(ge=0, description="price of a million generated tokens")
    machine_hour: float = Field(ge=0, description="price of an hour of the machine that runs the gate")
    search_seconds: float = Field(ge=0, description="one search takes so long")
    seconds_per_1000_tokens_in: float = Field(ge=0, description="reading a thousand prompt tokens takes so long")
    seconds_per_1000_tokens_out: float = Field(ge=0, description="generating a thousand tokens takes so long")


@dataclass(frozen=True)
class Amount:
    """An amount of money, prompt tokens or milliseconds."""

    value: float
    unit: Literal["money", "tokens", "ms"]

    @classmethod
    def read(cls, text: str, currency: str, key: str) -> Amount:
        """``2.5 USD``, ``3000 tokens``, ``800 ms``. Raises :class:`UserError`."""
        match = re.fullmatch(r"\s*([0-9][0-9_,]*\.?[0-9]*(?:e-?[0-9]+)?|\.[0-9]+)\s*([A-Za-z]+|[^\w\s])\s*", text)
        units: dict[str, Literal["money", "tokens", "ms"]] = {currency.lower(): "money", "tokens": "tokens", "ms": "ms"}
        unit = None if match is None else units.get(match[2].lower())
        if match is None or unit is None:
            expected = f"2.5 {currency}, 3000 tokens or 800 ms"
            raise UserError(f"key '{key}': expected an amount such as {expected}, found {text!r:.40}")
        return cls(float(match[1].replace(",", "").replace("_", "")), unit)


def search_cost(prices: Prices, tokens: float | None, unit: Literal["money", "tokens", "ms"]) -> float:
    """Cost of one search with the ``tokens`` that its passages add to the prompt."""
    read = tokens or 0.0
    if unit == "tokens":
        return read
    if unit == "ms":
        return 1000 * prices.search_seconds + read * prices.seconds_per_1000_tokens_in
    return prices.search + read * prices.million_tokens_in / 1e6


def read_prices(name: Path) -> Prices:
    """Prices of a file, or of the shipped one of that name. Raises :class:`UserError` for a broken one."""
    return build(Prices, find(name, "configs", what="price list"), {})


class ForecastConfig(Config):
    """Keys of a look ahead."""

    dry_run: bool = Field(False, description="say requests, tokens, money and time, and stop")
    measure: int = Field(0, ge=0, description="dry_run: do so many of them, keep nothing, and tell the time of all")
    prices: Path = Field(PRICES, description="dry_run: YAML file with prices")
