"""Facts, one per (relation, subject), with their source passage; and the entities they are about.

An entity has its split and its popularity.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atlas.tables import NAME_WITHIN_OTHER, WORDS
from kbtrain.answers.grading import contains
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
    """A country. ``said`` is the name in a sentence ("the Netherlands"); None or empty = no question, no statement."""

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


@dataclass(frozen=True)
class Fact:
    """``region`` is where hard distractors come from.

    ``entities`` are all entities the fact is about, the answer included if it is one; ``open_safe`` is False where
    the answer is also an everyday word, so a search in free text cannot find it.
    """

    relation: str
    subject: str  # as it is in the question
    answers: tuple[str, ...]
    kind: str  # country, state, city, element: with `relation`, which wordings fit
    subject_id: str
    entities: tuple[str, ...]
    gold: tuple[str, ...]
    popularity: float
    split: Split
    region: str
    hops: int = 1
    open_safe: bool = True

    @property
    def given_away(self) -> bool:
        """True if the question itself would contain the answer ("capital of Guinea-Bissau")."""
        return any(contains(self.subject, answer) for answer in self.answers)

    @property
    def key(self) -> str:
        """Readable and stable: ``capital/BO``, ``continent/city/3903987``."""
        kind, name = self.subject_id.split(":", 1)
        return f"{self.relation}/{kind}/{name}" + ("/2" if self.hops == 2 else "")


def country_facts(land: Country, capital: City | None) -> Iterator[Fact]:
    """Facts about a country itself."""

    def fact(relation: str, answers: tuple[str, ...], gold: str, other: str | None = None, safe: bool = True) -> Fact:
        entities = (land.id, other) if other else (land.id,)
        return Fact(
            relation, land.said, answers, "country", land.id, entities, (gold,), land.popularity, land.split,
            land.continent, open_safe=safe,
        )  # fmt: skip

    money = f"{land.id}:money"
    if land.capital and capital and land.capital[0] != land.name:
        yield fact("capital", land.capital, land.id, capital.id)
    if land.continent:
        names = (land.continent, "Australia") if land.code == "AU" else (land.continent,)
        yield fact("continent", names, land.id)
    if land.language:
        yield fact("language", land.language, land.id)
    if land.currency:
        yield fact("currency", land.currency, money)
        yield fact("currency_code", (land.currency_code,), money)
    if land.calling_code:
        yield fact("calling_code", (land.calling_code,), money)
    yield fact("internet_domain", (land.domain,), money, safe=land.domain.strip(".") not in WORDS)


def capital_facts(land: Country, capital: City) -> Iterator[Fact]:
    """Facts about a capital."""
    both = (land.id, capital.id)
    if capital.unique and land.code not in NAME_WITHIN_OTHER and land.capital[0] != land.name:
        yield Fact(
            "country", capital.name, land.names, "capital", capital.id, both, (capital.id,), capital.popularity,
            land.split, land.continent,
        )  # fmt: skip


def city_facts(city: City, home: Country | State) -> Iterator[Fact]:
    """Facts about a city, and through it about its country."""
    region = home.continent if isinstance(home, Country) else "United States"
    both = (city.id, home.id)

    def fact(relation: str, answers: tuple[str, ...], gold: tuple[str, ...], hops: int = 1) -> Fact:
        return Fact(
            relation, city.name, answers, "city", city.id, both, gold, city.popularity, city.split, region, hops
        )

    yield fact("population", (f"{city.population:,}",), (city.id,))
    yield fact("time_zone", (city.time_zone,), (city.id,))
    if isinstance(home, State):
        yield fact("state", home.names, (city.id,))
    elif not city.is_capital:
        if home.code not in NAME_WITHIN_OTHER:
            yield fact("country", home.names, (city.id,))
        if home.capital:
            yield fact("capital", home.capital, (city.id, home.id), 2)
        if home.continent:
            yield fact("continent", (home.continent,), (city.id, home.id), 2)
        if home.currency:
            yield fact("currency", home.currency, (city.id, f"{home.id}:money"), 2)
        if home.language:
            yield fact("language", home.language, (city.id, home.id), 2)


def state_facts(state: State) -> Iterator[Fact]:
    """Facts about a state of the United States."""
    safe = state.code.casefold() not in WORDS
    for relation, answers, ok in (("capital", state.capital, True), ("state_code", (state.code,), safe)):
        yield Fact(
            relation, state.name, answers, "state", state.id, (state.id,), (state.id,), state.popularity, state.split,
            "United States", open_safe=ok,
        )  # fmt: skip


def element_facts(element: Element) -> Iterator[Fact]:
    """Facts about a chemical element, by its name and by its symbol."""

    def fact(relation: str, subject: str, answers: tuple[str, ...], kind: str = "element", safe: bool = True) -> Fact:
        return Fact(
            relation, subject, answers, kind, element.id, (element.id,), (element.id,), element.popularity,
            element.split, str(element.period), open_safe=safe,
        )  # fmt: skip

    yield fact("symbol", element.name, (element.symbol,), safe=element.symbol.casefold() not in WORDS)
    yield fact("element", element.symbol, element.names, "symbol")
    yield fact("atomic_number", element.name, (str(element.number),))
    if element.family:
        yield fact("family", element.name, element.family)


def all_facts(lands: list[Country], parts: list[State], places: list[City], elements: list[Element]) -> Iterator[Fact]:
    homes: dict[str, Country | State] = {land.id: land for land in lands}
    homes.update((part.id, part) for part in parts)
    seats = {city.home: city for city in places if city.is_capital}
    for land in lands:
        yield from country_facts(land, seats.get(land.id))
        if land.id in seats:
            yield from capital_facts(land, seats[land.id])
    for part in parts:
        yield from state_facts(part)
    for city in places:
        if city.unique:
            yield from city_facts(city, homes[city.home])
    for element in elements:
        yield from element_facts(element)
