"""TF-IDF with cosine similarity (scikit-learn), under the same promises as BM25: ties by passage id, no hit of 0."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.io.files import beside, put_in_place
from kbtrain.io.jsonl import read_value
from kbtrain.io.provenance import check_current
from kbtrain.records import Hit, Passage
from kbtrain.retrieval.base import BUILD
from kbtrain.retrieval.corpus import PassageFile, copy_passages
from kbtrain.retrieval.tokens import Tokens

_TOKENS, _WORDS = "tokens.json", "tfidf.json"
_ARRAYS = ("idf", "data", "indices", "indptr")
_AT_ONCE = 64  # queries whose similarities to all passages are in memory at a time


class TfIdf:
    """An index over passages: title and text are searched, ``score`` is the cosine in (0, 1]."""

    def __init__(self, vectorizer: Any, words_by_passages: Any, passages: PassageFile) -> None:
        self._vectorizer = vectorizer
        self._matrix = words_by_passages
        self._passages = passages

    @staticmethod
    def build(passages: Iterable[Passage], folder: Path, tokens: Tokens | None = None) -> TfIdf:
        """Index a stream of passages in ``folder`` and open it. Raises :class:`UserError`: no passages, an id twice."""
        build_tfidf(passages, folder, tokens or Tokens())
        return TfIdf.load(folder)

    @staticmethod
    def load(folder: Path) -> TfIdf:
        """Open an index; its matrix and passages stay on disk, memory-mapped. Raises :class:`UserError`."""
        import numpy as np
        from scipy.sparse import csr_matrix

        check_current(folder, command=BUILD)
        tokens, passages = Tokens.load(folder / _TOKENS), PassageFile(folder)
        try:
            words = read_value(folder / _WORDS)
            idf, *parts = (np.load(folder / f"{name}.tfidf.npy", mmap_mode="r") for name in _ARRAYS)
        except (UserError, FileNotFoundError, EOFError, ValueError) as error:
            raise UserError(f"{at(folder)}: no whole TF-IDF index ({error}); build it again") from None
        vectorizer = _vectorizer(tokens, {word: i for i, word in enumerate(words)})
        vectorizer.idf_ = np.asarray(idf)
        return TfIdf(vectorizer, csr_matrix(tuple(parts), shape=(len(words), len(passages)), copy=False), passages)

    def __len__(self) -> int:
        return len(self._passages)

    def search(self, queries: Sequence[str], k: int) -> list[tuple[Hit, ...]]:
        """At most ``k`` hits for each query, best first; equal scores by passage id."""
        if k < 1:
            raise ValueError(f"k = {k}: at least 1")
        results: list[tuple[Hit, ...]] = []
        for first in range(0, len(queries), _AT_ONCE):
            scores = (self._vectorizer.transform(queries[first : first + _AT_ONCE]) @ self._matrix).tocsr()
            for row in range(scores.shape[0]):
                part = slice(scores.indptr[row], scores.indptr[row + 1])
                results.append(self._hits(scores.indices[part], scores.data[part], k))
        return results

    def _hits(self, positions: Any, scores: Any, k: int) -> tuple[Hit, ...]:
        import numpy as np

        if len(scores) > k:  # all that can be among the first k, ties included
            best = scores >= np.partition(scores, len(scores) - k)[len(scores) - k]
            positions, scores = positions[best], scores[best]
        order = np.lexsort((self._passages.ranks[positions], -scores))[:k]
        return tuple(self._passages.hit(int(positions[i]), round(float(scores[i]), 6)) for i in order if scores[i] > 0)


def build_tfidf(passages: Iterable[Passage], folder: Path, tokens: Tokens) -> None:
    """Write an index into ``folder``, which is replaced as a whole when it is done; passages are read once.

    Texts are streamed, the matrix is in memory while it is made (about 1 KB a passage of 100 words).
    """
    import numpy as np

    partial = beside(folder, ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    vectorizer = _vectorizer(tokens, None)
    try:
        matrix = vectorizer.fit_transform(f"{p.title} {p.text}" for p in copy_passages(passages, partial))
    except ValueError as error:  # scikit-learn's "empty vocabulary"
        raise UserError(f"no words in any passage ({error})") from None
    columns = matrix.T.tocsr()
    arrays = (vectorizer.idf_, columns.data, columns.indices, columns.indptr)
    for name, values in zip(_ARRAYS, arrays, strict=True):
        np.save(partial / f"{name}.tfidf.npy", values)
    words = vectorizer.get_feature_names_out().tolist()
    (partial / _WORDS).write_text(json.dumps(words, ensure_ascii=False), encoding="utf-8")
    tokens.save(partial / _TOKENS)
    shutil.rmtree(folder, ignore_errors=True)
    put_in_place(partial, folder)


def _vectorizer(tokens: Tokens, vocabulary: dict[str, int] | None) -> Any:
    import numpy as np
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer=tokens.words, vocabulary=vocabulary, dtype=np.float32)
