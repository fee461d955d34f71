"""BM25 over passages (package bm25s), with an answer that depends on the query and the corpus alone.

What bm25s leaves open is settled here: equal scores are ordered by passage id, passages that share no word with the
query are no hits, and k may exceed the corpus. The index is built from a stream, in bm25s's own file format.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kbtrain.errors import UserError, at
from kbtrain.records import Hit, Passage
from kbtrain.retrieval.passage_file import PassageFile, copy_passages
from kbtrain.retrieval.postings import Postings
from kbtrain.retrieval.tokens import TokenIds, Tokens

if TYPE_CHECKING:
    import bm25s

Backend = Literal["numba", "numpy"]
K1, B = 1.5, 0.75
NUMBA_FROM = 20_000  # passages; numba compiles for 5-10 s in every process, numpy answers small corpora at once
_TOKENS = "tokens.json"


class BM25:
    """An index over passages: title and text are searched, ``score`` is BM25 (Lucene's variant, k1 1.5, b 0.75)."""

    def __init__(self, index: bm25s.BM25, passages: PassageFile, tokens: Tokens, folder: Path) -> None:
        self._index = index
        self._passages = passages
        self._tokens = tokens
        self._folder = folder
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
        made = BM25.load(folder, backend)
        made._temporary = temporary  # removed together with the index
        return made

    @staticmethod
    def load(folder: Path, backend: Backend | None = None) -> BM25:
        """Open an index; postings and passages stay on disk, memory-mapped.

        ``backend`` None: numba from 20,000 passages on. Both give the same hits. Raises :class:`UserError`.
        """
        import bm25s

        tokens, passages = Tokens.load(folder / _TOKENS), PassageFile(folder)
        backend = backend or ("numba" if len(passages) >= NUMBA_FROM else "numpy")
        try:
            index = bm25s.BM25.load(folder, mmap=True, show_progress=False, backend=backend)
        except (FileNotFoundError, ValueError, KeyError) as error:
            raise UserError(f"{at(folder)}: no whole BM25 index ({error}); build it again") from None
        return BM25(index, passages, tokens, folder)

    def save(self, folder: Path) -> None:
        """Copy the index into another folder (replaced as a whole if it is there)."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder, folder)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """At most ``k`` hits for each query, best first; equal scores by passage id."""
        if k < 1:
            raise ValueError(f"k = {k}: at least 1")
        words = [self._tokens.known(query, self._index.vocab_dict) for query in queries]
        found: dict[int, tuple[Hit, ...]] = {}
        open_ = [i for i, known in enumerate(words) if known]
        reach = min(len(self), 2 * k + 8)
        while open_:
            rows, scores = self._index.retrieve(
                [words[i] for i in open_], k=reach, show_progress=False, backend_selection=self._index.backend
            )
            for i, positions, values in zip(open_, rows, scores, strict=True):
                # a tie that runs on past the last row may hide a passage with a smaller id
                if reach == len(self) or values[min(k, reach) - 1] > values[-1] or values[-1] <= 0:
                    found[i] = self._hits(positions, values.tolist(), k)
            open_ = [i for i in open_ if i not in found]
            reach = min(len(self), 4 * reach)
        return [found.get(i, ()) for i in range(len(queries))]

    def _hits(self, positions: Any, scores: list[float], k: int) -> tuple[Hit, ...]:
        ranks = self._passages.ranks[positions].tolist()
        rows = zip(scores, ranks, positions.tolist(), strict=True)
        best = sorted((-score, rank, position) for score, rank, position in rows if score > 0)[:k]
        return tuple(self._hit(position, -negative) for negative, _, position in best)

    def _hit(self, position: int, score: float) -> Hit:
        passage = self._passages[position]
        return Hit(passage.id, passage.title, passage.text, round(score, 4))


def build_index(passages: Iterable[Passage], folder: Path, tokens: Tokens) -> None:
    """Write an index into ``folder``, which is replaced as a whole when it is done; passages are read once."""
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="postings-", dir=partial) as pieces:
        postings = Postings(Path(pieces), TokenIds(tokens))
        postings.add(f"{p.title} {p.text}" for p in copy_passages(passages, partial))
        _write_scores(postings, partial)
    (partial / "vocab.index.json").write_text(json.dumps(postings.words.vocabulary, ensure_ascii=False), "utf-8")
    tokens.save(partial / _TOKENS)
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)


def _write_scores(postings: Postings, folder: Path) -> None:
    """The matrix of BM25 scores, one column a word (compressed sparse columns), written front to back."""
    import numpy as np

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
        for lists in postings.merged(df):
            words = slice(lists.first, lists.first + len(lists.counts))
            tf = lists.frequencies / (lists.frequencies + norm[lists.passages])
            data.write((np.repeat(idf[words], lists.counts) * tf).astype("<f4").tobytes())
            indices.write(lists.passages.tobytes())
    settings = {"k1": K1, "b": B, "delta": 0.5, "method": "lucene", "idf_method": "lucene", "num_docs": n}
    params = {**settings, "dtype": "float32", "int_dtype": "int32", "backend": "numpy"}
    (folder / "params.index.json").write_text(json.dumps(params), "utf-8")
