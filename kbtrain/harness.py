"""What programs write around a user's words, or in place of them.

Wrappers (reminders, the state of an editor, a date, a wish for a short answer) are struck before a gate and a search
read a message. Prompts that are no questions pass ungated: tasks that a chat window or a chain makes for itself,
prompts that hold their passages already, and code to be filled in. The rules read English and Chinese.

They follow the prompts of Open WebUI (``config.py``, ``DEFAULT_*_PROMPT_TEMPLATE``), LibreChat (``title.ts``),
NextChat, LobeChat, Cherry Studio, Chatbox, LangChain, LlamaIndex, Haystack, Dify, RAGFlow and Langchain-Chatchat, and
the tags of Claude Code, Codex, Cline, Cursor and Copilot.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kbtrain.utterances import utterance_kind

NoQuestion = Literal["client-task", "own-passages", "fill-in"]
LONGEST_END = 4000  # characters at either end of a message that are read: the chat itself is between them

# Opening tags of the user's own words, and of anything else: a name of which a part is one of these
_ASKED = re.compile(
    r"<(task|user_?(?:query|request|message|input|prompt|question)|question|query|request|prompt|feedback|message)>",
    re.IGNORECASE,
)
_WRAPPED = re.compile(
    r"<((?i:(?:[a-z]{1,20}[_-]){0,3}?(?:system|environment|env|editor|ide|workspace|repo|git|project|cursor|hook|"
    r"session|reminder|attach(?:ed|ment)s?|additional|memor(?:y|ies)|todos?|diagnostics|linter|open|recent(?:ly)?|"
    r"current|date|user_?(?:info|rules|preferences)|datetime|timestamp|time|metadata|rules|guidelines|instructions|"
    r"notes?|selection|selected|manually|command|local|bash|tool_?use|available|skills?|mode|budget|token|claude|"
    r"agents?|os|cwd))(?:[_-][\w-]*|[A-Z]\w*)?)(?=[\s>])[^<>]*>"
)
LONGEST_WRAPPED = 100_000  # characters of a message in which wrappers are struck
LONGEST_MANNER = 60  # characters of a sentence about the form of the answer
_ZONE = r"(?: ?(?:Z|UTC|GMT|[A-Z]{3,4}))?(?: ?[+-]\d{1,2}(?::?\d\d)?)?"
_TIME = rf"(?:,?[ T]\d{{1,2}}:\d\d(?::\d\d)?(?:\.\d+)?(?: ?[AP]M)?{_ZONE}(?: ?\([\w/ +:-]+\))?)?"
_DAY = r"(?:[A-Z][a-z]{2,8},? )?(?:\d{4}[-/.]\d\d?[-/.]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4}|\d{4}年\d\d?月\d\d?日)"
_LINES = tuple(
    re.compile(pattern, flags)
    for pattern, flags in (
        (rf"^\s*[\[(]{_DAY}{_TIME}[\])]:?\s*", re.NOFLAG),
        (rf"^\s*{_DAY}{_TIME}\s*\n", re.NOFLAG),
        (
            r"^[^\w\n]*(?:the )?(?:current|today'?s|present) (?:local )?(?:date(?: and time|/time)?|time|datetime)\b"
            r"[^\n?]*?\d[^\n?]*?(?:\n|[.;] +(?=[A-Z])|\Z)",
            re.IGNORECASE | re.MULTILINE,
        ),
        (r"^\s*(?:time ?zone|locale|platform|os|cwd|working directory)\s*[:=][^\n?]*\n", re.IGNORECASE),
        (r"^\s*(?:[Tt]oday|[Ii]t) is (?:[A-Z][a-z]+day\b[^.?\n]*|[^.?\n]*\b\d{4})(?:\.\s+|\n)", re.NOFLAG),
        (
            r"^\s*(?:当前|现在|今天)的?(?:日期|时间)?(?:是|为|：|:)[^\n？?]*?[\d日]+[^\n？?，,。]*[。\n，,]\s*",
            re.NOFLAG,
        ),
    )
)
_HOW = (
    r"(?:brief(?:ly)?|concise(?:ly)?|short(?:ly)?|clear(?:ly)?|direct(?:ly)?|detailed|thorough(?:ly)?|accurate(?:ly)?|"
    r"honest(?:ly)?|polite(?:ly)?|helpful|to the point|in detail|step[ -]by[ -]step|"
    r"(?:in|with|using|as|at most|no more than|under|within|up to|only) [\w ,'-]{1,40})"
)
_MANNER = re.compile(
    rf"(?:please |always |just |now |you (?:must|should) )*(?:(?:answer|reply|respond|explain|write|think)"
    rf"(?: (?:it|this|me|the question|your answer|in your answer))? {_HOW}(?:,?(?: and| but)? {_HOW}){{0,2}}"
    rf"|(?:be|keep (?:it|your answer|the answer)|make it) {_HOW}(?:,?(?: and| but)? {_HOW}){{0,2}}"
    r"|let'?s think step by step|(?:use|no|without) (?:markdown|emojis?|bullet points|preamble|citations)"
    r"|do not (?:use|explain|add|include) [\w ]{1,40}|think (?:hard|harder|carefully)|ultrathink"
    r"|cite your sources|if you do(?: not|n't) know,? (?:just )?say (?:so|(?:that )?you do(?: not|n't) know))"
    r"|请?(?:用|以)[^，。？?]{1,8}(?:回答|回复|作答)"
    r"|请?(?:尽量)?(?:简短|简要|简洁|详细|一步一步)地?(?:回答|回复|作答|思考)",
    re.IGNORECASE,
)
_SENTENCE = re.compile(r"(?<=[.!?。！？])\s+|(?<=[。！？])|\n+")


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
    for pattern in patterns:
        text, n = pattern.subn("", text)
        struck += n
    blocks = _blocks(text, _WRAPPED)
    for begin, _, _, end in reversed(blocks):
        text = text[:begin].rstrip(" ") + text[end:].lstrip()
    outside, struck = text, struck + len(blocks)
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
        text, struck = text.strip()[len(sentences.pop(0)) :], struck + 1
    while len(sentences) > 1 and _is_manner(sentences[-1]):
        text, struck = text.strip()[: -len(sentences.pop())], struck + 1
    return OwnWords(text.strip(), struck, outside.strip())


def _blocks(text: str, opening: re.Pattern[str]) -> list[tuple[int, int, int, int]]:
    """Blocks in tags that are closed, outer ones alone: begin, begin and end of the content, end."""
    found: list[tuple[int, int, int, int]] = []
    place, unclosed = 0, set()
    while tag := opening.search(text, place):
        place, closing = tag.end(), f"</{tag[1]}>"
        end = -1 if closing in unclosed else text.find(closing, place)
        if end < 0:
            unclosed.add(closing)
        else:
            found.append((tag.start(), tag.end(), end, place := end + len(closing)))
    return found


def _is_manner(sentence: str) -> bool:
    """True for a wish about the form of the answer, a greeting or thanks."""
    if len(sentence) > LONGEST_MANNER:
        return False
    return bool(_MANNER.fullmatch(sentence.strip(" \n.!。！"))) or utterance_kind(sentence) in ("greeting", "thanks")


def _all_of(*patterns: str) -> tuple[re.Pattern[str], ...]:
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern in patterns)


# every text that a rule matches has one of these: the rules skip most questions
SIGNS = (
    *("chat_history", "autocompletion", "facial expression", "from various models", "correct tool", "future context"),
    *("title", "a name", "标题", "question", "quer", "conversation", "history", "问题", "检索", "对话", "会话", "聊天"),
)
_ABOUT_CHAT = r"\b(?:chat|conversation|discussion|dialogue|session)\b"
_LENGTH = (
    r"\b\d+\s*(?:-|to|–)?\s*\d*[\s-]*(?:words?|characters?)\b|\b(?:four|five|ten)[\w\s-]{0,12}(?:words?|characters?)\b"
)
_MAKE = r"\b(?:generate|provide|create|write|give|suggest|produce|make|propose|list|come up with|return|output|extract)"
_ALONE = (
    r"stand[- ]?alone|stands? on its own|self[- ]contained|by itself|understood without|read without|without (?:the )?"
    r"(?:chat |conversation )?(?:history|context)|(?:do not|don't|never) answer|\bindependent\b"
)
TASKS: tuple[tuple[re.Pattern[str], ...], ...] = (
    _all_of(r"<chat_history>", r"</chat_history>"),  # Open WebUI: every task about the chat
    _all_of(r"^\s*#+ Task:\s+You are an autocompletion system\b"),
    _all_of(r"\breflect the speaker's likely facial expression through a fitting emoji\b"),
    _all_of(r"^\s*You have been provided with a set of responses from various models to the latest user query\b"),
    _all_of(r"^\s*Available Tools:", r"\byour task is to choose and return the correct tool\(s\)"),
    _all_of(r"^\s*Analyze this conversation and provide:", r"\bconcise title in the detected language\b"),  # LibreChat
    _all_of(r"\ba conversation that starts with:?", r"\bgenerate a concise title\b"),
    # an instruction for a title, about a chat, of a stated length, from any window
    _all_of(
        r"\b(?:generate|provide|create|write|give|suggest|produce|summari[sz]e|name)\b[^\n]{0,120}\b(?:title|name)\b",
        _ABOUT_CHAT,
        _LENGTH,
        r"\b(?:only|nothing else|no (?:other|extra|additional|quot|punctuation)|without (?:any|quot|punctuation)|"
        r"using title case|remove enclosing|max\b|or less|within)",
    ),
    _all_of(r"\bsummari[sz]e (?:the|our|this) (?:discussion|conversation)\b", r"\bas a prompt for future context\b"),
    _all_of(r"\b(?:summary|summari[sz]e)\b[^\n]{0,60}\b(?:conversation|chat)\b",
            r"\bso far\b|\bnew (?:summary|lines)\b",
            r"\b(?:your task is|progressively|detailed summary|only|continue)\b"),
    _all_of(rf"{_MAKE}\b[^\n]{{0,60}}\b(?:tags|follow[- ]?up (?:questions|prompts)|suggestions)\b", _ABOUT_CHAT,
            r"\b(?:json|only|nothing else|array|format)\b"),
    # steps of chains: a question that stands alone, several queries, a document that would answer
    _all_of(
        r"\b(?:re-?phras\w+|rewrit\w+|re-?formulat\w+|formulat\w+|condens\w+|generate|make|turn|convert|create|produce)\b"
        r"[^\n]{0,160}\b(?:question|query|message|input)\b",
        rf"{_ALONE}", r"\b(?:history|conversation|dialogue|follow[- ]?up|chat|context)\b",
    ),
    _all_of(
        rf"{_MAKE}\b[^\n]{{0,80}}\b(?:versions?|variations?|paraphrases|quer(?:y|ies)|sub-?questions|questions)\b",
        r"\b(?:original|user(?:'s)?|input|given|following) (?:question|query)\b|\bquestion below\b",
        r"\b(?:vector|retriev\w+|search(?:es| engine| quer\w+)?|documents?|different|multiple|several|one per line|"
        r"sub-?questions?|decompos\w+)\b",
    ),
    _all_of(r"\bsearch (?:query|queries|terms|keywords)\b", rf"{_MAKE}|\bconvert\b|\bdetermine\b",
            rf"{_ABOUT_CHAT}|\bhistory\b|\buser(?:'s)? (?:question|query|message|input)\b",
            r"\b(?:only|json|format|not answer|nothing else|respond with)\b"),
    _all_of(r"\bstep[- ]?back\b[^\n]{0,60}\bquestion\b", r"\b(?:more generic|more general|paraphrase|step[- ]back)\b"),
    _all_of(r"\b(?:write|generate|create|imagine)\b[^\n]{0,60}\b(?:passage|paragraph|document|article|text)\b[^\n]{0,40}"
            r"\b(?:answers?|to answer|answering)\b[^\n]{0,20}\bquestion\b|\bhypothetical (?:document|answer|passage)",
            r"^\W*(?:original |user )?(?:question|query)\W*:|\bquestion\b"),
    _all_of(r"\b(?:grade|grader|grading|assess|judge|evaluate)\b[^\n]{0,120}\b(?:relevan\w+|retrieved document)",
            r"\b(?:yes|no|score|json|true|false)\b", r"\bquestion\b"),
    _all_of(
        r"(?:生成|总结|概括|起|取|拟|给出)[^\n]{0,40}(?:标题|题目|主题|名称)",
        r"对话|会话|聊天",
        r"\d+\s*(?:个?字|字以内)|[一二两三四五六七八九十]+个?到?.{0,3}字|只|仅|直接|不要|无需|不超过",
    ),
    _all_of(r"(?:生成|给出|推荐|提出|列出|建议)[^\n]{0,30}(?:标签|追问|后续问题|相关问题|下一步)", r"对话|会话|聊天"),
    _all_of(r"(?:总结|概括|摘要|压缩)[^\n]{0,30}(?:对话|会话|聊天)|"
            r"(?:对话|会话|聊天)[^\n]{0,12}(?:总结|概括|压缩)",
            r"上下文|后续|记忆|摘要|\d+\s*字"),
    _all_of(r"提取[^\n]{0,12}(?:检索|搜索|查询|关键)词?"),
    _all_of(r"\bnew (?:conversation )?topic\b", r"\btitle\b", r"\bjson\b"),
    _all_of(r"(?:改写|重写|重新?表述|转换|补全|转化|生成|优化)[^\n]{0,60}(?:问题|查询|检索词|关键词|提问)",
            r"对话|会话|聊天|历史|上文|上下文|检索", r"独立|完整的?问题|不要回答|无需回答|检索|搜索|查询|指代"),
)  # fmt: skip
_TEXTS = (
    r"(?:contexts?|documents?|docs|passages?|sources?|excerpts?|extracts?|information|evidence|references?|kontext|"
    r"contexte|contexto|contesto|dokumente?|quellen?|documentos?|fuentes?|"
    r"search results?|results?|knowledge(?: base)?|paragraphs?|snippets?|texts?|materials?|articles?|data|chunks?|"
    r"facts|content)"
)
_HEADING = (
    rf"^[^\w\n]*(?:(?:retrieved|relevant|provided|given|reference|background|additional|some|supporting|the|related) )*"
    rf"(?:{_TEXTS}|background|what was found)(?: information)?(?: (?:is|are))?(?: (?:below|above|provided|\#?\d+))?"
    rf"[^\w\n]*(?:[:\]】}}#>=-]|\n)|^[^\n]{{0,60}}\b(?:{_TEXTS}|what (?:i|we) know)\s*:\s*$"
)
_QUESTION = (
    r"^[^\w\n]*(?:(?:user(?:'s)?|original|the|my|input|current) )*(?:question|query|user(?: input)?|input|human|q|"
    r"frage|pregunta|domanda|pergunta)[^\w\n]*[:\]}#>]|^[^\w\n]*(?:用户)?(?:问题|提问)[^\w\n]*[:：】\]]|</?(?:user_)?(?:question|query)>"
)
_USE = (
    r"\b(?:us(?:e|ing)|based(?: \w+)? (?:up)?on|by|from|given|with|read|consider(?:ing)?|according to|per|referring to|"
    r"refer to|grounded in|rely(?:ing)?(?: \w+)? on|limited to|reference|are given|have access to|here (?:is|are))\b"
)
_OF_CHINESE = r"(?:内容|资料|信息|文档|上下文|片段|材料|段落|文本|知识|文章|背景|检索结果|搜索结果|文献)"
_TAGGED = re.compile(
    r"<((?:search_|retrieved_?|reference_?|relevant_)?(?:contexts?|documents?|docs|passages?|sources?|results?|chunks?|"
    r"excerpts?|knowledge\w*|references?|quotes?|evidence|data|snippets?|paragraphs?))\b[^<>]*>",
    re.IGNORECASE,
)
_RULE = r"[=\-#*\"'`~_]{3}"
_M = re.IGNORECASE | re.MULTILINE
_PASSAGES: tuple[tuple[re.Pattern[str], ...], ...] = tuple(
    tuple(re.compile(pattern, _M) for pattern in rule)
    for rule in (
        (_HEADING, _QUESTION),
        (rf"{_USE}[^.\n]{{0,60}}?\b(?:following|below|above|provided|given|retrieved|supplied|these|pieces|found)\b"
         rf"[^.\n]{{0,40}}?\b{_TEXTS}\b|\bretrieved {_TEXTS}\b|\b{_TEXTS} (?:provided|given|retrieved|below|above)\b",
         r"\n"),
        (rf"^{_RULE}[^\n]*\n(?:(?!{_RULE}).*\n){{1,99}}?{_RULE}", _QUESTION),
        (r"^[^\w\n]*(?:\[(?:doc|document|source|context|passage)?\W?\d+\]|(?:doc|document|source|passage)\W?\d+\W)[^\n]{20,}",
         _QUESTION),
        (rf"(?:根据|基于|参考|结合|使用|利用|依据|以下是|下面是)[^。\n]{{0,16}}(?:以下|下面|下述|上述|上面|已知|提供的|给定的?|检索到?的?|参考|"
         rf"知识库)?[^。\n]{{0,8}}{_OF_CHINESE}[^。\n]{{0,20}}(?:回答|作答|[:：\n])|已知信息|(?:参考|检索|背景|相关){_OF_CHINESE}\W*[:：】\n]|"
         r"知识库(?:内容)?\W*[:：】\n]",),
        (r"\[\[ ## context ## \]\]",),
        (r"^[^\w\n]*Paragraphs?\W*:|^-+(?:knowledge base|context|data tables|documents?)-+",
         r"\b(?:answer|question|query)\b"),
    )
)  # fmt: skip
_GIVEN = re.compile(
    rf"{_USE}[^.\n]{{0,60}}?\b(?:following|below|provided|given|retrieved|supplied|pieces of|(?:is|are) the)"
    r"(?: (?!to\b)[\w-]+){0,2} (?:contexts?|documents?|passages?|sources?|excerpts?|"
    r"search results?|knowledge(?: base)?|snippets?|chunks?)\b|"
    r"^[^\w\n]*(?:(?:retrieved|relevant) )?(?:contexts?|documents?|passages|search results|knowledge base)[^\w\n]*"
    r"(?:[:\]】]|\n)|"
    r"^[^\n]{0,60}\b(?:contexts?|documents?|passages|search results|knowledge base)\s*:\s*$|"
    rf"(?:根据|基于|参考|使用)[^。\n]{{0,12}}(?:以下|下面|已知|检索)[^。\n]{{0,8}}{_OF_CHINESE}|已知信息\W*[:：\n]|知识库\W*[:：】\n]",
    _M,
)
SHORTEST = 60  # characters of a prompt that may hold passages, beside the words that say so
_FILL_IN = re.compile(
    r"<[|｜]?[ _]?fim[ _▁-]|<[|｜]fim|<(?:PRE|SUF|MID|fim\w*|FILL_ME|fill)>|\[(?:SUFFIX|PREFIX|MIDDLE)\]|"
    r"<[|｜](?:prefix|suffix|middle|code_(?:prefix|suffix|middle)|repo_name|file_sep)[|｜]>|<file_sep>"
)


def no_question(asked: str, systems: Iterable[str] = ()) -> NoQuestion | None:
    """Why a message is no question of a user; None for one. ``systems``: texts of the system's messages."""
    systems = list(systems)
    if ("<" in asked or "[" in asked) and _FILL_IN.search(asked):
        return "fill-in"
    if any(map(_is_task, map(_ends, (asked, *systems)))):
        return "client-task"
    if holds_passages(asked) or any(map(_gives_passages, map(_ends, systems))):
        return "own-passages"
    return None


@functools.lru_cache(maxsize=256)  # a session sends its system's message again and again
def _is_task(text: str) -> bool:
    """True for the system's message or the user's last one that is a program's own instruction."""
    lowered = text.lower()
    return any(sign in lowered for sign in SIGNS) and any(
        all(pattern.search(text) for pattern in rule) for rule in TASKS
    )


def holds_passages(text: str) -> bool:
    """True for a prompt with passages in it, told by its tags, its headings or its instruction to use them."""
    text = _ends(text)
    if len(text) >= SHORTEST and any(end - begin >= SHORTEST // 2 for begin, _, _, end in _blocks(text, _TAGGED)):
        return True
    for rule in _PASSAGES if len(text) >= SHORTEST else ():
        found = [pattern.search(text) for pattern in rule]
        if all(found) and len(text) - sum(len(match[0]) for match in found if match) >= SHORTEST:
            return True
    return False


@functools.lru_cache(maxsize=256)
def _gives_passages(system: str) -> bool:
    """True for a system's message that names passages and has text behind; tools and rules alone are none."""
    if _blocks(system, _TAGGED):
        return True
    named = _GIVEN.search(system)
    behind = system[named.end() - 1 :] if named else ""
    return "\n" in behind and len(behind.strip()) >= SHORTEST


def _ends(text: str) -> str:
    return text if len(text) <= 2 * LONGEST_END else f"{text[:LONGEST_END]}\n{text[-LONGEST_END:]}"
