"""From a sentence that the model is not sure of to a search query: the words it is sure of."""

from __future__ import annotations

import re
from collections.abc import Sequence

_WORD = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]+|[^\W_]+(?:['’.-][^\W_]+)*")
_FUNCTION_WORDS = frozenset(
    "a about after all also an and answer any are as at be been before being both but by can could did do does during "
    "each first for from had has have he her him his how i if in into is it its last many may more most much not of on "
    "one only or other our out over same she should since so some such than that the their them then there these they "
    "this those through to two under until up was we were what when where which while who whom whose why will with "
    "would you your".split()
)


def content_words(text: str) -> list[str]:
    """Words that name something, in their order, each once (letter case does not count)."""
    found: dict[str, str] = {}
    for word in _WORD.findall(text):
        if word.lower() not in _FUNCTION_WORDS:
            found.setdefault(word.lower(), word)
    return list(found.values())


def confident_words(pieces: Sequence[tuple[str, float]], sentence: str, confidence: float) -> list[str]:
    """Content words of ``sentence`` all of whose tokens had a probability of at least ``confidence``.

    ``pieces`` are the generated tokens' texts and probabilities; ``sentence`` stands at their beginning.
    """
    text = "".join(piece for piece, _ in pieces)
    start = max(0, text.find(sentence))
    kept = []
    for found in _WORD.finditer(text, start, start + len(sentence)):
        if min(_probabilities(pieces, found.start(), found.end()), default=0.0) >= confidence:
            kept.append(found.group())
    return content_words(" ".join(kept))


def build_query(pieces: Sequence[tuple[str, float]], sentence: str, question: str, confidence: float) -> str:
    """The confident content words of the sentence, or else the question's content words, or else the question."""
    words = confident_words(pieces, sentence, confidence) or content_words(question)
    return " ".join(words) or question


def _probabilities(pieces: Sequence[tuple[str, float]], start: int, end: int) -> list[float]:
    """Of the tokens that overlap these characters."""
    found, position = [], 0
    for piece, probability in pieces:
        if position < end and position + len(piece) > start:
            found.append(probability)
        position += len(piece)
    return found
