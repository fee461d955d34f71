"""Long documents cut into passages of so many tokens: words (as DPR's 100), or a model's own tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from kbtrain.errors import UserError
from kbtrain.records import Passage
from kbtrain.retrieval.tokens import CJK

Spans = Callable[[str], list[tuple[int, int]]]  # where each token of a text begins and ends
_WORDS = re.compile(rf"[{CJK}]|[^\s{CJK}]+")


class Chunking(NamedTuple):
    """``size`` tokens a chunk, of which the first ``overlap`` are the last of the one before.

    ``tokenizer``: "words" (between spaces; every Chinese character is one), an embedded model's name, a folder or a
    hub id.
    """

    size: int
    overlap: int = 0
    tokenizer: str = "words"


def chunked(passages: Iterable[Passage], chunking: Chunking) -> Iterator[Passage]:
    """Passages of at most ``chunking.size`` tokens: longer ones in pieces ``ID#0``, ``ID#1`` ... with their title.

    Texts are exact stretches of the original, without the spaces at their ends. Raises :class:`UserError`.
    """
    size, overlap, tokenizer = chunking
    if not 0 <= overlap < size:
        raise UserError(f"chunks of {size} tokens cannot overlap by {overlap}; take an overlap from 0 to {size - 1}")
    spans = word_spans if tokenizer == "words" else model_spans(tokenizer)
    for passage in passages:
        yield from _pieces(passage, spans(passage.text), size, overlap)


def _pieces(passage: Passage, spans: list[tuple[int, int]], size: int, overlap: int) -> Iterator[Passage]:
    if len(spans) <= size:
        yield passage
        return
    for number, first in enumerate(range(0, len(spans) - overlap, size - overlap)):
        begin, end = spans[first][0], spans[min(first + size, len(spans)) - 1][1]
        yield Passage(f"{passage.id}#{number}", passage.title, passage.text[begin:end].strip())


def word_spans(text: str) -> list[tuple[int, int]]:
    """Words between spaces, Chinese characters one by one."""
    return [found.span() for found in _WORDS.finditer(text)]


def model_spans(name: str) -> Spans:
    """The tokens of a model's fast tokenizer."""
    from transformers import AutoTokenizer

    from kbtrain.models.embedded import is_embedded, path_of

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(path_of(name)) if is_embedded(name) else name)
    except (OSError, ValueError) as error:
        raise UserError(f"tokenizer '{name}': cannot be opened ({str(error).splitlines()[0][:150]})") from None
    if not tokenizer.is_fast:
        raise UserError(f"tokenizer '{name}': does not say where its tokens stand (no fast tokenizer); use 'words'")

    def spans(text: str) -> list[tuple[int, int]]:
        made = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return [(begin, end) for begin, end in made["offset_mapping"] if end > begin]

    return spans
