"""Grading of answers: the only place that decides what "correct" means, for labels and for end-to-end scores.

Three rules (KBM, section 4.2): ``exact`` (NaturalQuestions, TriviaQA), ``contains`` (the rest), ``option`` (multiple
choice). Texts are compared after :func:`normalise`; traditional and simplified Chinese characters are alike. Exact
match and token F1 of short answers, as HotpotQA and SQuAD report them, use the same normalisation.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import regex

from kbtrain.answers.chinese import CJK, has_chinese, simplified
from kbtrain.answers.numbers import NUMERAL
from kbtrain.answers.writing import UNIT, has_unspaced, without_ignored
from kbtrain.errors import UserError
from kbtrain.records import Question

Verdicts = Mapping[str, bool | None]  # normalised answer -> what a judge said of it; None: it abstained

NORMALISATION = "nfkc-casefold-punctuation-signs-articles-spaces/4"
RULES = {"normalisation": NORMALISATION, "options": "letters-texts-prefixes/4"}  # noted beside labels: others are old
_CHINESE = {"chinese": "simplified/3"}  # noted where it can matter, so that other labels stay what they are
_UNSPACED = {"unspaced": "characters/1"}  # Japanese, Korean, Thai and their kin, noted likewise
_ARTICLES = {"a", "an", "the"}
_CJK = regex.compile(rf"([{CJK}]|{UNIT})")
_CJK_OR_NUMERAL = regex.compile(rf"({NUMERAL}+|[{CJK}]|{UNIT})")


_SIGN = re.compile(  # C++, C#, A+; blood group O-; -5, but not F-16 or 1990-95
    r"(?<=[^\W\d_])(?:\+{1,2}|#)(?![\w+#])|(?<![^\W_])(?:ab?|b|o)-(?![\w-])|(?<![\w.)\]-])-(?=\d)"
)
_MINUS = re.compile(r"(?<!\d)(?<!\d )\b(?:minus|negative)\s+(?=\d)|负(?=\d)")

_THOUSANDS = re.compile(r"(?<!\d)\d{1,3}(?:[,']\d{3})+(?!\d)")  # 1,000 and 1'000 are 1000; "1990,1991" are two years


def normalise(text: str) -> str:
    """NFKC (full to half width), case folded, punctuation and symbols to spaces, articles dropped, spaces folded.

    Signs that make another answer stay: "C++", "C#", "A+", "-5" ("minus 5" is the same). Chinese characters become
    words of their own, so that "contains" is over characters there; so do runs of katakana and the characters of
    :data:`~kbtrain.answers.writing.UNSPACED` (Korean, Thai ...). A text that would vanish (gold "A", "The The") is
    kept whole: an empty gold answer would match everything, and "the" nearly so. Characters that nobody sees (soft
    hyphens, zero-width spaces) are dropped.
    """
    return _without_articles(_words(text)) or _folded(text).strip()


def _without_articles(words: Sequence[str]) -> str:
    """Words in a row. An article stands before a word, "a" before no Chinese one: "Vitamin A" and "A型" have none."""
    behind = (*words[1:], "")[: len(words)]
    without = [
        word
        for word, after in zip(words, behind, strict=True)
        if word not in _ARTICLES or not after or (word != "the" and _CJK.match(after))
    ]
    return " ".join(words if without == ["the"] else without)


@functools.lru_cache(maxsize=512)
def readings(text: str) -> tuple[str, ...]:
    """The normalised text with Chinese numerals whole, and the same with its articles where that differs.

    Both are compared where one text stands in another: of "Vitamin A" and "Lin'an" the last word is no article, and
    behind them in a sentence only the second reading still shows it. A Chinese numeral is one word there, as one in
    digits is: 二月 is not in 十二月.
    """
    words = _words(text, _CJK_OR_NUMERAL)
    return tuple(dict.fromkeys((_without_articles(words), " ".join(words)))) if words else (normalise(text),)


_RAISED = re.compile("(?<=[0-9])(?=[\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u00bc-\u00be\u2150-\u215e])")


def _folded(text: str) -> str:
    text = _RAISED.sub(" ", without_ignored(text))  # "8½" is no 81/2, 10 to the 8th no 108
    return unicodedata.normalize("NFKC", text).casefold().replace("\u2212", "-")


@functools.lru_cache(maxsize=512)  # gold answers and options come back with every answer to their question
def _words(text: str, apart: regex.Pattern[str] = _CJK) -> tuple[str, ...]:
    """The words that are compared, articles among them; ``apart``: what is a word without spaces around it."""
    text = _MINUS.sub(" -", _folded(text))
    text = apart.sub(r" \1 ", text)
    text = _THOUSANDS.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    signs = {i for found in _SIGN.finditer(text) for i in range(*found.span())}
    kept = (
        c if unicodedata.category(c)[0] in "LNM" or i in signs or _decimal_point(text, i) else " "
        for i, c in enumerate(text)
    )
    return tuple("".join(kept).split())


def _decimal_point(text: str, i: int) -> bool:
    inside = 0 < i < len(text) - 1
    return text[i] == "." and inside and text[i - 1].isdecimal() and text[i + 1].isdecimal()


def contains(answer: str, gold: str) -> bool:
    """True if the gold answer's words occur in the answer in a row: "10" is not in "1066", "C" not in "C++".

    Nor is a Chinese numeral in a longer one (四 in 十四, 二月 in 十二月).
    """
    answer, (gold,) = _alike(answer, (gold,))
    return _holds(answer, gold)


def _holds(answer: str, gold: str) -> bool:
    """As :func:`contains`, by the very characters."""
    if not _words(gold):
        return bool(gold.strip()) and _folded(gold).strip() in _folded(answer)
    return any(f" {needle} " in f" {hay} " for needle in readings(gold) for hay in readings(answer))


_OPENING, _CLOSING = "[{\u3010\u3014\u3008\u300a<", "]}\u3011\u3015\u3009\u300b>"
_SIGNS = str.maketrans(
    {
        **dict.fromkeys(_OPENING, "("),
        **dict.fromkeys(_CLOSING, ")"),
        **dict.fromkeys('*`$"\u201c\u201d\u300c\u300d\u300e\u300f', " "),
        "\u3002": ".",
        "\u3001": ",",
        "\u2019": "'",
    }
)
_COMMAND = re.compile(r"\\(?:boxed|fbox|text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_TAG = re.compile(r"<(\w+)>(.*?)</\1>", re.DOTALL)
_QUOTE = re.compile(r"(?<![A-Za-z])'|'(?![A-Za-z])|(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])")

# a letter that is none of a word: "A" and "I" are words themselves, so few words may follow those
_BECAUSE = r"(?:because|since|as|for|due|which|that|is|was|and|or|but|not)\b"
_UPPER = rf"([B-HJ-Z](?![A-Za-z0-9'&+#/])|[AI](?![A-Za-z0-9'&+#/])(?!\s+(?!(?i:{_BECAUSE}))[A-Za-z]))"
_LOWER = r"([a-z](?=\s*(?:[):,;]|\.(?!\w)|$)))"
_LETTER = rf"\(?\s*(?:{_UPPER}|{_LOWER})"
_HAN_LETTER = r"\(?\s*([A-Za-z])(?![A-Za-z0-9])"
_DENIED = r"(?:is|are|was)\s+(?:not\b|incorrect|wrong|false)|isn't|makes no\b|(?:选?项)?(?:是|为)?(?:不|错|有误)"
_WRONG = rf"(?!\s*[.)]?\s*(?i:{_DENIED}))"
_LINK = (
    r"[\s:.,=>(-]*(?i:(?:is|was|be|would be|should be|must be|will be|has to be)\b[\s:,=(-]*)?"
    r"(?i:(?:the|most likely|likely|probably|definitely|clearly|indeed|correct|right|option|choice|letter|answer)"
    r"\b[\s:,(-]*)*"
)
_NOT = r"(?<!not )(?<!n't )(?<!never )(?<!wrong )(?<!incorrect )"
_HAN_NOT = r"(?<![不别非未勿误])(?<!不正确)(?<!错误的)"
_HAN_LINK = r"(?:应该|应当|应|可能|就|只能|正确|的)*(?:是|为|选择|选|填)*[\s:(,.]*(?:选项|选|[\s:(])*"
_FIRST = re.compile(
    rf"^[\W_]*(?:([A-Z])(?=\s*[.](?!\w\.)|\s*[):,;=!]|\s*[-\u2013\u2014]+\s|\s*$|\s*\n|\s+(?i:{_BECAUSE}))"
    r"|([a-z])(?=\s*[):!]|\.(?!\w)|\s*$)"
    r"|([A-Za-z])(?=\s*(?:选项|项|因为|由于)))" + _WRONG
)
_CLAIMS = tuple(
    re.compile(pattern + _WRONG)
    for pattern in (
        rf"{_NOT}\b(?i:answers?|ans)\b(?i:\s+(?:to|for)\b[^.:\n]{{0,80}}?\bis\b)?{_LINK}{_LETTER}",
        rf"{_NOT}\b(?i:correct|right|best)\s+(?i:option|choice|letter|one)\b{_LINK}{_LETTER}",
        r"(?<![\w'])\(?([A-Za-z])[.)]?\)?\s+(?i:is|was|must be|should be)\s+(?i:the\s+|most likely\s+|only\s+|best\s+)*"
        r"(?i:correct|right|true|answer)\b",
        rf"{_HAN_NOT}(?:答案\)?|(?<![\u4e00-\u9fff])(?:回答|答)(?=\s*[:是])|正确的?(?:选项|是)){_HAN_LINK}{_HAN_LETTER}",
        r"(?<![A-Za-z0-9])([A-Za-z])\)?\s*(?:选项|项)?(?:是|为|才是)?最?(?:正确|对的|对(?=\W|$)|答案)",
    )
)
_MENTIONS = tuple(
    re.compile(pattern + _WRONG)
    for pattern in (
        rf"{_NOT}\b(?i:option|choice|letter|select(?:ed)?|choose|chose|pick(?:ed)?|go with)(?![sn]\b)"
        rf"{_LINK}{_LETTER}",  # "options" and "chosen" end in no letter of an option
        rf"\b(?i:it is|it's|it must be|it would be|this is|that is|therefore|thus|hence|so|i think|i believe|i'd say"
        rf"|i would say)\b[\s:,(]*{_LETTER}(?=\s*(?:[.):,;]|$|\n))",
        rf"{_HAN_NOT}(?<!还)(?:选项|选择|选|应为|应该是|是){_HAN_LINK}{_HAN_LETTER}",
    )
)
_HEDGE = "perhaps|maybe|possibly|probably|potentially|alternatively|else|likely|could be|might be|may be|even"
_SECOND = re.compile(
    r"^\s*[.)]?\)?\s*(?:[,;/&+|]|(?i:and/or|or|and|" + _HEDGE + r")\b|或者?|和|与|及|以及|还是)[\s(]*"
    r"(?i:(?:or|and|also|option|answer|" + _HEDGE + r")\b[\s(,]*|选项|(?:或|也许|可能|也可能|或许|大概)是?)*"
    rf"(?:{_UPPER}|([a-z])(?=\s*[).,;:]|\s*$))"
)
_PREFIX = re.compile(r"[\W_]*[Aa]\s*:\s*(?:(?i:option|choice|letter)\s+|选项|选)?(?=\S)")  # "A:" for "answer:"
_ONLY_LETTERS = re.compile(r"[\W_]*(?:[A-Z](?:[\W_]+|$)){2,}", re.DOTALL)
_REFUSED = re.compile(r"(?i:\b(?:not|isn't|wasn't|never|nor|neither|except)\b|[不非别没])[^.,;:]{0,12}$")


def option_letter(answer: str, options: tuple[str, ...]) -> str | None:
    """The option that an answer names, by its letter or by its text; None if it names none, or more than one.

    A letter counts alone ("B", "(b)", "**B**"), in front ("B. Paris"), where the answer says that it is the answer
    ("The correct answer is: B", "B is correct", "答案是B"), and, without one of these, where it is spoken of
    ("option B", "选B"). Without any letter, the full text of one option counts if no other option's text stands
    there and nothing is asked back. "A:" before another letter, or another option's whole text, means "answer:".
    "A or B", "A, B" and "A, perhaps B" name two; a list of options below an answer of its own line says nothing more.
    """
    letters = [chr(65 + i) for i in range(len(options))]
    text = _undressed(answer)
    if len(text) == 1 and text.upper() in letters:
        return text.upper()
    equal = [letter for letter, option in zip(letters, map(_undressed, options), strict=True)
             if text.rstrip(".") == option.rstrip(".")]  # fmt: skip
    whole = [letter for letter, option in zip(letters, options, strict=True) if _same(text, letter, option)]
    for same in (equal, whole):  # "Aa" is not "aa", nor "x + 1" "x - 1", though their words are the same
        if len(same) == 1:
            return same[0]
    prefixed = _behind_prefix(text, letters, options)
    if prefixed:
        return prefixed
    if _ONLY_LETTERS.fullmatch(text) and len(set(text) & set(letters)) > 1:
        return None
    head, _, rest = text.partition("\n")
    if len(_listed(rest, letters, options)) > 1 and not _listed(head, letters, options):
        above = option_letter(head, options)  # "B", and the options told again below
        if above and not _named(_CLAIMS, rest, letters):
            return above
    first = _named((_FIRST,), text, letters)
    said = _named(_CLAIMS, text, letters)
    claims = first | said
    listed = _listed(text, letters, options)
    for found in (
        claims if said or len(listed) < 2 else listed,
        listed,
        _named(_MENTIONS, text, letters),
        _by_text(text, letters, options),
    ):
        if found:
            return next(iter(found)) if len(found) == 1 else None
    return None


def _behind_prefix(text: str, letters: list[str], options: tuple[str, ...]) -> str | None:
    """The one option that stands behind "A:", by its letter or as all the rest; None without such a prefix."""
    prefix = _PREFIX.match(text)
    rest = text[prefix.end() :] if prefix else ""
    if not rest or _same(rest, "A", options[0]):
        return None
    found = _named((_FIRST, *_CLAIMS), rest, letters) | _listed(rest, letters, options)
    found |= {letter for letter, option in zip(letters, options, strict=True) if _same(rest, letter, option)}
    return next(iter(found)) if len(found) == 1 else None


def _undressed(answer: str) -> str:
    """An answer without markdown, TeX, tags and quotes, its brackets and full stops made plain."""
    text = unicodedata.normalize("NFKC", answer)
    for wrapping, inside in ((_COMMAND, r"(\1)"), (_COMMAND, r"(\1)"), (_TAG, r"\2")):
        text = wrapping.sub(inside, text)
    return _QUOTE.sub(" ", text.translate(_SIGNS)).strip()


def _same(text: str, letter: str, option: str) -> bool:
    """True if an answer is an option's text, or its letter and text; the "A" of "A. Germany" is no article."""
    if _words(text) in (_words(option), _words(f"{letter} {option}")):
        return True
    return not _FIRST.match(text) and normalise(text) == normalise(option)


def _named(patterns: Iterable[re.Pattern[str]], text: str, letters: list[str]) -> set[str]:
    """The letters that patterns find, each with those that stand behind it in a list."""
    found = set()
    for match in (match for pattern in patterns for match in pattern.finditer(text)):
        group = next(i for i, letter in enumerate(match.groups(), 1) if letter)
        letter: str | None = match[group]
        rest = text[match.end(group) :]
        while letter and letter.upper() in letters:
            found.add(letter.upper())
            second = _SECOND.match(rest)
            letter = second and next(filter(None, second.groups()))
            rest = rest[second.end() :] if second else ""
    return found


def _listed(text: str, letters: list[str], options: tuple[str, ...]) -> set[str]:
    """The options that stand in an answer with letter and text: "A. Spain B. Austria" lists two."""
    found = set()
    for letter, option in zip(letters, options, strict=True):
        sign = r"\s*[.):,]" if letter in "AI" else r"\s*[.):,]?"  # "a noble gas" has an article
        label = rf"(?<![^\W_]){letter}{sign}\s*(?i:{re.escape(_undressed(option))})(?![A-Za-z0-9])"
        found |= {letter} if re.search(label, text) else set()
    return found


def _by_text(text: str, letters: list[str], options: tuple[str, ...]) -> set[str]:
    """The options whose text an answer holds and does not deny; not those inside a longer one ("Guinea-Bissau").

    Empty for a question: it repeats what was asked.
    """
    if "?" in text:
        return set()
    held = [(letter, option) for letter, option in zip(letters, options, strict=True) if _holds(text, option)]
    alone = {
        letter: option
        for letter, option in held
        if not any(option != other and _holds(other, option) for _, other in held)
    }
    return {letter for letter, option in alone.items() if not _denied(text, option)}


def _denied(text: str, option: str) -> bool:
    place = text.casefold().find(unicodedata.normalize("NFKC", option).casefold())
    return place >= 0 and _REFUSED.search(text[:place]) is not None


def _alike(answer: str, golds: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """All in simplified characters where a gold answer is Chinese: only there can it matter."""
    texts = tuple(golds)
    return (simplified(answer), tuple(map(simplified, texts))) if any(map(has_chinese, texts)) else (answer, texts)


def _in_chinese(question: Question) -> bool:
    return question.language == "zh" or any(map(has_chinese, (question.text, *question.answers, *question.options)))


def rules_of(questions: Iterable[Question]) -> dict[str, str]:
    """The rules that answers to these questions are graded and grouped by, to be noted and compared."""
    rules = dict(RULES)
    for question in questions:
        rules |= _CHINESE if _in_chinese(question) else {}
        rules |= _UNSPACED if any(map(has_unspaced, (question.text, *question.answers, *question.options))) else {}
        if len(rules) == len(RULES) + len(_CHINESE) + len(_UNSPACED):
            break
    return rules


def is_correct(question: Question, answer: str) -> bool:
    """Grade one answer by the question's own rule."""
    if question.grading == "option":
        return named_option(question, answer) in question.answers
    if question.grading == "exact":
        return exact_match(answer, question.answers) == 1
    return any(contains(answer, gold) for gold in question.answers)


def graded(question: Question, answer: str, verdicts: Verdicts | None = None) -> bool | None:
    """Verdict on an answer, by the question's own rule or by a judge's verdicts.

    Multiple choice keeps its own rule: a judge would compare an option's letter with its text. None where the judge
    abstained, and for a question without gold answers. An empty answer is wrong and is put before no judge. Raises
    :class:`UserError` for an answer without a verdict.
    """
    if not question.answers:
        return None
    if verdicts is None or question.grading == "option":
        return is_correct(question, answer)
    if is_empty(answer):
        return False
    key = normalise(answer)
    if key not in verdicts:
        raise UserError(
            f"question '{question.id}': no verdict on the answer {answer!r:.60}; run data_gen/judge.py again"
        )
    return verdicts[key]


def group_key(question: Question, answer: str) -> str:
    """Answers with the same key count as the same answer for certainty (KBM, equation 1)."""
    if is_empty(answer):
        return ""
    letter = named_option(question, answer) if question.grading == "option" else None
    return letter or normalise(simplified(answer) if _in_chinese(question) else answer)


def named_option(question: Question, answer: str) -> str | None:
    """As :func:`option_letter`, of a question's options; traditional and simplified Chinese characters are alike unless
    these alone tell options apart (發 beside 髮)."""
    if not _in_chinese(question):
        return option_letter(answer, question.options)
    options = tuple(map(simplified, question.options))
    merged = len(set(options)) < len(set(question.options))
    very = option_letter(answer, question.options) if merged else None
    return very or option_letter(simplified(answer), options)


def is_empty(answer: str) -> bool:
    """True for a text that has nothing to compare after :func:`normalise`, as "", "...", "," and a zero-width space.

    It holds for answers, gold answers, aliases, questions and passages. A sign may be an answer ("+", "*", "!!!").
    Dots, commas, dashes, quotes, brackets and combining marks without a letter are empty.
    """
    return not any(c in _SIGNIFICANT or (unicodedata.category(c)[0] in "LNS" and c != "`") for c in _folded(answer))


_SIGNIFICANT = "!*#%&@/\\"


_CLOSED = {"yes", "no", "noanswer"}  # HotpotQA: such an answer is right or wrong, never partly right


def exact_match(answer: str, golds: Iterable[str]) -> float:
    """1 if the answer is one of the accepted ones after normalisation, else 0."""
    said, wanted = _alike(answer, golds)
    return float(normalise(said) in set(map(normalise, wanted)))


def token_f1(answer: str, golds: Iterable[str]) -> float:
    """The best F1 over the accepted answers, of words (Chinese: characters) with repeats."""
    said, wanted = _alike(answer, golds)
    return max((_f1(normalise(said), normalise(gold)) for gold in wanted), default=0.0)


def _f1(answer: str, gold: str) -> float:
    if answer != gold and (answer in _CLOSED or gold in _CLOSED):
        return 0.0
    said, wanted = answer.split(), gold.split()
    common = sum((Counter(said) & Counter(wanted)).values())
    return 2 * common / (len(said) + len(wanted)) if common else 0.0
