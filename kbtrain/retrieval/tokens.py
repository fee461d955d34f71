"""Words for searches: the same object cuts passages and questions, and it is saved with the index."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import regex

from kbtrain.answers.writing import CJK, HANGUL, HIRAGANA, IGNORED, KATAKANA, SOUTHEAST_ASIAN, UNSPACED, has_unspaced
from kbtrain.errors import UserError, at
from kbtrain.io.jsonl import read_json

RULE = "letters-marks-units/2"  # noted with every index: other rules cut other words
_SPLITTING = "\u200b"  # zero-width space: the one ignored character that ends a word
_POINTS = r"\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0640\u064b-\u0652\u0670"  # of Hebrew and Arabic
_DROPPED = regex.compile(f"[{IGNORED}{_POINTS}]")
# One-letter words count (chemical symbols, "Vitamin A"); runs of scripts without spaces are cut further.
_RUNS = (CJK, HIRAGANA, KATAKANA, HANGUL, SOUTHEAST_ASIAN)
_WORD = regex.compile("|".join(f"[{run}]+" for run in _RUNS) + rf"|(?!\p{{M}})[^\W{CJK}{UNSPACED}]+")
_ASCII_WORD = re.compile(r"\w+")
# Words that ask or join. "as", "in", "no" are also symbols and names, and BM25 weighs common words down by itself.
STOP_WORDS = frozenset(
    "a an and are by did do does for from had has have how is it its many much of on or that the their there these "
    "this those to was were what when where which who whom whose why will with".split()
)


class Tokens:
    """Lower-cased words (NFKC: full to half width) without stop words, stemmed by PyStemmer's English stemmer.

    A word is a run of letters, digits and combining marks. Runs of Chinese, hiragana, katakana, Hangul, Thai, Lao,
    Khmer and Burmese become overlapping pairs. Vowel points of Arabic and Hebrew are dropped.
    """

    def surfaces(self, text: str) -> list[str]:
        """The words of a text before stop words are dropped and stems taken."""
        if text.isascii():
            return _ASCII_WORD.findall(text.lower())
        folded = unicodedata.normalize("NFKC", text.replace(_SPLITTING, " ")).lower()
        folded = folded.replace("i\u0307", "i")  # the small form of \u0130
        return [piece for word in _WORD.findall(_DROPPED.sub("", folded)) for piece in self._pieces(word)]

    def words(self, text: str) -> list[str]:
        """The words of a text, in order, repeats kept."""
        return [str(stem) for stem in _stemmer().stemWords([w for w in self.surfaces(text) if w not in STOP_WORDS])]

    def _pieces(self, word: str) -> Iterable[str]:
        if "\u3400" <= word[0] <= "\u9fff" or "\uf900" <= word[0] <= "\ufaff":  # Chinese
            return _bigrams(word)
        if not has_unspaced(word[0]):
            return (word,)
        return _bigrams(regex.findall(r"\X", word))

    def as_dict(self) -> dict[str, Any]:
        """JSON values that identify a tokenizer."""
        pairs = {"chinese": "bigrams", "southeast_asian": "bigrams"}  # noted since indexes could be cut by dictionaries
        return {**pairs, "stemmer": "english", "stop_words": sorted(STOP_WORDS), "rule": RULE}

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_dict(), ensure_ascii=False), encoding="utf-8")

    @staticmethod
    def load(path: Path, remedy: str = "build the index again by data_gen/retrieve.py, with its options") -> Tokens:
        """Raises :class:`UserError` if the file is missing, broken, or of another :data:`RULE`; ``remedy`` ends it."""
        if not path.exists():
            raise UserError(f"{at(path)}: no such file; this folder has no complete index")
        data: dict[str, Any] = {}
        with contextlib.suppress(UserError):
            data = read_json(path)
        if data and data.get("rule") != RULE:
            raise UserError(f"{at(path)}: words were split by another rule; {remedy}")
        if data != Tokens().as_dict():
            raise UserError(f"{at(path)}: broken; {remedy}")
        return Tokens()


class TokenIds:
    """Words as numbers, given in the order of first appearance. ``vocabulary`` maps stems to them.

    Each spelling is looked at once: stop words and stems are remembered, up to :data:`REMEMBERED` spellings.
    """

    REMEMBERED = 1_000_000
    STOP = -1

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.vocabulary: dict[str, int] = {}
        self._known: dict[str, int] = {}

    def ids_of(self, text: str) -> list[int]:
        """The words of a text as numbers, repeats kept."""
        surfaces = self.tokens.surfaces(text)
        ids = [self._known.get(word) for word in surfaces]
        if None in ids:
            ids = [self._learn(word) if i is None else i for word, i in zip(surfaces, ids, strict=True)]
        return [i for i in ids if i is not None and i >= 0]

    def _learn(self, word: str) -> int:
        if len(self._known) >= self.REMEMBERED:
            self._known.clear()
        number = self.STOP
        if word not in STOP_WORDS:
            number = self.vocabulary.setdefault(str(_stemmer().stemWord(word)), len(self.vocabulary))
        self._known[word] = number
        return number


def _bigrams(units: Sequence[str]) -> Iterable[str]:
    """Overlapping pairs of units; a lone unit stays one."""
    return ("".join(units[i : i + 2]) for i in range(max(1, len(units) - 1)))


@functools.cache
def _stemmer() -> Any:
    import Stemmer

    return Stemmer.Stemmer("english")
