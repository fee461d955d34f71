"""Features of a question that are known before any model is called: its form, and how often its words are written of;
and, after a search, the retriever's scores and the words that question and passages share.

After "LLM-Independent Adaptive RAG: Let the Question Speak for Itself" (arXiv 2505.04253), which takes popularity from
page views; here it is the number of the corpus's own passages, so that nothing outside is asked. Six bytes of a word
lie in a gate's folder: a hash of 32 bits, and the logarithm of its frequency in 16 (to 1/1000). A word that the corpus
does not have is taken for one that it has with probability (words kept) / 2^32.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from kbtrain.answers.writing import CJK
from kbtrain.errors import UserError, at
from kbtrain.gates.features.additive import BUCKETS, GRAM
from kbtrain.records import GateExample
from kbtrain.retrieval.tokens import Tokens

# The kind of a question is that of the first of these found in it; "yes_no" only at its beginning.
KINDS: Mapping[str, re.Pattern[str]] = {
    kind: re.compile(pattern, re.IGNORECASE)
    for kind, pattern in {
        "how_many": r"\bhow (?:many|much|long|old|far|tall|high|large|big|often)\b|多少|几",
        "who": r"\bwho(?:m|se)?\b|谁",
        "when": r"\bwhen\b|\b(?:what|which) (?:year|date|day|month)\b|何时|什么时候|哪一?年",
        "where": r"\bwhere\b|哪里|何处|什么地方",
        "why": r"\bwhy\b|为什么|为何",
        "how": r"\bhow\b|怎么|怎样|如何",
        "which": r"\bwhich\b|哪",
        "what": r"\bwhat\b|什么",
        "yes_no": r"^(?:is|are|was|were|do|does|did|has|have|can|could|will)\b|[吗嗎][?？]?$",
    }.items()
}
# Question words stand inside of other clauses, too: "Are both films that ... which ...?"
_ASKS_YES_OR_NO = re.compile(r"^\W*(?:is|are|was|were|am|do|does|did|has|have|had|can|could|will|would|should)\b", re.I)
GRAM_LENGTHS = (3, 4)
_OPTION = re.compile(r"\n[A-Z]\. ")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_DATE = re.compile(
    r"\b1\d{3}\b|\b20\d{2}\b|\b(?:january|february|march|april|june|july|august|september|october|november|december)\b"
    r"|\d+\s*[年月]",
    re.IGNORECASE,
)
# Names: words with a capital letter, and what is in quotes.
_QUOTED = re.compile(r'"([^"]+)"|“([^”]+)”|《([^》]+)》|「([^」]+)」')
_CAPITAL = re.compile(r"\b[^\W\d_a-z][\w'’-]*")
_CHINESE = re.compile(f"[{CJK}]+")
WORDS, TOKENS = "words.safetensors", "tokens.json"


@dataclass(frozen=True)
class Frequencies:
    """``hashes`` ascending; ``logs``: log(1 + number of passages with the word); ``tokens`` cuts and stems words."""

    tokens: Tokens
    hashes: NDArray[np.uint32]
    logs: NDArray[np.float16]

    @classmethod
    def none(cls) -> Frequencies:
        """Of no corpus: each word is in no passage."""
        return cls(Tokens(), np.zeros(1, dtype=np.uint32), np.zeros(1, dtype=np.float16))

    @classmethod
    def of_index(cls, index: Path) -> Frequencies:
        """From a BM25 index's folder. Raises :class:`UserError` for a folder without a whole index."""
        from kbtrain.retrieval.bm25 import document_frequencies

        tokens, words, counts = document_frequencies(index)
        hashes, first = np.unique(np.array([word_hash(word) for word in words], dtype=np.uint32), return_index=True)
        return cls(tokens, hashes, np.log1p(counts).astype(np.float16)[first])

    def log_counts(self, words: Sequence[str]) -> list[float]:
        """log(1 + passages) of each stemmed word; 0 for one that is not there."""
        wanted_hashes = np.array([word_hash(word) for word in words], dtype=np.uint32)
        places = np.minimum(np.searchsorted(self.hashes, wanted_hashes), len(self.hashes) - 1)
        return [
            float(x) for x in np.where(self.hashes[places] == wanted_hashes, self.logs[places].astype(np.float64), 0.0)
        ]

    def save(self, folder: Path) -> None:
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
    return int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=4).digest(), "big")


def question_form(text: str) -> str:
    """Form of a question by its words: ``yes_no``, another of :data:`KINDS`, or ``other``; options are not read."""
    text = _OPTION.split(text)[0].strip()
    if _ASKS_YES_OR_NO.search(text):
        return "yes_no"
    return next((kind for kind, pattern in KINDS.items() if pattern.search(text)), "other")


def question_features(example: GateExample, frequencies: Frequencies) -> dict[str, float]:
    """Features by name; frequencies as log(1 + passages). Options of a multiple choice are counted, not read."""
    options = _OPTION.findall(example.question)
    text = _OPTION.split(example.question)[0].strip()
    words = frequencies.tokens.words(text)
    log_counts = sorted(frequencies.log_counts(words))
    name_words = [word for name in names(text) for word in frequencies.tokens.words(name)]
    of_names = frequencies.log_counts(name_words) or log_counts or [0.0]
    kind = next((kind for kind, pattern in KINDS.items() if pattern.search(text)), "other")
    return {
        **{f"asks_{name}": float(name == kind) for name in KINDS},
        "options": float(len(options)),
        "chinese": float(example.language == "zh"),
        "characters": float(len(text)),
        "words": float(len(words)),
        "numbers": float(len(_NUMBER.findall(text))),
        "dates": float(len(_DATE.findall(text))),
        "name_words": float(len(name_words)),
        "rarest_name_word": min(of_names),
        "mean_name_word": sum(of_names) / len(of_names),
        "rarest_word": log_counts[0] if log_counts else 0.0,
        "second_rarest_word": log_counts[min(1, len(log_counts) - 1)] if log_counts else 0.0,
        "mean_word": sum(log_counts) / len(log_counts) if log_counts else 0.0,
        "unknown_words": sum(value == 0 for value in log_counts) / len(log_counts) if log_counts else 1.0,
        **({f"source {example.source}": 1.0} if example.source else {}),
    }


def spelling_features(example: GateExample, frequencies: Frequencies) -> dict[str, float]:
    """Features :data:`~kbtrain.gates.features.additive.GRAM` of the words that the corpus does not have: the
    counts of hashed character n-grams by bucket, as a vector of length 1. Empty without such words."""
    words = frequencies.tokens.words(_OPTION.split(example.question)[0].strip())
    counts: Counter[int] = Counter()
    for word, log_count in zip(words, frequencies.log_counts(words), strict=True):
        marked = f"<{word}>"  # marks: the beginning of a word is not its middle
        if log_count == 0:
            grams = (marked[i : i + n] for n in GRAM_LENGTHS for i in range(len(marked) - n + 1))
            counts.update(word_hash(gram) % BUCKETS for gram in grams)
    length = math.sqrt(sum(count * count for count in counts.values()))
    return {f"{GRAM}{bucket}": count / length for bucket, count in counts.items()}


def names(text: str, cased: bool = True) -> list[str]:
    """Quoted parts and words with a capital letter; a question word at the beginning does not count.

    Chinese has no capitals: of it only what is in quotes is a name, and Latin words beside it are looked at alone.
    ``cased`` False: letters without case and small ones beyond a to z count as capitals.
    """
    quoted = [next(part for part in groups if part) for groups in _QUOTED.findall(text)]
    rest = _QUOTED.sub(" ", text)
    rest = _CHINESE.sub(" ", rest) if cased else rest
    first = re.match(r"\W*(\w+)", rest)
    begin = first.end() if first and any(pattern.match(first[1]) for pattern in KINDS.values()) else 0
    return quoted + [word for word in _CAPITAL.findall(rest[begin:]) if word[0].isupper() or not cased]


def evidence_features(example: GateExample, frequencies: Frequencies) -> dict[str, float]:
    """Features of what a search found, by name; all 0 where that is nothing.

    ``gap``: between the two best scores, as a share of the best (1: only one passage). ``overlap``: share of the
    question's words that are in the best passage, or in any.
    """
    hits, cut = example.hits, frequencies.tokens.words
    question_words = set(cut(example.question))
    named = {word for name in names(example.question) for word in cut(name)}
    texts = [set(cut(f"{hit.title} {hit.text}")) for hit in hits]
    title = set(cut(hits[0].title)) if hits else set()
    best, second = (hits[i].score if len(hits) > i else 0.0 for i in (0, 1))
    return {
        "hits": float(len(hits)),
        "best_score": best,
        "gap": (best - second) / best if best > 0 else 0.0,
        "overlap_best": _share(question_words, texts[0] if texts else set()),
        "overlap_any": _share(question_words, set().union(*texts)),
        "named_in_title": _share(named, title),
        "title_in_question": _share(title, question_words),
        "passage_words": math.log1p(len(texts[0])) if texts else 0.0,
    }


def _share(words: set[str], among: set[str]) -> float:
    return len(words & among) / len(words) if words else 0.0
