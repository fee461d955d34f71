"""The entities of the atlas. Everything a question can be about, each with its split and popularity."""

from __future__ import annotations

from dataclasses import dataclass

from kbtrain.records import Split


@dataclass(frozen=True)
class Entity:
    """``popularity`` is a rank share within the kind (1 = best known); ``names`` starts with the one used in text."""

    id: str
    names: tuple[str, ...]
    popularity: float
    split: Split

    @property
    def name(self) -> str:
        return self.names[0]


@dataclass(frozen=True)
class Country(Entity):
    """``said`` is the name in a sentence ("the Netherlands"); None or empty = not asked and not stated."""

    code: str
    said: str
    continent: str
    capital: tuple[str, ...]
    currency_code: str
    currency: tuple[str, ...]
    calling_code: str
    domain: str
    language: tuple[str, ...]
    area_km2: int
    neighbours: tuple[str, ...]  # their ids


@dataclass(frozen=True)
class State(Entity):
    """A state of the United States with its postal abbreviation."""

    code: str
    capital: tuple[str, ...]


@dataclass(frozen=True)
class City(Entity):
    """``home`` is the id of the country or US state; ``unique``: no other place of note has this name."""

    home: str
    is_capital: bool
    unique: bool
    population: int
    time_zone: str


@dataclass(frozen=True)
class Element(Entity):
    """``family`` is empty where sources differ."""

    symbol: str
    number: int
    period: int
    group: int | None
    family: tuple[str, ...]
