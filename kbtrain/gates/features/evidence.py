"""Features of what a search found: the retriever's scores, and the words that question and passages share."""

from __future__ import annotations

import math

from kbtrain.gates.features.frequencies import Frequencies
from kbtrain.gates.features.question import names
from kbtrain.records import GateExample


def evidence_features(example: GateExample, frequencies: Frequencies, cased: bool = True) -> dict[str, float]:
    """Features by name; all 0 where the search found nothing.

    ``gap``: between the two best scores, as a share of the best (1: only one passage). ``overlap``: share of the
    question's words that stand in the best passage, or in any. ``cased`` as in
    :func:`~kbtrain.gates.features.question.names`.
    """
    hits, cut = example.hits, frequencies.tokens.words
    question_words = set(cut(example.question))
    named = {word for name in names(example.question, cased) for word in cut(name)}
    texts = [set(cut(f"{hit.title} {hit.text}")) for hit in hits]
    title = set(cut(hits[0].title)) if hits else set()
    best, second = (hits[i].score if len(hits) > i else 0.0 for i in (0, 1))
    return {
        "hits": float(len(hits)),
        "best_score": best,
        "gap": (best - second) / best if best > 0 else 0.0,
        "overlap_best": _share(question_words, texts[0] if texts else set()),
        "overlap_any": _share(question_words, set().union(*texts)),
        "named_in_title": _share(named, title),
        "title_in_question": _share(title, question_words),
        "passage_words": math.log1p(len(texts[0])) if texts else 0.0,
    }


def _share(words: set[str], among: set[str]) -> float:
    return len(words & among) / len(words) if words else 0.0
