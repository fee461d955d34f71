"""Document frequencies of a corpus's words, small enough to lie in a gate's folder: six bytes a word.

A word is kept as a 32-bit hash, its frequency as a logarithm in 16 bits (to 1/1000). A word that the corpus does not
have is taken for one that it has with probability (words kept) / 2^32.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from kbtrain.errors import UserError, at
from kbtrain.retrieval.tokens import Tokens

WORDS, TOKENS = "words.safetensors", "tokens.json"


@dataclass(frozen=True)
class Frequencies:
    """``hashes`` ascending; ``logs``: log(1 + number of passages with the word); ``tokens`` cuts and stems words."""

    tokens: Tokens
    hashes: NDArray[np.uint32]
    logs: NDArray[np.float16]

    @classmethod
    def none(cls) -> Frequencies:
        """Of no corpus: each word stands in no passage."""
        return cls(Tokens(), np.zeros(1, dtype=np.uint32), np.zeros(1, dtype=np.float16))

    @classmethod
    def of_index(cls, index: Path, least: int = 1) -> Frequencies:
        """From a BM25 index's folder; words of fewer than ``least`` passages are skipped.

        Raises :class:`UserError` for a folder without a whole index.
        """
        from kbtrain.retrieval.bm25 import document_frequencies

        tokens, words, counts = document_frequencies(index)
        frequent = np.flatnonzero(counts >= least)
        if not len(frequent):
            raise UserError(f"{at(index)}: no word stands in {least} passages or more; lower the key 'least_passages'")
        logs = np.log1p(counts[frequent]).astype(np.float16)
        hashes, first = np.unique(np.array([word_hash(words[i]) for i in frequent], dtype=np.uint32), return_index=True)
        return cls(tokens, hashes, logs[first])

    def log_counts(self, words: Sequence[str]) -> list[float]:
        """log(1 + passages) of each stemmed word; 0 for one that is not there."""
        wanted_hashes = np.array([word_hash(word) for word in words], dtype=np.uint32)
        places = np.minimum(np.searchsorted(self.hashes, wanted_hashes), len(self.hashes) - 1)
        return [
            float(x) for x in np.where(self.hashes[places] == wanted_hashes, self.logs[places].astype(np.float64), 0.0)
        ]

    def save(self, folder: Path) -> None:
        """Write two files."""
        save_file({"hashes": self.hashes, "logs": self.logs}, folder / WORDS)
        self.tokens.save(folder / TOKENS)

    @classmethod
    def load(cls, folder: Path) -> Frequencies:
        """Raises :class:`UserError` for a folder without them."""
        path = folder / WORDS
        if not path.exists():
            raise UserError(f"{at(path)}: no such file; copy the whole folder")
        try:
            tensors = load_file(path)
            hashes, logs = tensors["hashes"], tensors["logs"]
        except (SafetensorError, KeyError, ValueError) as error:
            raise UserError(f"{at(path)}: broken ({error}); train the gate again") from None
        whole = hashes.ndim == 1 and hashes.shape == logs.shape and len(hashes) and len(tensors) == 2
        if not whole or hashes.dtype.kind != "u" or logs.dtype.kind != "f" or not np.isfinite(logs).all():
            raise UserError(f"{at(path)}: broken ({hashes.shape} words, {logs.shape} counts); train the gate again")
        if not (hashes[1:] > hashes[:-1]).all():  # they are searched by halves
            raise UserError(f"{at(path)}: broken (words are out of order); train the gate again")
        return cls(Tokens.load(folder / TOKENS, "train the gate again"), hashes, logs)


def word_hash(word: str) -> int:
    """32 bits of a word."""
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")
