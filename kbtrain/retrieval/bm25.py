"""BM25 over passages (package bm25s), with an answer that depends on the query and the corpus alone.

Ties are broken by passage id, passages that share no word with the query are not hits, and k may exceed the corpus. The
index is built from a stream of passages, in bm25s's own file format; memory holds some 20 bytes a word of the corpus.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tempfile
from array import array
from collections.abc import Iterable, Sequence
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
    from scipy.sparse import csc_array

Numbers = np.ndarray[Any, Any]

Backend = Literal["numba", "numpy"]
K1, B = 1.5, 0.75
NUMBA_FROM = 20_000  # passages; numba compiles for 5-10 s in every process, numpy answers small corpora at once
_TOKENS = "tokens.json"


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


class BM25:
    """An index over passages: title and text are searched, ``score`` is BM25 (Lucene's variant, k1 1.5, b 0.75)."""

    def __init__(self, index: bm25s.BM25, passages: PassageFile, tokens: Tokens) -> None:
        self._index = index
        self._passages = passages
        self._tokens = tokens
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    @staticmethod
    def build(passages: Iterable[Passage], backend: Backend | None = None, corpus: Path | None = None) -> BM25:
        """Index a stream of passages in a temporary folder and open it; see :meth:`load`.

        Raises :class:`UserError`, which names the file ``corpus``, for an empty one and for an id that occurs twice.
        """
        temporary = tempfile.TemporaryDirectory(prefix="kbtrain-bm25-")
        place = Path(temporary.name) / "index"
        build_index(passages, place, corpus)
        index = BM25.load(place, backend)
        index._temporary = temporary  # removed together with the index
        return index

    @staticmethod
    def load(folder: Path, backend: Backend | None = None) -> BM25:
        """Open an index; postings and passages stay on disk, memory-mapped. Raises :class:`UserError`.

        ``backend`` None: numba from 20,000 passages on. Both give the same hits.
        """
        bm25s = _bm25s()
        check_current(folder, command=BUILD)
        tokens, passages = Tokens.load(folder / _TOKENS), PassageFile(folder)
        backend = backend or ("numba" if len(passages) >= NUMBA_FROM else "numpy")
        try:
            index = bm25s.BM25.load(folder, mmap=True, show_progress=False, backend=backend)
        except (FileNotFoundError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{at(folder)}: no complete BM25 index ({error}); build it again") from None
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
        vocabulary = self._index.vocab_dict
        words = [[word for word in self._tokens.words(query) if word in vocabulary] for query in queries]
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
    """Tokenizer and words of an index, and the number of passages that contain each word. Raises UserError."""
    check_current(folder, command=BUILD)
    tokens = Tokens.load(folder / _TOKENS)
    try:
        vocabulary: dict[str, int] = read_json(folder / "vocab.index.json")
        counts = np.diff(np.load(folder / "indptr.csc.index.npy"))
        words = sorted(vocabulary, key=vocabulary.__getitem__)[: len(counts)]  # bm25s may add an empty word at the end
    except (UserError, EOFError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{at(folder)}: no complete BM25 index ({error}); build it again") from None
    return tokens, words, counts


def build_index(passages: Iterable[Passage], folder: Path, corpus: Path | None = None) -> None:
    """Write an index into ``folder``, which is replaced as a whole when it is done; passages are read once. Raises as
    :func:`~kbtrain.retrieval.corpus.copy_passages`."""
    partial = beside(folder, ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tokens = Tokens()
    words = TokenIds(tokens)
    ids, lengths = array("i"), array("i")
    for passage in copy_passages(passages, partial, corpus):
        of_passage = words.ids_of(f"{passage.title} {passage.text}")
        ids.extend(of_passage)
        lengths.append(len(of_passage))
    _write_scores(_frequencies(ids, lengths, len(words.vocabulary)), np.array(lengths), partial)
    (partial / "vocab.index.json").write_text(json.dumps(words.vocabulary, ensure_ascii=False), "utf-8")
    tokens.save(partial / _TOKENS)
    shutil.rmtree(folder, ignore_errors=True)
    put_in_place(partial, folder)


def _frequencies(ids: array[int], lengths: array[int], n_words: int) -> csc_array:
    """How often each word (column) is in each passage (row)."""
    from scipy.sparse import coo_array

    rows = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    ones = np.ones(len(ids), dtype=np.int32)
    return coo_array((ones, (rows, np.frombuffer(ids, dtype=np.int32))), (len(lengths), n_words)).tocsc()


def _write_scores(tf: csc_array, lengths: Numbers, folder: Path) -> None:
    """The matrix of BM25 scores, one column a word (compressed sparse columns)."""
    n, df = len(lengths), np.diff(tf.indptr)
    idf = np.log(1 + (n - df + 0.5) / (df + 0.5))
    norm = K1 * (1 - B + B * lengths / max(lengths.mean(), 1e-9))
    scores = np.repeat(idf, df) * (tf.data / (tf.data + norm[tf.indices]))
    arrays = {"indptr": tf.indptr.astype(np.int64), "indices": tf.indices.astype("<i4"), "data": scores.astype("<f4")}
    for name, values in arrays.items():
        np.save(folder / f"{name}.csc.index.npy", values)
    settings = {"k1": K1, "b": B, "delta": 0.5, "method": "lucene", "idf_method": "lucene", "num_docs": n}
    params = {**settings, "dtype": "float32", "int_dtype": "int32", "backend": "numpy"}
    (folder / "params.index.json").write_text(json.dumps(params), "utf-8")
