"""What programs write around a user's words, or in place of them.

Wrappers (reminders, the state of an editor, a date, a wish for a short answer) are struck before a gate and a search
read a message. Prompts that are no questions pass ungated: tasks that a chat window or a chain makes for itself,
prompts that hold their passages already, and code to be filled in. The rules read English and Chinese.

They follow the prompts of Open WebUI (``config.py``, ``DEFAULT_*_PROMPT_TEMPLATE``), LibreChat (``title.ts``),
NextChat, LobeChat, Cherry Studio, Chatbox, LangChain, LlamaIndex, Haystack, Dify, RAGFlow and Langchain-Chatchat, and
the tags of Claude Code, Codex, Cline, Cursor and Copilot.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kbtrain.answers.words import read_data
from kbtrain.utterances import utterance_kind

NoQuestion = Literal["client-task", "own-passages", "fill-in"]
LONGEST_END = 4000  # characters at either end of a message that are read: the chat itself is between them
LONGEST_WRAPPED = 100_000  # characters of a message in which wrappers are struck
LONGEST_MANNER = 60  # characters of a sentence about the form of the answer
SHORTEST = 60  # characters of a prompt that may hold passages, beside the words that say so
_TABLE = read_data("harness.toml")
_M = re.IGNORECASE | re.MULTILINE


def _form(text: str) -> str:
    """A regular expression of the table with its parts."""
    for part, form in _TABLE["parts"].items():
        text = text.replace(f"<{part}>", form)
    return re.sub(r"\n\s*", "", text)


def _rules(table: str, name: str = "rules") -> tuple[tuple[re.Pattern[str], ...], ...]:
    return tuple(tuple(re.compile(_form(text), _M) for text in rule) for rule in _TABLE[table][name])


TASKS, _OF_MESSAGE, _PASSAGES = _rules("tasks"), _rules("tasks", "message"), _rules("passages")
SIGNS = tuple(_TABLE["tasks"]["signs"])
_TAGS = {name: _form(text) for name, text in _TABLE["tags"].items()}
_ASKED = re.compile(rf"<({_TAGS['asked']})>", re.IGNORECASE)
_MATERIAL_NAME = rf"(?:[a-z]+_)*(?:{_TAGS['context']}|{_TAGS['material']})(?:_?\d+)?"
_WRAPPED = re.compile(
    rf"<(?!(?i:{_TAGS['asked']})>)((?i:(?:[a-z]{{1,20}}[_-]){{0,3}}?(?:{_TAGS['wrapped']})s?)(?:[_-][\w-]*|[A-Z]\w*)?"
    r"|context(?=>\s*(?i:the|my) current\b)"
    rf"|(?m:(?<=^<))(?!{_MATERIAL_NAME}[\s>])[a-z]{{2,20}}(?:[_-][a-z]{{2,20}}){{1,3}})(?=[\s>])[^<>]*>"  # not HTML's
)
_TAGGED = re.compile(rf"<({_TAGS['context']})\b[^<>]*>", re.IGNORECASE)
_MATERIAL = re.compile(rf"<({_MATERIAL_NAME})\b[^<>]*>", re.IGNORECASE)
_LINES = tuple(re.compile(_form(text)) for text in _TABLE["lines"]["all"])
_MANNER = re.compile("|".join(f"(?:{_form(text)})" for text in _TABLE["manner"]["all"]), re.IGNORECASE)
_CONDITION = re.compile(_TABLE["passages"]["condition"], re.IGNORECASE)
_GIVEN, _FILL_IN = re.compile(_form(_TABLE["passages"]["given"]), _M), re.compile(_form(_TABLE["code"]["fill_in"]))
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|(?<=[。！？])|\n+")
_BLANKS = re.compile(r"(\s{7}(?>\r\n|\s))\s+")  # patterns that look around blanks would try each place of a long run
_FIELDS = ("question", "query", "message", "user_message", "input", "prompt", "text", "content")


@dataclass(frozen=True)
class OwnWords:
    """The user's own words in a message, empty where there are only wrappers; ``struck``: the number of these.

    ``outside``: the text without blocks in tags, in which a program's prompt is looked for.
    """

    words: str
    struck: int
    outside: str


def own_words(text: str, patterns: Sequence[re.Pattern[str]] = ()) -> OwnWords:
    """Strike the wrappers; ``patterns``: of further ones."""
    struck = 0
    if len(text) > LONGEST_WRAPPED:
        return OwnWords(text, 0, text)
    text = _shorten_blanks(text)
    for pattern in patterns:
        text, n = pattern.subn("", text)
        struck += n
    packed = text if (inner := _unpacked(text)) is not None else None
    text, struck = _shorten_blanks((inner or text).replace("\r\n", "\n")), struck + (inner is not None)
    blocks = _blocks(text, _WRAPPED)
    for begin, _, _, end in reversed(blocks):
        before, behind = text[:begin].rstrip(" "), text[end:].lstrip()
        text = f"{before}{' ' * (before[-1:].isalnum() and behind[:1].isalnum())}{behind}"
    outside, struck = text if packed is None else packed, struck + len(blocks)
    if asked := _blocks(text, _ASKED)[-1:]:
        text, struck = text[asked[0][1] : asked[0][2]], struck + 1
    for pattern in _LINES:
        rest, n = pattern.subn("", text, count=1)
        if n and rest.strip():
            text, struck = rest, struck + n
    if (manner := _MANNER.match(text[:LONGEST_MANNER])) and text[manner.end() :].lstrip().startswith((":", "：")):
        text, struck = text[manner.end() :].lstrip(" :：\n"), struck + 1
    sentences = [sentence for sentence in _SENTENCE.split(text.strip()) if sentence]
    while len(sentences) > 1 and _is_manner(sentences[0]):
        text, struck = text.strip()[len(sentences.pop(0).strip()) :], struck + 1
    while len(sentences) > 1 and _is_manner(sentences[-1]):
        text, struck = text.strip()[: -len(sentences.pop().strip())], struck + 1
    return OwnWords(text.strip(), struck, outside.strip())


def _unpacked(text: str) -> str | None:
    """The user's words in a message that is one JSON object, as frameworks send it; None for any other message."""
    if not text.lstrip().startswith("{"):
        return None
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text)
        return next((value[name] for name in _FIELDS if isinstance(value.get(name), str) and value[name].strip()), None)
    return None


def _blocks(text: str, opening: re.Pattern[str], least: int = 0) -> list[tuple[int, int, int, int]]:
    """Closed outermost blocks in tags, of ``least`` characters or more: begin, the content's begin and end, end."""
    found: list[tuple[int, int, int, int]] = []
    place, unclosed = 0, set()
    while tag := opening.search(text, place):
        place, closing = tag.end(), f"</{tag[1]}>"
        end = -1 if closing in unclosed else text.find(closing, place)
        if end < 0:
            unclosed.add(closing)
        else:
            found.append((tag.start(), tag.end(), end, place := end + len(closing)))
    return [block for block in found if block[2] - block[1] >= least]


def _is_manner(sentence: str) -> bool:
    """True for a wish about the form of the answer, a greeting or thanks."""
    if len(sentence) > LONGEST_MANNER:
        return False
    return bool(_MANNER.fullmatch(sentence.strip(" \n.!。！()"))) or utterance_kind(sentence) in ("greeting", "thanks")


def no_question(asked: str, systems: Iterable[str] = ()) -> NoQuestion | None:
    """Why a message is no question of a user; None for one. ``systems``: texts of the system's messages."""
    ends, systems = _ends(asked), [_unconditional(_ends(system)) for system in systems]
    if any(sign in asked for sign in "<[{") and _FILL_IN.search(asked):
        return "fill-in"
    if any(map(_is_task, (ends, *systems))) or _has_all(ends, _OF_MESSAGE):
        return "client-task"
    if _holds_passages(ends) or any(map(_gives_passages, systems)):
        return "own-passages"
    return None


@functools.lru_cache(maxsize=256)  # a session sends its system's message again and again
def _is_task(text: str) -> bool:
    """True for the system's message or the user's last one that is a program's own instruction."""
    lowered = text.lower()
    return any(sign in lowered for sign in SIGNS) and _has_all(text, TASKS)


def _has_all(text: str, rules: Iterable[Sequence[re.Pattern[str]]]) -> bool:
    """True for a text with all patterns of a rule."""
    return any(all(pattern.search(text) for pattern in rule) for rule in rules)


def _holds_passages(text: str) -> bool:
    """True for a prompt with passages in it, told by its tags, its headings or its instruction to use them."""
    if len(text) >= SHORTEST and _blocks(text, _MATERIAL, SHORTEST // 2):
        return True
    for rule in _PASSAGES if len(text) >= SHORTEST else ():
        found = [pattern.search(text) for pattern in rule]
        if all(found) and len(text) - sum(len(match[0]) for match in found if match) >= SHORTEST:
            return True
    return False


@functools.lru_cache(maxsize=256)
def _gives_passages(system: str) -> bool:
    """True for a system's message that names passages and has text behind; tools and rules alone are none."""
    named = _GIVEN.search(system)
    behind = system[named.end() - 1 :] if named else ""
    tagged = _blocks(system, _TAGGED, SHORTEST // 2)
    return bool(tagged) or ("\n" in behind and len(behind.strip()) >= SHORTEST)


@functools.lru_cache(maxsize=256)
def _unconditional(system: str) -> str:
    """A system's message without the sentences that hold for some messages alone: "If the context ..."."""
    return "".join(part for part in re.split(r"(?<=[.!?;。！？；\n])", system) if not _CONDITION.search(part))


def _ends(text: str) -> str:
    ends = text if len(text) <= 2 * LONGEST_END else f"{text[:LONGEST_END]}\n{text[-LONGEST_END:]}"
    return _shorten_blanks(ends.replace("\r\n", "\n"))


def _shorten_blanks(text: str) -> str:
    """Long runs of blanks cut; one that held a line's end still does."""
    ends = ("\r\n", "\n", "")
    return _BLANKS.sub(lambda run: run[1] + next(end for end in ends if end in run[0]) * ("\n" not in run[1]), text)
