"""BM25 over passages (package bm25s), with an answer that depends on the query and the corpus alone.

Ties are broken by passage id, passages that share no word with the query are not hits, and k may exceed the corpus. The
index is built from a stream, in bm25s's own file format: postings are sorted in pieces on disk and merged word range by
word range, so memory is bounded by the vocabulary, four bytes a passage and two buffers, for any size of the
corpus.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kbtrain.errors import UserError, at
from kbtrain.io.files import beside, put_in_place
from kbtrain.io.jsonl import read_json
from kbtrain.io.provenance import check_current
from kbtrain.records import Hit, Passage
from kbtrain.retrieval.base import BUILD
from kbtrain.retrieval.corpus import PassageFile, copy_passages
from kbtrain.retrieval.tokens import TokenIds, Tokens

if TYPE_CHECKING:
    import bm25s

Numbers = np.ndarray[Any, Any]

SPILL_WORDS = 2_000_000  # words gathered before they are sorted and written: about 80 MB
MERGE_POSTINGS = 4_000_000  # postings in one merge: about 120 MB
_PIECE = ("words", "ends", "passages", "frequencies")  # arrays of a piece of postings


def _bm25s() -> ModuleType:
    """The package, without JAX: importing bm25s where JAX is installed takes three quarters of a GPU's memory."""
    hidden = "bm25s" not in sys.modules and "jax" not in sys.modules
    if hidden:
        sys.modules["jax"] = None  # type: ignore[assignment]  # Python's own way of saying: not to be imported
    try:
        return importlib.import_module("bm25s")
    finally:
        if hidden:
            del sys.modules["jax"]


class Postings:
    """All postings of a corpus, in pieces under ``folder``. ``lengths``: words of each passage; ``df``: passages that
    contain each word.
    """

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
            ids = self.words.ids_of(text)
            self._pending.extend(ids)
            self.lengths.append(len(ids))
            if len(self._pending) >= self._spill_words:
                self._spill()
        self._spill()

    def _spill(self) -> None:
        """Sort what is pending by (word, passage), count repeats, and write it as one piece."""
        n = len(self.lengths) - self._first
        lengths = np.array(self.lengths[self._first :], dtype=np.int64)
        keys = np.array(self._pending, dtype=np.int64) * n + np.repeat(np.arange(n), lengths)
        keys, frequencies = np.unique(keys, return_counts=True)
        words, counts = np.unique(keys // max(n, 1), return_counts=True)
        passages = (keys % max(n, 1) + self._first).astype(np.int32)
        arrays: tuple[Numbers, ...] = (
            words.astype(np.int32),
            np.cumsum(counts),
            passages,
            frequencies.astype(np.int32),
        )
        for name, values in zip(_PIECE, arrays, strict=True):
            np.save(self._folder / f"{self._pieces}.{name}.npy", values)
        self._pieces += 1
        self._pending, self._first = array("i"), len(self.lengths)

    def _piece(self, number: int) -> list[Numbers]:
        return [np.load(self._folder / f"{number}.{name}.npy", mmap_mode="r") for name in _PIECE]

    def df(self) -> Numbers:
        """Number of passages that contain each word."""
        total = np.zeros(len(self.words.vocabulary), dtype=np.int64)
        for number in range(self._pieces):
            words, ends, *_ = self._piece(number)
            total[words] += np.diff(ends, prepend=0)
        return total

    def merged(self, df: Numbers, at_once: int = MERGE_POSTINGS) -> Iterator[tuple[slice, Numbers, Numbers]]:
        """All postings in the order of the words, a range of words at a time (at least one word): the range, passages
        (ascending for each word) and term frequencies.
        """
        ends = np.cumsum(df)
        first = 0
        while first < len(df):
            offset = ends[first] - df[first]
            last = max(first + 1, int(np.searchsorted(ends, offset + at_once, side="right")))
            yield slice(first, last), *self._merge(first, last, df[first:last])
            first = last

    def _merge(self, first: int, last: int, counts: Numbers) -> tuple[Numbers, Numbers]:
        """The pieces hold ascending passages, so each word's postings are laid down piece after piece."""
        cursor = np.cumsum(counts) - counts
        passages, frequencies = (np.empty(counts.sum(), dtype=np.int32) for _ in range(2))
        for number in range(self._pieces):
            words, ends, ids, times = self._piece(number)
            low, high = np.searchsorted(words, [first, last]).tolist()
            if low == high:
                continue
            begin = int(ends[low - 1]) if low else 0
            sizes = np.diff(ends[low:high], prepend=begin)
            local = words[low:high] - first
            start = np.cumsum(sizes) - sizes
            place = np.repeat(cursor[local] - start, sizes) + np.arange(sizes.sum())
            passages[place] = ids[begin : int(ends[high - 1])]
            frequencies[place] = times[begin : int(ends[high - 1])]
            cursor[local] += sizes
        return passages, frequencies


Backend = Literal["numba", "numpy"]
K1, B = 1.5, 0.75
NUMBA_FROM = 20_000  # passages; numba compiles for 5-10 s in every process, numpy answers small corpora at once
_TOKENS = "tokens.json"


class BM25:
    """An index over passages: title and text are searched, ``score`` is BM25 (Lucene's variant, k1 1.5, b 0.75)."""

    def __init__(self, index: bm25s.BM25, passages: PassageFile, tokens: Tokens) -> None:
        self._index = index
        self._passages = passages
        self._tokens = tokens
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @staticmethod
    def build(
        passages: Iterable[Passage],
        tokens: Tokens | None = None,
        backend: Backend | None = None,
        folder: Path | None = None,
    ) -> BM25:
        """Index a stream of passages in ``folder`` (None: a temporary one) and open it; see :meth:`load`.

        Raises :class:`UserError` for an empty corpus and for a passage id that occurs twice.
        """
        temporary = None
        if folder is None:
            temporary = tempfile.TemporaryDirectory(prefix="kbtrain-bm25-")
            folder = Path(temporary.name) / "index"
        build_index(passages, folder, tokens or Tokens())
        index = BM25.load(folder, backend)
        index._temporary = temporary  # removed together with the index
        return index

    @staticmethod
    def load(folder: Path, backend: Backend | None = None) -> BM25:
        """Open an index; postings and passages stay on disk, memory-mapped.

        ``backend`` None: numba from 20,000 passages on. Both give the same hits. Raises :class:`UserError`.
        """
        bm25s = _bm25s()
        check_current(folder, command=BUILD)
        tokens, passages = Tokens.load(folder / _TOKENS), PassageFile(folder)
        backend = backend or ("numba" if len(passages) >= NUMBA_FROM else "numpy")
        try:
            index = bm25s.BM25.load(folder, mmap=True, show_progress=False, backend=backend)
        except (FileNotFoundError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{at(folder)}: no whole BM25 index ({error}); build it again") from None
        return BM25(index, passages, tokens)

    def __len__(self) -> int:
        return len(self._passages)

    def warm_up(self) -> None:
        """Look for a word that the index has, so that numba has compiled before the first query."""
        word = next(iter(self._index.vocab_dict), None)
        if word is not None:
            self._index.retrieve([[word]], k=1, show_progress=False, backend_selection=self._index.backend)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """At most ``k`` hits for each query, best first; equal scores by passage id."""
        if k < 1:
            raise ValueError(f"k = {k}: at least 1")
        words = [self._tokens.known_words(query, self._index.vocab_dict) for query in queries]
        hits: dict[int, tuple[Hit, ...]] = {}
        pending = [i for i, terms in enumerate(words) if terms]
        reach = min(len(self), 2 * k + 8)
        while pending:
            rows, scores = self._index.retrieve(
                [words[i] for i in pending], k=reach, show_progress=False, backend_selection=self._index.backend
            )
            for i, positions, values in zip(pending, rows, scores, strict=True):
                # a tie that runs on past the last row may hide a passage with a smaller id
                if reach == len(self) or values[min(k, reach) - 1] > values[-1] or values[-1] <= 0:
                    hits[i] = self._hits(positions, values.tolist(), k)
            pending = [i for i in pending if i not in hits]
            reach = min(len(self), 4 * reach)
        return [hits.get(i, ()) for i in range(len(queries))]

    def _hits(self, positions: Any, scores: list[float], k: int) -> tuple[Hit, ...]:
        ranks = self._passages.ranks[positions].tolist()
        rows = zip(scores, ranks, positions.tolist(), strict=True)
        best = sorted((-score, rank, position) for score, rank, position in rows if score > 0)[:k]
        return tuple(self._passages.hit(position, round(-negative, 4)) for negative, _, position in best)


def document_frequencies(folder: Path) -> tuple[Tokens, list[str], Numbers]:
    """Tokenizer and words of an index, and the number of passages that contain each word.

    Raises :class:`UserError` without a whole index.
    """
    check_current(folder, command=BUILD)
    tokens = Tokens.load(folder / _TOKENS)
    try:
        vocabulary: dict[str, int] = read_json(folder / "vocab.index.json")
        counts = np.diff(np.load(folder / "indptr.csc.index.npy"))
        words = sorted(vocabulary, key=vocabulary.__getitem__)[: len(counts)]  # bm25s may add an empty word at the end
    except (UserError, EOFError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{at(folder)}: no whole BM25 index ({error}); build it again") from None
    return tokens, words, counts


def build_index(passages: Iterable[Passage], folder: Path, tokens: Tokens) -> None:
    """Write an index into ``folder``, which is replaced as a whole when it is done; passages are read once."""
    partial = beside(folder, ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="postings-", dir=partial) as pieces:
        postings = Postings(Path(pieces), TokenIds(tokens))
        postings.add(f"{p.title} {p.text}" for p in copy_passages(passages, partial))
        _write_scores(postings, partial)
    (partial / "vocab.index.json").write_text(json.dumps(postings.words.vocabulary, ensure_ascii=False), "utf-8")
    tokens.save(partial / _TOKENS)
    shutil.rmtree(folder, ignore_errors=True)
    put_in_place(partial, folder)


def _write_scores(postings: Postings, folder: Path) -> None:
    """The matrix of BM25 scores, one column a word (compressed sparse columns), written front to back."""
    df, lengths = postings.df(), np.frombuffer(postings.lengths, dtype=np.int32)
    n = len(lengths)
    idf = np.log(1 + (n - df + 0.5) / (df + 0.5))
    norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))
    np.save(folder / "indptr.csc.index.npy", np.concatenate([[0], np.cumsum(df)]))
    total = int(df.sum())
    with open(folder / "data.csc.index.npy", "wb") as data, open(folder / "indices.csc.index.npy", "wb") as indices:
        for file, kind in ((data, "<f4"), (indices, "<i4")):
            header = {"descr": kind, "fortran_order": False, "shape": (total,)}
            np.lib.format.write_array_header_1_0(file, header)
        for words, passages, frequencies in postings.merged(df):
            tf = frequencies / (frequencies + norm[passages])
            data.write((np.repeat(idf[words], df[words]) * tf).astype("<f4").tobytes())
            indices.write(passages.tobytes())
    settings = {"k1": K1, "b": B, "delta": 0.5, "method": "lucene", "idf_method": "lucene", "num_docs": n}
    params = {**settings, "dtype": "float32", "int_dtype": "int32", "backend": "numpy"}
    (folder / "params.index.json").write_text(json.dumps(params), "utf-8")
