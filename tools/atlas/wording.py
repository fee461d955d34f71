"""Wordings of each relation, with their frequency. ``{x}`` is the subject; a wording is drawn per question."""

from __future__ import annotations

from kbtrain.records import Split

# (relation, kind of subject, hops) -> wordings
WORDINGS: dict[tuple[str, str, int], tuple[str, ...]] = {
    ("capital", "country", 1): (
        "What is the capital of {x}?", "Which city is the capital of {x}?", "Name the capital city of {x}.",
    ),
    ("capital", "state", 1): ("What is the capital of the US state of {x}?", "Which city is the capital of {x}?"),
    ("capital", "city", 2): ("What is the capital of the country where {x} is?",),
    ("country", "capital", 1): ("{x} is the capital of which country?", "Which country has the capital {x}?"),
    ("country", "city", 1): (
        "In which country is {x}?", "Which country is {x} in?", "{x} is a place in which country?",
    ),
    ("continent", "country", 1): (
        "On which continent is {x}?", "Which continent is {x} in?", "{x} is part of which continent?",
    ),
    ("continent", "city", 2): ("On which continent is {x}?", "Which continent is the city of {x} on?"),
    ("language", "country", 1): (
        "What is the official language of {x}?", "Which language is official in {x}?", "What is the language of {x}?",
    ),
    ("language", "city", 2): ("What is the official language of the country where {x} is?",),
    ("currency", "country", 1): (
        "What is the currency of {x}?", "Which currency is used in {x}?", "With which currency do you pay in {x}?",
    ),
    ("currency", "city", 2): ("Which currency is used in {x}?",),
    ("currency_code", "country", 1): (
        "What is the currency code of {x}?", "What is the three-letter code of the currency of {x}?",
    ),
    ("calling_code", "country", 1): ("What is the calling code of {x}?", "Which telephone calling code has {x}?"),
    ("internet_domain", "country", 1): (
        "What is the internet domain of {x}?", "What is the top-level internet domain of {x}?",
    ),
    ("population", "city", 1): ("What is the population of {x}?", "How many people live in {x}?"),
    ("time_zone", "city", 1): ("What is the time zone of {x}?", "Which time zone is {x} in?"),
    ("state", "city", 1): (
        "In which US state is {x}?", "Which US state is {x} in?", "{x} is a place in which US state?",
    ),
    ("state_code", "state", 1): (
        "What is the postal abbreviation of {x}?", "What is the two-letter abbreviation of {x}?",
    ),
    ("symbol", "element", 1): (
        "What is the chemical symbol of {x}?", "What is the symbol for {x}?", "Which symbol stands for {x}?",
    ),
    ("element", "symbol", 1): ("Which chemical element has the symbol {x}?", "{x} is the symbol of which element?"),
    ("atomic_number", "element", 1): (
        "What is the atomic number of {x}?", "How many protons does an atom of {x} have?",
    ),
    ("family", "element", 1): ("What kind of chemical element is {x}?", "To which group of elements does {x} belong?"),
}  # fmt: skip

# (relation, kind, hops) -> share of the facts asked openly, share asked as multiple choice (a fact may be both)
SHARES: dict[tuple[str, str, int], tuple[float, float]] = {
    ("capital", "country", 1): (1.0, 0.2),
    ("capital", "state", 1): (1.0, 0.25),
    ("capital", "city", 2): (0.09, 0.02),
    ("country", "capital", 1): (0.95, 0.15),
    ("country", "city", 1): (0.28, 0.04),
    ("continent", "country", 1): (1.0, 0.12),
    ("continent", "city", 2): (0.14, 0.02),
    ("language", "country", 1): (1.0, 0.2),
    ("language", "city", 2): (0.1, 0.02),
    ("currency", "country", 1): (0.75, 0.12),
    ("currency", "city", 2): (0.06, 0.02),
    ("currency_code", "country", 1): (0.25, 0.06),
    ("calling_code", "country", 1): (0.25, 0.06),
    ("internet_domain", "country", 1): (0.28, 0.06),
    ("population", "city", 1): (0.05, 0.015),
    ("time_zone", "city", 1): (0.05, 0.015),
    ("state", "city", 1): (0.6, 0.1),
    ("state_code", "state", 1): (1.0, 0.2),
    ("symbol", "element", 1): (1.0, 0.2),
    ("element", "symbol", 1): (0.9, 0.15),
    ("atomic_number", "element", 1): (0.6, 0.12),
    ("family", "element", 1): (0.9, 0.2),
}
# The same of the atlas of well-known things: no multiple choice, few numbers and codes
KNOWN_SHARES: dict[tuple[str, str, int], float] = {
    ("capital", "country", 1): 1.0,
    ("capital", "state", 1): 0.6,
    ("capital", "city", 2): 0.25,
    ("country", "capital", 1): 1.0,
    ("country", "city", 1): 0.9,
    ("continent", "country", 1): 1.0,
    ("continent", "city", 2): 0.7,
    ("language", "country", 1): 1.0,
    ("language", "city", 2): 0.8,
    ("state", "city", 1): 0.6,
    ("symbol", "element", 1): 1.0,
    ("family", "element", 1): 1.0,
}
OBSCURE = 0.15  # share of these for subjects of the less popular half
# comparisons: how many questions, shared out among the splits
COMPARISONS = {"most_people": 60, "largest_area": 40, "borders": 40}
SPLIT_SHARES: dict[Split, float] = {"train": 0.6, "dev": 0.12, "test": 0.28}


def wanted(relation: str, kind: str, hops: int, popularity: float) -> tuple[float, float]:
    """Probabilities of an open and of a multiple-choice question: higher for well-known subjects."""
    weight = 0.4 + 1.2 * popularity if kind == "city" else 1.0
    open_, choice = SHARES[relation, kind, hops]
    return open_ * weight, choice * weight


def wanted_known(relation: str, kind: str, hops: int, popularity: float) -> float:
    """Probability of an open question in the atlas of well-known things."""
    return KNOWN_SHARES.get((relation, kind, hops), 0.0) * (1.0 if popularity >= 0.5 else OBSCURE)
