"""BM25 over passages (package bm25s), with an answer that depends on the query and the corpus alone.

What bm25s leaves open is settled here: equal scores are ordered by passage id, passages that share no word with the
query are no hits, and k may exceed the corpus.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.records import Hit, Passage
from kbtrain.retrieval.tokens import Tokens

if TYPE_CHECKING:
    import bm25s

_PASSAGES = "passages.jsonl"
_TOKENS = "tokens.json"
NUMBA_FROM = 20_000  # passages; numba compiles for 5-10 s in every process, numpy answers small corpora at once


class BM25:
    """An index over passages: title and text are searched, ``score`` is BM25 (Lucene's variant, k1 1.5, b 0.75)."""

    def __init__(self, index: bm25s.BM25, passages: Sequence[Mapping[str, str]], tokens: Tokens) -> None:
        self._index = index
        self._passages = passages
        self._tokens = tokens

    @staticmethod
    def build(
        passages: Iterable[Passage], tokens: Tokens | None = None, backend: Literal["numba", "numpy"] | None = None
    ) -> BM25:
        """Index a corpus (held in memory); ``backend`` None: by its size. Both give the same hits.

        Raises :class:`UserError` for an empty corpus and for a passage id that occurs twice.
        """
        import bm25s

        tokens = tokens or Tokens()
        # sorted by id: positions then order equal scores
        rows = sorted(({"id": p.id, "title": p.title, "text": p.text} for p in passages), key=lambda row: row["id"])
        if not rows:
            raise UserError("no passages to search: the corpus is empty")
        for earlier, later in itertools.pairwise(rows):
            if earlier["id"] == later["id"]:
                raise UserError(f"two passages have the id '{later['id']}'")
        index = bm25s.BM25(backend=backend or ("numba" if len(rows) >= NUMBA_FROM else "numpy"))
        index.index([tokens.words(f"{row['title']} {row['text']}") for row in rows], show_progress=False)
        return BM25(index, rows, tokens)

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
                    found[i] = self._hits(positions.tolist(), values.tolist(), k)
            open_ = [i for i in open_ if i not in found]
            reach = min(len(self), 4 * reach)
        return [found.get(i, ()) for i in range(len(queries))]

    def _hits(self, positions: list[int], scores: list[float], k: int) -> tuple[Hit, ...]:
        best = sorted((-score, position) for position, score in zip(positions, scores, strict=True) if score > 0)[:k]
        return tuple(self._hit(position, -negative) for negative, position in best)

    def _hit(self, position: int, score: float) -> Hit:
        row = self._passages[position]
        return Hit(row["id"], row["title"], row["text"], round(score, 4))

    def save(self, folder: Path) -> None:
        """Write index, passages and tokenizer into a folder (replaced as a whole if it is there)."""
        import bm25s

        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        self._index.save(partial, show_progress=False)
        jsonl.write(partial / _PASSAGES, (Passage(**row) for row in self._passages))
        lines = bm25s.utils.corpus.find_newline_positions(partial / _PASSAGES, show_progress=False)
        bm25s.utils.corpus.save_mmindex(lines, path=partial / _PASSAGES)
        self._tokens.save(partial / _TOKENS)
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)

    @staticmethod
    def load(folder: Path) -> BM25:
        """Open a saved index; scores and passages are memory-mapped. Raises :class:`UserError`."""
        import bm25s

        tokens = Tokens.load(folder / _TOKENS)
        try:
            index = bm25s.BM25.load(folder, mmap=True, show_progress=False)
            passages: Any = bm25s.utils.corpus.JsonlCorpus(folder / _PASSAGES, show_progress=False, verbosity=0)
        except (FileNotFoundError, ValueError, KeyError) as error:
            raise UserError(f"{at(folder)}: no whole BM25 index ({error}); build it again") from None
        return BM25(index, passages, tokens)
