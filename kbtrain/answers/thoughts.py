"""Split a model's output into its reasoning and its answer: the answer is what follows the reasoning.

The marks are those of the model families' chat templates and of the reasoning parsers of vLLM, SGLang and llama.cpp:
``<think>`` (DeepSeek-R1, Qwen3, GLM, EXAONE 4, Kimi K2, Granite 3.3, Hunyuan, SmolLM3 and others), ``<thought>``
(EXAONE Deep), ``<seed:think>`` (Seed-OSS), ``<longcat_think>`` (LongCat), ``<|think|>``, ``<scratchpad>``,
``[THINK]`` (Magistral), ``◁think▷`` (Kimi-VL), channels (gpt-oss, Gemma 4), ``<|START_THINKING|>`` (Command A),
``<|inner_prefix|>`` (Apertus), ``<|begin_of_thought|>`` (OpenThinker), and the sentences of Granite 3.2 and Apriel.
Some templates open the reasoning in the prompt: then the closing mark stands alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kbtrain.answers.words import is_empty, pattern
from kbtrain.answers.writing import is_blank
from kbtrain.records import Finish, Sample

_WORD = r"think(?:ing)?|thoughts?|reasoning|scratchpad|reflection|thought_process|inner_monologue|chain_of_thought"
_NAME = rf"(?:\w+[:_])?(?:{_WORD})(?::\w+)?"  # of a tag
_OPENINGS = (
    rf"<{_NAME}>", rf"<\|(?:begin_of_)?(?:{_WORD})\|>", r"\[THINK\]", r"◁think▷", r"<\|START_THINKING\|>",
    r"<\|inner_prefix\|>",
    r"<\|channel\|>(?:analysis|commentary)[^<]*<\|message\|>", r"<\|channel>",
)  # fmt: skip
_CLOSINGS = (
    rf"</{_NAME}>", rf"<\|(?:/|end_of_)(?:{_WORD})\|>", rf"</\|(?:{_WORD})\|>", r"\[/THINK\]", r"◁/think▷",
    r"<\|END_THINKING\|>", r"<\|inner_suffix\|>",
    r"<\|channel\|>final[^<]*<\|message\|>", r"<channel\|>",
)  # fmt: skip
_OPENING = re.compile("|".join(_OPENINGS), re.IGNORECASE)
_CLOSING = re.compile("|".join(_CLOSINGS), re.IGNORECASE)
_OPENED = re.compile(rf"(?:{'|'.join(_OPENINGS)})\s*\Z", re.IGNORECASE)
_WORDED = (  # marks of plain words count at the text's beginning alone
    (re.compile(r"\s*Here(?:'s| is) my thought process:"), re.compile(r"Here(?:'s| is) my response:")),
    (re.compile(r"\s*Here are my reasoning steps:"), re.compile(r"\[BEGIN FINAL RESPONSE\]")),
    # gpt-oss without its special tokens
    (re.compile(r"\s*analysis(?=[A-Z])"), re.compile(r"assistant(?:commentary.*?assistant)?final", re.DOTALL)),
)

_WRAPPED, _BLANK_LINES, _UNWRAPPED = pattern("wrapped"), pattern("blank_lines"), pattern("unwrapped", re.DOTALL)


@dataclass(frozen=True)
class SplitText:
    """``thought``: its text with its marks, or None. ``answer`` is "" while the reasoning is ``unfinished``."""

    thought: str | None
    answer: str
    unfinished: bool = False

    @property
    def opened_by_prompt(self) -> bool:
        """True for reasoning that ends without an opening mark: the prompt has opened it."""
        return self.thought is not None and not self.unfinished and not _OPENING.search(self.thought)


def split_thought(text: str, opened: bool = False) -> SplitText:
    """The reasoning and the answer of a model's output. ``opened``: the prompt has opened the reasoning."""
    for begin, end in _WORDED:
        if begin.match(text) is not None:
            closing = end.search(text)
            return SplitText(text, "", True) if closing is None else _split(text, closing.end())
    place = 0
    while (closing := _CLOSING.search(text, place)) is not None and (not place or _begins(text[place:])):
        place = closing.end()
    output = text[place:]
    if place:
        return SplitText(text, "", True) if _begins(output) else _split(text, place)
    opening_mark = _OPENING.search(text)
    if opened or (opening_mark is not None and not text[: opening_mark.start()].strip()):
        return SplitText(text, "", True)
    if opening_mark is not None:  # more reasoning after an answer
        return SplitText(text[opening_mark.start() :], text[: opening_mark.start()])
    return SplitText(None, text)


def _begins(text: str) -> bool:
    """True if a text begins with reasoning."""
    return _OPENING.match(text.lstrip()) is not None


def _split(text: str, place: int) -> SplitText:
    remainder = _WRAPPED.sub("", text[place:], count=1) if _WRAPPED.match(text[place:]) else text[place:]
    return SplitText(text[:place], _UNWRAPPED.sub("", remainder, count=1).lstrip())


def opens_thought(prompt: str) -> bool:
    """True if a prompt, or its last characters, ends with the opening mark of reasoning."""
    return _OPENED.search(prompt) is not None


def without_thought(text: str) -> str:
    """The answer of a whole output; "" for reasoning without an answer."""
    return split_thought(text).answer


def has_mark(token: str) -> bool:
    """True for a token that opens or closes reasoning, or a part of such a mark."""
    return is_opening(token) or is_closing(token) or token in ("<|channel|>", "<|message|>")


def is_opening(token: str) -> bool:
    """True for a token that opens reasoning by itself."""
    return _OPENING.fullmatch(token.strip()) is not None


def is_closing(token: str) -> bool:
    """True for a token that closes reasoning by itself."""
    return _CLOSING.fullmatch(token.strip()) is not None


@dataclass(frozen=True)
class ReadAnswer:
    """An answer as it is stored. ``thought``: it came with one."""

    text: str
    finish: Finish
    thought: bool

    @property
    def is_empty(self) -> bool:
        return not self.thought and is_blank(self.text)


def read_answer(split: SplitText, finish: Finish, stop: Sequence[str] = ()) -> ReadAnswer:
    """The answer of an output that ended so: without blank lines before it, up to the first stop string.

    Blank lines are skipped if there are stop strings, which are mostly a line end. An answer that a stop string ends is
    whole, however the output ended.
    """
    answer = skip_blank_lines(split.answer) if stop else split.answer
    up_to_end = answer
    for string in stop:
        up_to_end = up_to_end.split(string, 1)[0]
    if len(up_to_end) < len(answer):
        finish = "stop"
    if split.thought is not None and finish != "length" and is_empty(up_to_end):
        return ReadAnswer("", "thought", True)
    return ReadAnswer(up_to_end, finish, split.thought is not None)


def skip_blank_lines(text: str) -> str:
    """A text without the blank lines at its beginning."""
    return _BLANK_LINES.sub("", text)


Silence = Literal["empty", "cut", "thought_only"]


def silence(sample: Sample) -> Silence | None:
    """Kind of an answer that says nothing; None for one that says something.

    ``cut``: the tokens were used up before it began (mostly by reasoning); ``thought_only``: reasoning that no answer
    follows; ``empty``: the model ended at once.
    """
    if not is_empty(sample.text):
        return None
    if sample.finish == "length":
        return "cut"
    return "thought_only" if sample.finish == "thought" else "empty"


def is_left_out(sample: Sample) -> bool:
    """True for an answer that mastery, certainty and end-to-end scores skip and count: a cut or reasoning-only one.

    It shows a limit of tokens, or a stop string, and nothing of what the model knows. An empty answer is the model's
    own, and counts as wrong.
    """
    return silence(sample) in ("cut", "thought_only")


def counted_answers(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    return tuple(sample for sample in samples if not is_left_out(sample))
