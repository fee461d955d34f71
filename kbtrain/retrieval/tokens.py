"""Words for BM25: the same object cuts passages and questions, and it is saved with the index."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Container
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kbtrain.errors import UserError, at

# One-letter words count (chemical symbols, "Vitamin A"); every Chinese character is a word.
PATTERN = r"[\u3400-\u9fff\uf900-\ufaff]|[^\W\u3400-\u9fff\uf900-\ufaff]+"
# Words that ask or join. "as", "in", "no" are also symbols and names, and BM25 weighs common words down by itself.
STOP_WORDS = (
    "a an and are by did do does for from had has have how is it its many much of on or that the their there these "
    "this those to was were what when where which who whom whose why will with"
)


@dataclass(frozen=True)
class Tokens:
    """Lower-cased words without stop words, stemmed by PyStemmer's ``stemmer`` (None: not stemmed)."""

    stemmer: str | None = "english"
    stop_words: frozenset[str] = field(default_factory=lambda: frozenset(STOP_WORDS.split()))
    pattern: str = PATTERN

    def words(self, text: str) -> list[str]:
        """The words of a text, in order, repeats kept."""
        found = re.findall(self.pattern, text.lower())
        kept = [word for word in found if word not in self.stop_words]
        if self.stemmer is None:
            return kept
        return [str(word) for word in _stemmer(self.stemmer).stemWords(kept)]

    def known(self, text: str, vocabulary: Container[str]) -> list[str]:
        """The words that the vocabulary has: BM25 can only look for these."""
        return [word for word in self.words(text) if word in vocabulary]

    def save(self, path: Path) -> None:
        data = {**asdict(self), "stop_words": sorted(self.stop_words)}
        path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Tokens:
        """Raises :class:`UserError` if the file is missing or broken."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return Tokens(data["stemmer"], frozenset(data["stop_words"]), data["pattern"])
        except FileNotFoundError:
            raise UserError(f"{at(path)}: no such file; this folder holds no BM25 index") from None
        except (json.JSONDecodeError, KeyError, TypeError):
            raise UserError(f"{at(path)}: broken; build the index again") from None


@functools.cache
def _stemmer(name: str):  # type: ignore[no-untyped-def]  # PyStemmer has no types
    import Stemmer

    return Stemmer.Stemmer(name)
