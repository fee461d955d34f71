"""How each relation is asked, and how often. ``{x}`` is the subject; a wording is drawn per question."""

from __future__ import annotations

from kbtrain.records import Split

# (relation, kind, hops) -> wordings
WORDINGS: dict[tuple[str, str, int], tuple[str, ...]] = {
    ("capital", "country", 1): ("What is the capital of {x}?", "Which city is the capital of {x}?"),
    ("capital", "state", 1): ("What is the capital of the US state of {x}?", "Which city is the capital of {x}?"),
    ("capital", "city", 2): ("What is the capital of the country where {x} is?",),
    ("country", "capital", 1): ("{x} is the capital of which country?", "Which country has the capital {x}?"),
    ("country", "city", 1): ("In which country is {x}?", "Which country is {x} in?"),
    ("continent", "country", 1): ("On which continent is {x}?", "Which continent is {x} in?"),
    ("continent", "city", 2): ("On which continent is {x}?", "Which continent is the city of {x} on?"),
    ("language", "country", 1): ("What is the official language of {x}?", "Which language is official in {x}?"),
    ("language", "city", 2): ("What is the official language of the country where {x} is?",),
    ("currency", "country", 1): ("What is the currency of {x}?", "Which currency is used in {x}?"),
    ("currency", "city", 2): ("Which currency is used in {x}?", "With which currency do people pay in {x}?"),
    ("currency_code", "country", 1): ("What is the currency code of {x}?",),
    ("calling_code", "country", 1): ("What is the calling code of {x}?", "Which calling code does {x} have?"),
    ("internet_domain", "country", 1): ("What is the internet domain of {x}?",),
    ("population", "city", 1): ("What is the population of {x}?", "How many people live in {x}?"),
    ("population", "country", 2): ("What is the population of the capital of {x}?",),
    ("time_zone", "city", 1): ("What is the time zone of {x}?", "Which time zone is {x} in?"),
    ("time_zone", "country", 2): ("What is the time zone of the capital of {x}?",),
    ("state", "city", 1): ("In which US state is {x}?", "Which US state is {x} in?"),
    ("state_code", "state", 1): ("What is the postal abbreviation of {x}?",),
    ("symbol", "element", 1): ("What is the chemical symbol of {x}?", "What is the symbol for {x}?"),
    ("element", "symbol", 1): ("Which chemical element has the symbol {x}?", "What element does the symbol {x} mean?"),
    ("atomic_number", "element", 1): ("What is the atomic number of {x}?",),
    ("family", "element", 1): ("What kind of chemical element is {x}?", "To which group of elements does {x} belong?"),
}

# (relation, kind, hops) -> share of the facts asked openly, share asked as multiple choice (a fact may be both)
SHARES: dict[tuple[str, str, int], tuple[float, float]] = {
    ("capital", "country", 1): (0.8, 0.3),
    ("capital", "state", 1): (0.9, 0.5),
    ("capital", "city", 2): (0.09, 0.03),
    ("country", "capital", 1): (0.5, 0.3),
    ("country", "city", 1): (0.24, 0.07),
    ("continent", "country", 1): (0.75, 0.3),
    ("continent", "city", 2): (0.1, 0.03),
    ("language", "country", 1): (0.75, 0.35),
    ("language", "city", 2): (0.09, 0.03),
    ("currency", "country", 1): (0.6, 0.25),
    ("currency", "city", 2): (0.08, 0.03),
    ("currency_code", "country", 1): (0.35, 0.15),
    ("calling_code", "country", 1): (0.35, 0.15),
    ("internet_domain", "country", 1): (0.4, 0.2),
    ("population", "city", 1): (0.06, 0.02),
    ("population", "country", 2): (0.1, 0.0),
    ("time_zone", "city", 1): (0.06, 0.035),
    ("time_zone", "country", 2): (0.1, 0.0),
    ("state", "city", 1): (0.4, 0.2),
    ("state_code", "state", 1): (0.8, 0.3),
    ("symbol", "element", 1): (0.8, 0.35),
    ("element", "symbol", 1): (0.6, 0.25),
    ("atomic_number", "element", 1): (0.5, 0.2),
    ("family", "element", 1): (0.6, 0.4),
}
# comparisons: how many questions, shared out among the splits
COMPARISONS = {"most_people": 90, "largest_area": 60, "borders": 70}
SPLIT_SHARES: dict[Split, float] = {"train": 0.6, "dev": 0.12, "test": 0.28}
