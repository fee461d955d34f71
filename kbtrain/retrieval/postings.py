"""An inverted index built from a stream: postings are sorted in pieces on disk and merged word range by word range.

Memory is bounded by the vocabulary, four bytes a passage and two buffers, whatever the size of the corpus.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.retrieval.tokens import TokenIds

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, Any]

SPILL_WORDS = 2_000_000  # words gathered before they are sorted and written: about 80 MB
MERGE_POSTINGS = 4_000_000  # postings merged at once: about 120 MB


@dataclass(frozen=True)
class Lists:
    """The postings of the words ``first`` to ``first + len(counts) - 1``: passages (ascending) and term frequencies."""

    first: int
    counts: Numbers
    passages: Numbers
    frequencies: Numbers


class Postings:
    """All postings of a corpus, in pieces under ``folder``. ``lengths``: words of each passage; ``df``: of each word
    the number of passages it stands in."""

    def __init__(self, folder: Path, words: TokenIds, spill_words: int = SPILL_WORDS) -> None:
        self.words = words
        self.lengths = array("i")
        self._folder = folder
        self._spill_words = spill_words
        self._pieces = 0
        self._pending, self._first = array("i"), 0

    def add(self, texts: Iterable[str]) -> None:
        """Read the whole corpus."""
        for text in texts:
            ids = self.words.of(text)
            self._pending.extend(ids)
            self.lengths.append(len(ids))
            if len(self._pending) >= self._spill_words:
                self._spill()
        self._spill()

    def _spill(self) -> None:
        """Sort what is pending by (word, passage), count repeats, and write it as one piece."""
        import numpy as np

        n = len(self.lengths) - self._first
        lengths = np.array(self.lengths[self._first :], dtype=np.int64)
        keys = np.array(self._pending, dtype=np.int64) * n + np.repeat(np.arange(n), lengths)
        keys, frequencies = np.unique(keys, return_counts=True)
        words, counts = np.unique(keys // max(n, 1), return_counts=True)
        self._save("words", words.astype(np.int32))
        self._save("ends", np.cumsum(counts))
        self._save("passages", (keys % max(n, 1) + self._first).astype(np.int32))
        self._save("frequencies", frequencies.astype(np.int32))
        self._pieces += 1
        self._pending, self._first = array("i"), len(self.lengths)

    def _save(self, name: str, values: Numbers) -> None:
        import numpy as np

        np.save(self._folder / f"{self._pieces}.{name}.npy", values)

    def _piece(self, number: int) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        import numpy as np

        names = ("words", "ends", "passages", "frequencies")
        words, ends, passages, frequencies = (
            np.load(self._folder / f"{number}.{name}.npy", mmap_mode="r") for name in names
        )
        return words, ends, passages, frequencies

    def df(self) -> Numbers:
        """Passages that each word stands in."""
        import numpy as np

        total = np.zeros(len(self.words.vocabulary), dtype=np.int64)
        for number in range(self._pieces):
            words, ends, *_ = self._piece(number)
            total[words] += np.diff(ends, prepend=0)
        return total

    def merged(self, df: Numbers, at_once: int = MERGE_POSTINGS) -> Iterator[Lists]:
        """All lists in the order of the words, a range of words at a time (at least one word)."""
        import numpy as np

        ends = np.cumsum(df)
        first = 0
        while first < len(df):
            done = ends[first] - df[first]
            last = max(first + 1, int(np.searchsorted(ends, done + at_once, side="right")))
            yield self._merge(first, last, df[first:last])
            first = last

    def _merge(self, first: int, last: int, counts: Numbers) -> Lists:
        """The pieces hold ascending passages, so each word's postings are laid down piece after piece."""
        import numpy as np

        cursor = np.cumsum(counts) - counts
        passages, frequencies = (np.empty(counts.sum(), dtype=np.int32) for _ in range(2))
        for number in range(self._pieces):
            words, ends, found, times = self._piece(number)
            low, high = np.searchsorted(words, [first, last]).tolist()
            if low == high:
                continue
            begin = int(ends[low - 1]) if low else 0
            here = np.diff(ends[low:high], prepend=begin)
            local = words[low:high] - first
            start = np.cumsum(here) - here
            place = np.repeat(cursor[local] - start, here) + np.arange(here.sum())
            passages[place] = found[begin : int(ends[high - 1])]
            frequencies[place] = times[begin : int(ends[high - 1])]
            cursor[local] += here
        return Lists(first, counts, passages, frequencies)
