"""Outputs of a model: reasoning and answer in token ids, and shares of answers that say nothing, or the same."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, get_args

from kbtrain.answers.thoughts import (
    Silence,
    SplitText,
    has_mark,
    is_closing,
    is_opening,
    opens_thought,
    silence,
    split_thought,
)
from kbtrain.errors import UserError
from kbtrain.records import Sample, SampleSet

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TAIL = 24  # tokens of a prompt in which an opening mark and the space behind it stand
MOST_SILENT = 0.2  # share of answers
LEAST = 50  # answers from which on a share is looked at before all are drawn
_ADVICE: dict[Silence, str] = {
    "cut": "raise max_thought_tokens, or turn reasoning off (docs/howto/thinking.md)",
    "thought_only": "no answer follows the reasoning: turn it off, or check the stop strings",
    "empty": "check the prompt, the chat template and the stop strings",
}


class ThoughtTokens:
    """Marks of reasoning among a tokenizer's tokens; ``opening`` and ``closing``: ids of whole marks. ``special``: some
    are special tokens (Magistral, gpt-oss, Command A). Decoding without these would make reasoning and answer one text,
    so such outputs are decoded with special tokens, which the answer then loses."""

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
        """True if a prompt ends with the opening mark of reasoning, as the templates of DeepSeek-R1's kind do."""
        return opens_thought(str(self._tokenizer.decode(list(prompt[-_TAIL:]))))

    def is_thinking(self, tokens: Sequence[int], opened: bool) -> bool:
        """True if an output is surely in its reasoning, without decoding it; False where that is not known."""
        is_open = opened or (bool(tokens) and tokens[0] in self.opening)
        return is_open and bool(self.closing) and self.closing.isdisjoint(tokens)

    def decode(self, tokens: Sequence[int], opened: bool) -> SplitText:
        """Reasoning and answer of an output. The answer has no special tokens."""
        text = str(self._tokenizer.decode(list(tokens), skip_special_tokens=not self.special))
        return self.split(text, opened)

    def split(self, text: str, opened: bool) -> SplitText:
        """As :meth:`decode`, of a text that has its special tokens where some are marks."""
        split = split_thought(text, opened)
        if not self.special or self._specials is None:
            return split
        return replace(split, answer=self._specials.sub("", split.answer))


@dataclass
class SilentAnswers:
    """Number of answers so far, and of those that say nothing by kind."""

    n: int = 0
    kinds: Counter[Silence] = field(default_factory=Counter)

    def add(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self.n += 1
            if (kind := silence(sample)) is not None:
                self.kinds[kind] += 1

    def line(self) -> str:
        n = max(self.n, 1)
        empty, cut, thoughts = (self.kinds[kind] / n for kind in get_args(Silence))
        return f"{self.n} answers: {empty:.1%} empty, {cut:.1%} cut before they began, {thoughts:.1%} reasoning alone"

    def is_too_silent(self, least: int = 0) -> bool:
        """True if more than :data:`MOST_SILENT` of at least ``least`` answers say nothing."""
        return self.n >= max(least, 1) and self.kinds.total() > MOST_SILENT * self.n

    def advice(self) -> str:
        """Advice against the most frequent kind."""
        return _ADVICE[max(self.kinds, key=lambda kind: self.kinds[kind])]

    def check(self, place: str, least: int = 0) -> None:
        """Raise :class:`UserError` where too many say nothing. ``place``: file and run that hold them."""
        if self.is_too_silent(least):
            raise UserError(
                f"{place}: {self.line()}; {self.advice()}; then sample into a new run (sampling_run), or set "
                "allow_empty: true to continue"
            )


FEW = 20  # prompts from which on likeness is looked at in the end
_ALIKE = 0.9  # share of prompts
_BEGINNING = 24  # characters
_MARK = re.compile(r"[<\[(|◁]\S*")  # a first word that may be a mark
FIRST = 1000  # prompts that are looked at


class AlikeAnswers:
    """Likeness of the answers to different prompts: a sign of reasoning with unknown marks, or of errors. Each of the
    first prompts counts by its first drawn answer. ``golds`` (reference answers) is called where all are alike: one
    answer may be right for many questions (yes, B)."""

    def __init__(self, golds: Callable[[], Iterable[str]] = tuple) -> None:
        self.n = 0
        self._golds = golds
        self._texts = Counter[str]()
        self._beginnings = Counter[str]()
        self._drawn = self._repeated = 0  # prompts with several drawn answers, and those of which all are the same

    def add(self, sample_sets: Iterable[SampleSet]) -> None:
        """Count prompts, those without an answer that says something not."""
        for answers in sample_sets:
            several = {sample.text for sample in answers.samples} if len(answers.samples) > 2 else set()
            self._drawn, self._repeated = self._drawn + bool(several), self._repeated + (len(several) == 1)
            text = next((s.text.strip() for s in answers.samples or answers.answers() if silence(s) is None), "")
            if text and self.n < FIRST:
                self.n += 1
                self._texts[text.casefold()[:200]] += 1
                self._beginnings[beginning(text)] += 1

    def finding(self) -> str | None:
        """The words or mark with which nearly all answers are or begin; None where they differ."""
        for counts, how in ((self._texts, "are"), (self._beginnings, "begin with")):
            text, n = max(counts.items(), key=lambda item: item[1] * bool(item[0]), default=("", 0))
            if text and n > _ALIKE * self.n and text not in {gold.strip().casefold() for gold in self._golds()}:
                return f"{n / self.n:.0%} of the answers to {self.n} prompts {how} {text!r:.60}"
        return None

    def repeats(self) -> bool:
        """True if the drawn answers to each of many prompts are the same: a cache, or no temperature."""
        return self._drawn == self._repeated >= FEW

    def check(self, place: str, least: int = FEW) -> None:
        """Raise :class:`UserError` where nearly all are alike. ``place``: file and run that hold them."""
        if self.n >= least and (found := self.finding()) is not None:
            raise UserError(
                f"{place}: {found}; is it reasoning, or an error in place of an answer? Check the prompt and what "
                "the model writes, then sample into a new run (sampling_run), or set allow_empty: true to continue"
            )


def beginning(text: str) -> str:
    """The first word of a text if it may be a mark, else its first characters; empty for a short text."""
    mark = _MARK.match(text)
    return mark[0] if mark and len(mark[0]) < len(text) else text[:_BEGINNING] if len(text) > _BEGINNING else ""
