"""The text of an answer that is graded: without citations, list numbers, HTML entities and a second question."""

from __future__ import annotations

import functools
import html
import re

_SOURCE = (
    r"(?:(?:passage|document|doc|source|ref|reference|citation|cite|snippet|context|result)s?|来源|文档|参考)"
    r"\s?[#:.]?\s?"
)
_NUMBERS = r"\d{1,3}(?:\s?(?:[,;&\u2013-]|and)\s?\^?\d{1,3})*"
_CITATION = re.compile(
    # [1, 2], ^[3], [^3], [source 3], [3, p. 4], [3](address)
    rf"\^?\[\s?\^?(?:{_SOURCE})?{_NUMBERS}(?:, pp?\.[^\[\]]{{1,20}})?\s?\^?\](?:\([^()\s]*\))?"
    rf"|(?<![\w}}^_])\{{{_NUMBERS}\}}(?=[.\s]*$)"
    r"|\u3010[^\u3010\u3011]{0,40}(?:\u2020[^\u3010\u3011]{0,80})?\u3011"  # 【3†source】
    r"|\[[^\[\]\n]{1,80}\.(?:pdf|html?|md|txt|docx?|json|csv)\]"
    rf"|[(\uff08]\s?(?:see |cf\. |according to |from |in |sources?:? )?{_SOURCE}(?:no\.\s?)?{_NUMBERS}\s?[)\uff09]"
    r"|\b(?:according to|see|from|as (?:stated|given|said|described|mentioned) in|in|by)\s(?:the\s)?"
    rf"{_SOURCE}{_NUMBERS}"
    rf"|\b{_SOURCE}{_NUMBERS}(?=\s(?:says|states|said|mentions|shows|gives|and|does|do|is|was)\b)"
    r"|[(（][A-Z][^()\n]*\b(?:19|20)\d\d[a-z]?[,:]\s?(?:pp?\.\s?)?\d+(?:[-–]\d+)?[)）]"  # (Lee 1998, 12)
    r"|~~[^~\n]+~~|<sup>\s?\[?\d{1,3}(?:,\s?\d{1,3})*\]?\s?</sup>|<cite[^>]*>.*?</cite>|<ref[^>]*>.*?</ref>|\{\{cite[^}]*\}\}"
    r"|(?<=[^\W\d_][.,;:!?)\"'])[\u00b9\u00b2\u00b3\u2070\u2074-\u2079]+",  # Paris.¹
    re.IGNORECASE | re.DOTALL,
)
_LIST = re.compile(r"^[ \t]*(?:[-*][ \t]+)?\(?(\d{1,2})[.)][ \t]+(?=\S)", re.MULTILINE)
_GIVEN = re.compile(  # what an output's form says is the answer
    r"^\s*(?:```(?:json)?\s*)?\{.*?\"(?:final_?)?answer\"\s*:\s*\"(?P<json>(?:[^\"\\]|\\.)+)\""
    r"|<answer>(?P<tag>.+?)</answer>|\\boxed\{(?!.*\\boxed)",
    re.IGNORECASE | re.DOTALL,
)
_SECOND_QUESTION = re.compile(
    r"\n\s*(?:[#*>]+\s*)?(?:next |another |new )?(?:question|query|q|user|human|问题?|提问)\s*\d*\s*[:\uff1a]",
    re.IGNORECASE,
)


@functools.lru_cache(maxsize=512)
def answer_text(answer: str) -> str:
    """An answer as its author meant it to be read; the whole where nothing else is left ("[3]")."""
    text = html.unescape(answer) if "&" in answer else answer
    if given := _GIVEN.search(text):
        text = given["json"] or given["tag"] or text[given.start() :]
    second = _SECOND_QUESTION.search(text)
    if second and text[: second.start()].strip():
        text = text[: second.start()]
    bare = _without_list_numbers(_CITATION.sub(" ", text))
    return bare if re.search(r"\w", bare) else text


def _without_list_numbers(text: str) -> str:
    """Text without the numbers of a list: two lines or more that count from 1, or one line that begins with 1."""
    numbers = [int(match[1]) for match in _LIST.finditer(text)]
    counts = numbers == list(range(1, len(numbers) + 1))
    return _LIST.sub("", text) if numbers and counts else text
