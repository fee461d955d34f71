"""Words for BM25 and TF-IDF: the same object cuts passages and questions, and it is saved with the index."""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from collections.abc import Container, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from kbtrain.answers.chinese import CJK
from kbtrain.errors import UserError, at
from kbtrain.text_files import read_text

Chinese = Literal["bigrams", "characters", "jieba"]
# One-letter words count (chemical symbols, "Vitamin A"); a run of Chinese characters is cut further.
PATTERN = rf"[{CJK}]+|[^\W{CJK}]+"
# Words that ask or join. "as", "in", "no" are also symbols and names, and BM25 weighs common words down by itself.
STOP_WORDS = (
    "a an and are by did do does for from had has have how is it its many much of on or that the their there these "
    "this those to was were what when where which who whom whose why will with"
)


@dataclass(frozen=True)
class Tokens:
    """Lower-cased words (NFKC: full to half width) without stop words, stemmed by PyStemmer's ``stemmer`` (None: not).

    Chinese has no spaces: its runs become overlapping ``bigrams`` (a lone character stays one), single ``characters``,
    or the words of the package jieba.
    """

    stemmer: str | None = "english"
    stop_words: frozenset[str] = field(default_factory=lambda: frozenset(STOP_WORDS.split()))
    pattern: str = PATTERN
    chinese: Chinese = "bigrams"

    def surfaces(self, text: str) -> list[str]:
        """The words of a text before stop words are dropped and stems taken."""
        if text.isascii():
            return re.findall(self.pattern, text.lower())
        found = re.findall(self.pattern, unicodedata.normalize("NFKC", text).lower())
        return [piece for word in found for piece in self._pieces(word)]

    def words(self, text: str) -> list[str]:
        """The words of a text, in order, repeats kept."""
        return self.stems(word for word in self.surfaces(text) if word not in self.stop_words)

    def stems(self, words: Iterable[str]) -> list[str]:
        if self.stemmer is None:
            return list(words)
        return [str(word) for word in _stemmer(self.stemmer).stemWords(list(words))]

    def known(self, text: str, vocabulary: Container[str]) -> list[str]:
        """The words that the vocabulary has: an index can only look for these."""
        return [word for word in self.words(text) if word in vocabulary]

    def _pieces(self, word: str) -> Iterable[str]:
        if self.chinese == "characters" and _is_chinese(word):
            return word
        if len(word) == 1 or not _is_chinese(word):
            return (word,)
        if self.chinese == "jieba":
            return _jieba().lcut(word)  # type: ignore[no-any-return]
        return (word[i : i + 2] for i in range(len(word) - 1))

    def as_dict(self) -> dict[str, Any]:
        """JSON values that identify a tokenizer."""
        return {**asdict(self), "stop_words": sorted(self.stop_words)}

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(self.as_dict(), ensure_ascii=False), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Tokens:
        """Raises :class:`UserError` if the file is missing or broken."""
        if not path.exists():
            raise UserError(f"{at(path)}: no such file; this folder holds no whole index")
        try:
            data = json.loads(read_text(path))
            if data["chinese"] not in get_args(Chinese) or not isinstance(data["stemmer"], str | None):
                raise KeyError("chinese, stemmer")
            if not isinstance(data["pattern"], str) or not all(isinstance(word, str) for word in data["stop_words"]):
                raise TypeError("pattern, stop_words")
            re.compile(data["pattern"])
            if data["stemmer"] is not None:
                _stemmer(data["stemmer"])
            return Tokens(data["stemmer"], frozenset(data["stop_words"]), data["pattern"], data["chinese"])
        except (ValueError, KeyError, TypeError, RecursionError, re.error):
            raise UserError(f"{at(path)}: broken; build the index again") from None


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

    def of(self, text: str) -> list[int]:
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
        if word not in self.tokens.stop_words:
            (stem,) = self.tokens.stems([word])
            number = self.vocabulary.setdefault(stem, len(self.vocabulary))
        self._known[word] = number
        return number


def _is_chinese(word: str) -> bool:
    return "\u3400" <= word[0] <= "\u9fff" or "\uf900" <= word[0] <= "\ufaff"


@functools.cache
def _stemmer(name: str):  # type: ignore[no-untyped-def]  # PyStemmer has no types
    import Stemmer

    return Stemmer.Stemmer(name)


@functools.cache
def _jieba() -> Any:
    try:
        import jieba
    except ImportError:
        raise UserError('cutting Chinese by jieba needs that package: pip install "kbtrain[zh]"') from None
    jieba.setLogLevel(60)  # it writes about its dictionary otherwise
    return jieba
