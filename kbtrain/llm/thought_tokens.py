"""Thoughts in token ids: marks that are special tokens, and prompts that open a thought.

Decoding without special tokens drops the marks of some families (Magistral, gpt-oss, Command A), and thought and answer
become one text. So their outputs are decoded with special tokens, which the answer then loses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kbtrain.answers.thoughts import SplitText, has_mark, is_closing, is_opening, opens_thought, split_thought

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TAIL = 24  # tokens of a prompt in which an opening mark and the space behind it stand


class ThoughtTokens:
    """``special``: some marks are special tokens of the tokenizer; ``opening`` and ``closing``: ids of whole marks."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        special = [token.content for token in added.values() if token.special]
        self.special = any(map(has_mark, special))
        self.opening = frozenset(i for i, token in added.items() if is_opening(token.content))
        self.closing = frozenset(i for i, token in added.items() if is_closing(token.content))
        names = sorted(special, key=len, reverse=True)
        self._specials = re.compile("|".join(map(re.escape, names))) if names else None

    def is_opened_by(self, prompt: Sequence[int]) -> bool:
        """True if a prompt ends with the opening mark of a thought, as the templates of DeepSeek-R1's kind do."""
        return opens_thought(str(self._tokenizer.decode(list(prompt[-_TAIL:]))))

    def is_thinking(self, tokens: Sequence[int], opened: bool) -> bool:
        """True if an output is surely in its thought, without decoding it; False where that is not known."""
        is_open = opened or (bool(tokens) and tokens[0] in self.opening)
        return is_open and bool(self.closing) and self.closing.isdisjoint(tokens)

    def decode(self, tokens: Sequence[int], opened: bool) -> SplitText:
        """Thought and answer of an output. The answer has no special tokens."""
        text = str(self._tokenizer.decode(list(tokens), skip_special_tokens=not self.special))
        return self.split(text, opened)

    def split(self, text: str, opened: bool) -> SplitText:
        """As :meth:`decode`, of a text that has its special tokens where some are marks."""
        split = split_thought(text, opened)
        if not self.special or self._specials is None:
            return split
        return replace(split, answer=self._specials.sub("", split.answer))
