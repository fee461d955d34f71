"""Additions and corrections to GeoNames: names in sentences, aliases, exclusions, capitals of the US states.

Common knowledge, checked by hand, keyed by ISO 3166 codes.
"""

from __future__ import annotations

CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
TERRITORIES = set(
    "AI AN AQ AS AW AX BL BM BQ BV CC CK CS CW CX EH FK FO GF GG GI GL GP GS GU HK HM IM IO JE KY MF MO MP MQ MS NC NF "
    "NU PF PM PN PR PS RE SH SJ SX TC TF TK UM VA VG VI WF XK YT".split()
)
WITH_ARTICLE = set("AE BS CD CF CG DO GB GM KM MH MV NL PH SB SC US".split())
COUNTRY_NAMES = {"NL": "Netherlands", "TL": "Timor-Leste", "CV": "Cape Verde", "CI": "Ivory Coast"}
COUNTRY_ALIASES = {
    "AE": ("UAE",),
    "BA": ("Bosnia",),
    "CD": ("DR Congo", "DRC", "Congo-Kinshasa"),
    "CI": ("Côte d'Ivoire", "Cote d'Ivoire"),
    "CV": ("Cabo Verde",),
    "CZ": ("Czech Republic",),
    "GB": ("UK", "Great Britain", "England", "Scotland", "Wales", "Northern Ireland", "Britain"),
    "KR": ("Republic of Korea",),
    "KP": ("DPRK",),
    "MK": ("Macedonia",),
    "MM": ("Burma",),
    "NL": ("Holland",),
    "ST": ("São Tomé and Príncipe",),
    "SZ": ("Swaziland",),
    "TL": ("East Timor",),
    "TR": ("Türkiye",),
    "US": ("United States of America", "USA", "U.S."),
}
# a name that stands inside another country's name would be found in a wrong answer
NAME_WITHIN_OTHER = {"CG", "GN", "SD"}
CAPITALS = {"KZ": "Astana", "US": "Washington, D.C.", "MM": "Naypyidaw", "AE": "Abu Dhabi"}
CAPITAL_ALIASES = {
    "KZ": ("Nur-Sultan",),
    "US": ("Washington", "Washington DC"),
    "UA": ("Kiev",),
    "MN": ("Ulan Bator",),
    "MM": ("Nay Pyi Taw",),
    "IN": ("Delhi",),
    "MX": ("Ciudad de Mexico",),
    "MV": ("Malé",),
}
# more than one seat, disputed, moving, or named differently by different sources
NO_CAPITAL = set("BJ BO GQ IL KI LK MY NR PW SZ ZA".split())
MORE_BORDERS = {"BW": ("ZM",), "ZM": ("BW",)}  # 150 m across the Zambezi
TWO_CONTINENTS = set("AM AZ CY EG GE KZ RU TR".split())
NO_CURRENCY = {"BG", "ZW"}  # changed or changing
# answers that are also everyday words (or begin sentences) cannot be looked for in free text
WORDS = set(
    (
        "a ad ae ai al am an as at ba be bi by ca co de do eh em es et ex fa go ha he hi ho i id if in is it "
        "la lo ma me mi mo mr ms mu my na ne no od of oh ok on or os ox pa pi re se si so st ta th ti to uh "
        "um up us we ye yo w c k"
    ).split()
)
CITY_NAMES = {
    "Köln": "Cologne",
    "Sevilla": "Seville",
    "Québec": "Quebec City",
    "Xi’an": "Xi'an",
    "Hannover": "Hanover",
}
NOT_CITIES = {"Puxi", "Pudong", "New Territories", "Bao'an", "New South Memphis", "Manhattan", "South Boston"}

STATE_CAPITALS = {
    "AL": "Montgomery",
    "AK": "Juneau",
    "AZ": "Phoenix",
    "AR": "Little Rock",
    "CA": "Sacramento",
    "CO": "Denver",
    "CT": "Hartford",
    "DE": "Dover",
    "FL": "Tallahassee",
    "GA": "Atlanta",
    "HI": "Honolulu",
    "ID": "Boise",
    "IL": "Springfield",
    "IN": "Indianapolis",
    "IA": "Des Moines",
    "KS": "Topeka",
    "KY": "Frankfort",
    "LA": "Baton Rouge",
    "ME": "Augusta",
    "MD": "Annapolis",
    "MA": "Boston",
    "MI": "Lansing",
    "MN": "Saint Paul|St. Paul",
    "MS": "Jackson",
    "MO": "Jefferson City",
    "MT": "Helena",
    "NE": "Lincoln",
    "NV": "Carson City",
    "NH": "Concord",
    "NJ": "Trenton",
    "NM": "Santa Fe",
    "NY": "Albany",
    "NC": "Raleigh",
    "ND": "Bismarck",
    "OH": "Columbus",
    "OK": "Oklahoma City",
    "OR": "Salem",
    "PA": "Harrisburg",
    "RI": "Providence",
    "SC": "Columbia",
    "SD": "Pierre",
    "TN": "Nashville",
    "TX": "Austin",
    "UT": "Salt Lake City",
    "VT": "Montpelier",
    "VA": "Richmond",
    "WA": "Olympia",
    "WV": "Charleston",
    "WI": "Madison",
    "WY": "Cheyenne",
}
