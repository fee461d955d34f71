"""Answers that name the gold one without giving it: denied ("not Paris"), one of several ("Paris or Rome"), or as a
part of another name ("Equatorial Guinea" for Guinea).

A gold answer counts where at least one of its places is claimed: of "Paris, not London" Paris is, London is not. A
place whose clause holds a word that may turn it round, in a way that no rule reads, gives no verdict.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kbtrain.answers import forms
from kbtrain.answers.words import ARTICLES, CJK_OR_NUMERAL, LISTS, any_of, patterns, read_data, without_articles, words
from kbtrain.answers.writing import has_chinese

# letters that no answer has: ends of a part and of a sentence, the latter followed by a mark where it is a question's
_COMMA, _STOP, _ASKED, _OPENED = "\ua66e", "\ua672", "\ua647", "\ua64b"
_BEHIND_STOP = {"?": _ASKED, "？": _ASKED, ":": _OPENED, "：": _OPENED}
_ENDS = frozenset((_COMMA, _STOP, _ASKED, _OPENED))
_MARKS = re.compile(
    r"(?P<comma>,(?!\s*\d{4}\b)(?!\d)|[()\u3001\uff0c\u2013\u2014]|\s-+\s)"
    r"|(?P<stop>[;:!?\n\u3002\uff1b\uff1a\uff01\uff1f]|(?<![\s.][A-Z])\.(?=\s|$|[\"'*]))"
)
# compared with an answer's words, which have no accents
_TURNING = {name: frozenset(map(forms.unaccented, terms)) | terms for name, terms in LISTS["turning"].items()}
_CONCLUDING = _TURNING["stating"]  # "it is Paris", behind another city
_IDLE = LISTS["yes_no"]["idle"] | LISTS["asking"]["english"] | _CONCLUDING
_DENYING = _TURNING["negators"] | {"t"}  # isn't
_OPPOSITES = [(frozenset(asked.split(", ")), contrary) for asked, contrary in LISTS["opposites"].items()]
_IT_IS = re.compile(r"(?:i (?:think|believe) )?(?:it|this|that|he|she|they)(?: is| was| s| are| were) ")
_COUNTED = re.compile(r"\bhow many (?:of (?:the |these |his |her )?)?(.*)")
# what follows up to a comma does not answer
_CONCEDING = _TURNING["conceding"]
_OTHERS = frozenset(("other", "others", "another"))
_ASKING = frozenset("which what where when whose whom".split())
_PAST, _NOW = frozenset({"was", "were", "had", "used"}), frozenset({"now", "today", "currently", "nowadays"})
_JOINS = _TURNING["joins"]
_SMALL = ARTICLES | {"l", "d", "c"}  # l'euro, d'Italia, c'est
_PART_BOUNDS = _ENDS | _JOINS | _TURNING["buts"]
_COMPARATIVE = rf"\b({any_of(LISTS['asking']['comparatives'])})\b"
_ONLY = re.compile(r"\b(?:is|was) (?:only|merely) ")
_SPEAKING = _TURNING["speaking"]
_FORMS = patterns("claim_")
_SAID = [[*map(re.compile, row)] for row in read_data("patterns.toml")["said"]["spans"]]
_WAS_LEFT = re.compile(r" (?:was|were) $")
_NOW_RIGHT = re.compile(rf"^(?: {_COMMA})?(?: (?:but|yet|now|today|until|and now|and is now|before|others))\b")
_DENIED_NEAR = re.compile(r" (?:not|\w+n t|never|neither|nor|rather than|instead of|other than|except) $")
_NOBODY = re.compile(r" (?:no one|none|nothing|nobody) (?:\w+ ){0,6}$")

_ALSO_CALLED = re.compile(rf"^ (?:{_COMMA} )?(?:also|formerly|better|commonly|otherwise|officially) ")

_RIGHT_ZH = re.compile(r"^(?:这个答案)?(?:是|就是)?(?:错误?的|不对|不正确|错误|有误)")
_PERHAPS_ZH = re.compile(r"可 能|也 许|或 许|大 概|说 不 定|要 么")

# Other places and persons whose name holds the name of one.
_CLOSER: dict[tuple[str, ...], set[tuple[str, ...]]] = {  # names that say the same, only closer
    ("korea",): {("south", "korea")},
    ("germany",): {("east", "germany"), ("west", "germany")},
}
_LONGER_NAMES = [words(name, CJK_OR_NUMERAL) for name in sorted(LISTS["parts"]["names"])]
# Part of a longer name -> these names, with the place of the part in them.
_PARTS: dict[tuple[str, ...], list[tuple[tuple[str, ...], int]]] = {}
for _name in _LONGER_NAMES:
    for _begin, _end in itertools.combinations(range(len(_name) + 1), 2):
        if _end - _begin < len(_name) and _name not in _CLOSER.get(_name[_begin:_end], ()):
            _PARTS.setdefault(_name[_begin:_end], []).append((_name, _begin))


class _Place(NamedTuple):
    """A gold answer's place among the words of an answer; ``within``: it is part of another name."""

    begin: int
    end: int
    within: bool


def claim(answer: str, golds: Iterable[str], question: str = "") -> bool | None:
    """True if an answer that holds one of the gold answers gives it; False if all of its places are denied, one of
    several candidates, or part of another name; None where no rule can tell. ``question``: its words tell what "is not
    the capital" denies."""
    for asked_for, form in _SAID:
        answer = form.sub(r"\1", answer) if asked_for.search(question) else answer
    if _compares_otherwise(answer, question):
        return None
    names = [tuple(form.split()) for gold in golds for form in forms.gold_readings(gold)]
    marked, raw = _words_with_ends(answer), forms.unaccented(answer)
    places = _places(marked, names)
    if not places:
        return True
    covered = {i for place in places for i in range(place.begin, place.end)}
    negative = _FORMS["negative"].search(question) is not None
    asked = _Asked.read(question)
    claimed = [
        place for place in places if not place.within and not _denied(marked, place, names, negative, asked.words, raw)
    ]
    if not claimed or _several(marked, claimed, covered):
        return False
    parts = _parts(marked)
    clear = (
        place
        for place in claimed
        if not _is_turned(marked, place, negative, question.lower())
        and not _is_of_another(marked, place, asked, raw)
        and not _says_opposite(marked, place, asked, parts)
        and not _is_overtaken(marked, place, asked, raw, parts)
        and not _is_behind_another(marked, place, asked, raw, covered)
        and not _is_corrected(marked, place, negative)
        and not _is_listed(marked, place, asked, raw, covered)
    )
    return True if next(clear, None) else None


def _compares_otherwise(answer: str, question: str) -> bool:
    """True if "shorter than" answers who is taller: which of two it gives takes a reader."""
    said = re.findall(rf"{_COMPARATIVE}(?: \w+){{0,2}} than\b", answer.lower()) if " than" in answer else []
    asked = re.findall(_COMPARATIVE, question.lower()) if said else []
    return bool(asked) and set(asked).isdisjoint(said)


class _Asked(NamedTuple):
    """What a question asks: its words, stems of those that name something or are no names, and of what it counts."""

    words: frozenset[str]
    named: frozenset[str]
    common: frozenset[str]
    counted: frozenset[str]

    @classmethod
    def read(cls, question: str) -> _Asked:
        asked, counted = words(forms.unaccented(question)), _COUNTED.search(question.casefold())
        common = words(forms.unaccented(" ".join(word for word in question.split() if not word[:1].isupper())))
        return cls(frozenset(asked), _stems(asked), _stems(common), _stems(counted[1].split()[:2] if counted else ()))


def _stems(terms: Iterable[str]) -> frozenset[str]:
    return frozenset(word[:5] for word in terms if len(word) > 3 and word not in _ASKING)


def _is_of_another(marked: Sequence[str], place: _Place, asked: _Asked, raw: str) -> bool:
    """True if a place may belong to something else: a relative, a longer name, another thing counted."""
    begin, end, _ = place
    before, behind = "".join(marked[begin - 1 : begin]) if begin else "", "".join(marked[end : end + 1])
    if before in ("after", "before") and before not in asked.words and not marked[begin][0].isdigit():
        return True
    relation = marked[begin - 2 : begin - 1] if before == "of" else marked[end + 1 : end + 2] if behind == "s" else []
    if not _TURNING["relations"].isdisjoint(relation):
        return True
    parts = [word for word, side in ((before, "before"), (behind, "behind")) if word in LISTS["parts"][side]]
    if (
        end - begin == 1
        and (marked[begin],) not in _CLOSER
        and any(part.capitalize() in raw and part not in asked.words for part in parts)
    ):
        return True
    start = max((i + 1 for i, word in enumerate(marked[:begin]) if word == _STOP), default=0)
    if marked[start] in _CONCEDING and _COMMA in itertools.takewhile(lambda word: word != _STOP, marked[end:]):
        return True
    if kind := _kind(marked[begin]):
        rivals = [i for i, word in enumerate(marked) if word.endswith(f"{kind}other") and marked[i - 1 : i] != ["of"]]
        aside = 0 in rivals and marked[1] == _COMMA and any(_is_candidate(word, asked) for word in marked[2:begin])
        if aside or (any(_counts(marked, i, asked) for i in rivals) and not _counts(marked, begin, asked)):
            return True  # 14 euro (half a day 28)
    return False


def _kind(word: str) -> str:
    """The end of a quantity's word, which quantities of a like unit have; "" for any other word."""
    match = re.search(r"(?<=\d)q\w+$", word)
    return match[0] if match else ""


def _counts(marked: Sequence[str], i: int, asked: _Asked) -> bool:
    """True if a number stands before what the question counts."""
    behind = itertools.takewhile(lambda word: not word[0].isdigit() and word != _COMMA, marked[i + 1 : i + 4])
    return not asked.counted.isdisjoint(_stems(behind))


def _says_opposite(marked: Sequence[str], place: _Place, asked: _Asked, parts: Sequence[range]) -> bool:
    """True if the word before a place, else behind it, is the opposite of a question's: "began in 1618" for an end."""
    part = next((part for part in parts if place.begin in part), range(place.begin, place.end))
    around = [marked[i] for i in (*reversed(range(part.start, place.begin)), *range(place.end, part.stop))]
    for sides in _OPPOSITES:
        for same, contrary in (sides, sides[::-1]):
            if not same.isdisjoint(asked.words) and contrary.isdisjoint(asked.words):
                nearest = next((word for word in around if word in same or word in contrary), "")
                if nearest in contrary:
                    return True
    return False


def _is_behind_another(marked: Sequence[str], place: _Place, asked: _Asked, raw: str, covered: set[int]) -> bool:
    """True if a place stands behind another candidate, in a part that shares no more words with the question: "Gauguin,
    who lived with Van Gogh"."""
    ends = [i for i, word in enumerate(marked[: place.begin]) if word in _PART_BOUNDS]
    if not ends:
        return False
    left, right = marked[ends[-1] + 1 : place.begin], marked[place.end : place.end + 8]
    if not _CONCLUDING.isdisjoint(left) and _IDLE.issuperset(left) and (not right or right[0] in _ENDS):
        return False
    own, given = len(asked.named & _stems([*left, *right])), {marked[i] for i in covered}
    capital = _is_capital(marked[place.begin], raw) and not any(map(str.isdigit, marked[place.begin : place.end]))
    for begin, end in itertools.pairwise([-1, *ends]):
        part = [word for word in marked[begin + 1 : end] if word not in _SMALL]
        aside = marked[end + 1 : end + 2] in ([_OPENED], [_ASKED]) or not _DENYING.isdisjoint(part)
        if not aside and (own == 0 or own < len(asked.named & _stems(part))):
            candidates = [word not in given and _is_candidate(word, asked) for word in part]
            if _names_another(part, candidates, raw, capital):
                return True
    return False


def _names_another(part: Sequence[str], candidates: Sequence[bool], raw: str, capital: bool) -> bool:
    """True if a part is a candidate, or names one behind its first word; ``capital``: a candidate has a capital."""
    if 0 < len(part) < 4 and all(candidates) and max(map(len, part)) > 3:
        return True
    behind = zip(part[1:], candidates[1:], strict=True)
    return capital and any(candidate and _is_capital(word, raw) for word, candidate in behind)


def _is_candidate(word: str, asked: _Asked) -> bool:
    """True for a word that may be another answer, or a part of one."""
    idle = word in asked.words or word in _IDLE or word in _SPEAKING or word in _JOINS
    return word.isalpha() and len(word) > 1 and not idle and word[:5] not in asked.named and not word.endswith("ly")


def _is_capital(word: str, raw: str) -> bool:
    return word.capitalize() in raw or word.upper() in raw


def _is_corrected(marked: Sequence[str], place: _Place, negative: bool) -> bool:
    """True if the answer takes a place back: "1215. Wait, that is wrong"."""
    behind = "".join(f" {word}" for word in marked[place.end :])
    return not negative and _FORMS["corrected"].search(behind) is not None


def _is_listed(marked: Sequence[str], place: _Place, asked: _Asked, raw: str, covered: set[int]) -> bool:
    """True if a place is one of several candidates: "Spain and France"."""
    capital = _is_capital(marked[place.begin], raw)

    def is_other(i: int) -> bool:
        return i not in covered and _is_candidate(marked[i], asked) and _is_capital(marked[i], raw) == capital

    def goes_on(i: int) -> bool:
        word = marked[i]
        return word == _COMMA or word in ARTICLES or is_other(i) or (word in asked.words and i not in covered)

    last = next((i for i in range(place.end, len(marked)) if not goes_on(i)), len(marked))
    if marked[place.end : place.end + 1] in ([_COMMA], ["and"]) and marked[last : last + 1] == ["and"]:
        return last + 1 < len(marked) and is_other(last + 1)
    return marked[place.begin - 1 : place.begin] == ["and"] and place.begin > 1 and is_other(place.begin - 2)


def _parts(marked: Sequence[str]) -> list[range]:
    """The sentences, and the halves of those that "but", "while" or ", and" joins; without a heading "Answer"."""
    text = "".join(f"{word} " for word in marked)
    ends = [text.count(" ", 0, match.start()) for match in _FORMS["part_ends"].finditer(text)]
    return [range(begin + 1, end) for begin, end in itertools.pairwise([-1, *ends, len(marked)])]


def _is_overtaken(marked: Sequence[str], place: _Place, asked: _Asked, raw: str, parts: Sequence[range]) -> bool:
    """True if another part seems to answer: the first one, if it is nearer to the question, or a conclusion."""
    text, kind = " ".join(marked), _kind(marked[place.begin])
    for conclusion in _FORMS["conclusion"].finditer(text):
        subject, candidate = conclusion["subject"], conclusion["candidate"]
        said = candidate.endswith(f"{kind}other") if kind else candidate.isalpha() and candidate.capitalize() in raw
        named = subject[:5] in asked.common and candidate not in asked.words and said
        if (subject == "answer" or conclusion["so"] or named) and place.end <= text.count(
            " ", 0, conclusion.start("candidate")
        ):
            return True
    parts = [part for part in parts if part and marked[part.start : part.stop] != ["answer"]]
    own = next((i for i, part in enumerate(parts) if place.begin in part), -1)
    return (
        own >= 0
        and "or" not in asked.words
        and any(
            i != own and _is_nearer(marked, parts[i], parts[own], place, asked)
            for i in (0, own + 1)
            if i < len(parts) and (i < own or marked[parts[own].stop : parts[own].stop + 1] == ["but"])
        )
    )


def _is_nearer(marked: Sequence[str], first: range, own: range, place: _Place, asked: _Asked) -> bool:
    """True if a part of an answer fits the question better than the part that a place is in."""
    begun, stated = (marked[part.start : part.stop] for part in (first, own))
    if _ASKED in stated[:1] or "answer" in begun or not _TURNING["negators"].isdisjoint(begun):
        return False
    kind = _kind(marked[place.begin])
    if not _TURNING["concluding"].isdisjoint(stated) or not any(
        word.endswith(f"{kind}other" * bool(kind)) for word in begun
    ):
        return False
    said = _SPEAKING.isdisjoint(begun) and all(map(str.isalpha, begun))
    bare = len(begun) < 3 and (said or bool(kind)) and asked.named.isdisjoint(_stems(begun))
    adds = not _stems(begun) <= asked.named
    nearer = not _OTHERS.isdisjoint(stated) or len(asked.named & _stems(begun)) > len(asked.named & _stems(stated))
    return bare or (adds and nearer) or _IT_IS.match(" ".join(begun)) is not None


def _is_turned(marked: Sequence[str], place: _Place, negative: bool, question: str) -> bool:
    """True if the clause of a place may say the contrary; a bound is none where it is asked for: after how many."""
    begin, end, _ = place
    before = "".join(marked[begin - 1 : begin]) if begin else ""
    if before in _TURNING["towards"] or (before in _TURNING["beside"] and not marked[begin][0].isdigit()):
        return True
    left = list(itertools.takewhile(lambda word: word not in _PART_BOUNDS, reversed(marked[:begin])))[::-1]
    right = list(itertools.takewhile(lambda word: word not in _PART_BOUNDS, marked[end:]))
    if _FORMS["affirmed_left"].search(f" {' '.join(left)} "):
        return False
    behind = marked[end + len(right) :]
    if behind[1:2] == [_ASKED]:
        return True
    if not marked[begin].isascii() and not negative and _FORMS["turns_zh"].search("".join([*left, " ", *right])):
        return True
    elsewhere = _TURNING["negators"].isdisjoint({*left, *right}) and not _TURNING["negators"].isdisjoint(marked)
    sentence = itertools.takewhile(lambda word: word != _STOP, marked[end:])
    if (negative and elsewhere and right) or _ONLY.search(" ".join(sentence)):
        return True
    bound = _FORMS["bound"].search(f" {' '.join(left)} ")
    said = bound[0].strip() if bound else ""
    asked = re.search(rf"\b{said} (?:how|what|which)\b", question) or (said.startswith("at ") and said in question)
    if marked[begin][0].isdigit() and ((bound and not asked) or _FORMS["beyond"].match(" ".join(right))):
        return True
    if _TURNING["plans"] & {*left, *right} and "but" in behind[:2]:
        return True
    if not _TURNING["buts"].isdisjoint(behind[1:2]) or (left[-1:] == ["from"] and right[:1] in (["to"], ["into"])):
        return True
    if _PAST & {*left, *right} and (_NOW & {*right, *behind} or (behind and {"thought", "believed"} & {*left, *right})):
        return True
    if left[-1:] in (["about"], ["of"]) and behind[:1] == ["but"] and not _TURNING["negators"].isdisjoint(behind[:8]):
        return True
    return any(_turns(clause, i, negative) for clause in (left, right) for i in range(len(clause)))


def _turns(clause: Sequence[str], i: int, negative: bool) -> bool:
    """True if the word at ``i`` may turn its clause round; ``negative``: the question holds a "not" itself."""
    word, before, behind = clause[i], "".join(clause[i - 1 : i]) if i else "", "".join(clause[i + 1 : i + 2])
    if word == "may":
        return not (
            before in {"in", "of", "since", "until", "by", "during"}
            or f"{before} "[0].isdigit()
            or behind[:1].isdigit()
        )
    if word in ("would", "d"):
        return behind in ("have", "ve")
    if word in _TURNING["doubts"]:
        return True
    idle = behind in {"only", "just", "merely", "simply", "doubt", "until", "more", "less"} or behind[:1].isdigit()
    return (word in _TURNING["negators"] or (word == "t" and before.endswith("n"))) and not negative and not idle


def _words_with_ends(text: str) -> list[str]:
    """Words of an answer with the ends of its parts and sentences."""
    text = forms.unify_spelling(forms.unaccented(text))
    text = _MARKS.sub(lambda mark: f" {_COMMA if mark['comma'] else _STOP} {_BEHIND_STOP.get(mark[0], '')} ", text)
    if "/" in text:
        text = re.sub(r"(?<=[a-z])/(?=[A-Z][a-z])", " or ", text)
    return without_articles(forms.converted(words(text, CJK_OR_NUMERAL))).split()


def _places(marked: Sequence[str], names: Iterable[tuple[str, ...]]) -> list[_Place]:
    """Each name's places, the marks between words aside."""
    indices = [i for i, word in enumerate(marked) if word not in _ENDS]
    bare = [marked[i] for i in indices]
    text = f" {' '.join(bare)} "
    places = []
    for name in dict.fromkeys(names):
        if f" {' '.join(name)} " not in text:
            continue
        for begin in range(len(bare) - len(name) + 1):
            if tuple(bare[begin : begin + len(name)]) == name:
                is_part = any(
                    begin >= ahead and tuple(bare[begin - ahead : begin - ahead + len(longer)]) == longer
                    for longer, ahead in _PARTS.get(name, ())
                )
                places.append(_Place(indices[begin], indices[begin + len(name) - 1] + 1, is_part))
    return places


def _denied(
    marked: Sequence[str],
    place: _Place,
    names: Sequence[tuple[str, ...]],
    negative: bool,
    question_words: frozenset[str],
    raw: str,
) -> bool:
    """True if an answer denies a place, or names another candidate beside it."""
    begin, end, _ = place
    left = f" {' '.join(marked[max(0, begin - 14) : begin])} "
    right = f" {' '.join(marked[end : end + 24])}"
    if has_chinese(left + right) or has_chinese(marked[begin]):
        chinese_left, chinese_right = left.replace(" ", ""), right.replace(" ", "")
        if (
            _FORMS["left_zh"].search(chinese_left)
            or (_RIGHT_ZH.search(chinese_right) and not chinese_right.endswith("吗"))
            or _FORMS["or_right_zh"].search(chinese_right)
            or _FORMS["or_left_zh"].search(chinese_left)
        ):
            return True
    if _FORMS["affirmed_left"].search(left):
        return False
    less = _FORMS["less_left"].search(left)
    if less and not marked[begin][0].isdigit() and not _NOBODY.search(left[: less.start() + 1]):
        return True
    if (_DENIED_NEAR if negative else _FORMS["denied_left"]).search(left):
        return True
    if (_FORMS["former_left"].search(left) and _NOW_RIGHT.search(right)) or (
        _WAS_LEFT.search(left) and right[:7] == " until "
    ):
        return True
    if not negative:
        negation = _FORMS["not_what"].search(right)
        if _FORMS["denied_right"].search(right) or (
            negation and len(negation[1]) > 2 and negation[1] in question_words
        ):
            return True
    return _one_of_several(left, right, names, raw)


def _one_of_several(left: str, right: str, names: Sequence[tuple[str, ...]], raw: str) -> bool:
    """True if "or" joins the gold answer and another candidate, which is not an alias of it.

    Of plain words without a doubt "or" names a synonym: "a jenny or jennet".
    """
    doubted = _FORMS["unsure"].search(raw) is not None

    def is_candidate(words_there: Sequence[str]) -> bool:
        return doubted or words_there[0][0].isdigit() or _is_capital(words_there[0], raw)

    or_right = _FORMS["or_right"].search(right)
    if or_right and not _ALSO_CALLED.search(right):
        candidate = or_right["other"].split()
        if is_candidate(candidate) and not any(tuple(candidate[: len(name)]) == name for name in names):
            return True
    or_left = _FORMS["or_left"].search(left)
    if or_left is None:
        return False
    ahead = left[: or_left.start("or")].replace(_COMMA, " ").split()
    if any(tuple(ahead[-len(name) :]) == name for name in names):
        return False
    return bool(ahead) and is_candidate(ahead[-1:])


def _several(marked: Sequence[str], claimed: Sequence[_Place], covered: set[int]) -> bool:
    """True if each claim is a guess, and another guess beside it names another: "Maybe Paris. Maybe Rome."""
    text = f" {' '.join(marked)} "
    pattern = _PERHAPS_ZH if has_chinese(text) else _FORMS["perhaps"]
    guesses = [len(text[: guess.start() + 1].split()) for guess in pattern.finditer(text)]
    if len(guesses) < 2:
        return False
    reach = [range(begin, end) for begin, end in itertools.pairwise([*guesses, len(marked)])]
    guessed = all(any(place.begin in part for part in reach) for place in claimed)
    return guessed and not all(any(i in covered for i in part) for part in reach)
