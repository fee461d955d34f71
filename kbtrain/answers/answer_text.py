"""The text of an answer that is graded: without citations, list numbers, HTML entities and a second question."""

from __future__ import annotations

import functools
import html
import re

from kbtrain.answers.words import LISTS, any_of, names_by_word, pattern

_CITATION = pattern("citation", re.DOTALL)
_ASIDE, _SECOND_QUESTION = pattern("aside", re.DOTALL), pattern("second_question")
_LIST = re.compile(r"^[ \t]*(?:[-*][ \t]+)?\(?(\d{1,2})[.)][ \t]+(?=\S)", re.MULTILINE)
_DATE = re.compile(rf"\W*1\. (?:{any_of(LISTS['months'].keys() | names_by_word('months'))})\b(?!.*\n)", re.I)
_BLANKS = re.compile(r"([^\S\n]{3})[^\S\n]+|(\n{3})\n+")  # patterns would try each place of a long run
_REPEATED = re.compile(r"\s*(\d\S*)(?:\s+\1)+\s*")  # 366 366 366 is one number
_GIVEN = pattern("given", re.DOTALL)
_MATH_ENDS = re.compile(r"(?<!\\)\$(?!\s?\d)")  # of $\boxed{8}$: without its first sign the last one is money


@functools.lru_cache(maxsize=512)
def answer_text(answer: str) -> str:
    """An answer as its author meant it to be read; the whole where nothing else is left ("[3]")."""
    text = _BLANKS.sub(r"\1\2", html.unescape(answer) if "&" in answer else answer)
    if given := _GIVEN.search(text):
        text = given["json"] or given["tag"] or given["thought"] or _MATH_ENDS.sub("", text[given.start() :])
    second = _SECOND_QUESTION.search(text)
    if second and text[: second.start()].strip():
        text = text[: second.start()]
    if again := _REPEATED.fullmatch(text):
        text = again[1]
    bare = _without_list_numbers(_ASIDE.sub("", _CITATION.sub(" ", text)))
    return bare if re.search(r"\w", bare) else text


def _without_list_numbers(text: str) -> str:
    """Text without the numbers of a list: two lines or more that count from 1, or one line that begins with 1."""
    numbers = [int(match[1]) for match in _LIST.finditer(text)]
    counts = numbers == list(range(1, len(numbers) + 1))
    return _LIST.sub("", text) if numbers and counts and not _DATE.match(text) else text
