"""Collect questions and the passages that came with them into a run folder.

Passages are written once each. Questions are the first ones, or a random draw that depends on ids and a seed only.
"""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator

from kbtrain.answers.writing import language_of
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import beside, put_in_place
from kbtrain.io.provenance import meta_of, meta_path
from kbtrain.questions.base import NO_GOLD, Loaded
from kbtrain.questions.checks import MOST_COMPARED, FirstSeen, NearPair
from kbtrain.questions.gold import GoldCounts
from kbtrain.records import Gold, Passage, Question, Split


def _shares(value: object) -> object:
    shares = value.split(",") if isinstance(value, str) else value
    if not isinstance(shares, list | tuple) or len(shares) != 3:
        raise ValueError(f"give three shares, of train, dev and test, as 0.5,0.25,0.25; found {value}")
    return shares


def _add_up(shares: tuple[float, float, float]) -> tuple[float, float, float]:
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(f"shares of train, dev and test must add up to 1, found {sum(shares):g}")
    return shares


Shares = Annotated[tuple[float, float, float], BeforeValidator(_shares), AfterValidator(_add_up)]
SHOWN = 5  # places of dropped questions that are named
Limits = Mapping[str, int | None]  # by split, or {"all": n} for all splits together


@dataclass(frozen=True)
class PickRule:
    """Questions within ``limits``, picked by ``pick``, whose ``gold`` is not in ``drop`` and whose gold answers are not
    all empty or placeholders."""

    limits: Limits
    pick: Literal["first", "random"] = "first"
    seed: int = 0
    drop: frozenset[Gold] = frozenset()

    def drops(self, loaded: Loaded) -> Gold | Literal["lost"] | None:
        """The reason why a question is skipped; None for one that may be picked."""
        if loaded.lost_answers:
            return "lost"
        return loaded.question.gold if loaded.question.gold in self.drop else None


@dataclass
class CollectCounts:
    """Counts of the questions that were read, taken and dropped."""

    splits: Counter[str] = field(default_factory=Counter)
    impossible: int = 0  # is_taken, and without an answer
    chinese: int = 0  # taken as English, and with Chinese characters in them
    dropped: Counter[str] = field(default_factory=Counter)  # by ``gold``, "lost" answers, and "beyond" the limits
    first: dict[str, list[str]] = field(default_factory=dict)  # places of those that a user may want to mend
    gold: GoldCounts = field(default_factory=GoldCounts)

    def __str__(self) -> str:
        names = {
            "hidden": "with hidden answers",
            "none": "impossible",
            "lost": "whose answers are all empty or placeholders",
            "beyond": "beyond the limits",
            "conflict": "whose text an earlier question has with other reference answers",
        }
        counted = [(key, name) for key, name in names.items() if self.dropped[key]]
        skipped = [f"{self.dropped[key]} {name}{first_places(self.first.get(key, ()))}" for key, name in counted]
        impossible = f"; {self.impossible} of the collected are impossible" if self.impossible else ""
        return f"skipped: {', '.join(skipped) or 'none'}{impossible}"

    def drop(self, reason: str, loaded: Loaded) -> None:
        self.dropped[reason] += 1
        if reason in ("lost", "conflict") and self.dropped[reason] <= SHOWN:
            self.first.setdefault(reason, []).append(at(loaded.file, loaded.line))


def pick_questions(stream: Callable[[], Iterator[Loaded]], rule: PickRule, tally: CollectCounts) -> Iterator[Loaded]:
    """The wanted questions in the order of their file, counted in ``tally``. A random draw calls ``stream`` twice."""
    if rule.pick == "first":
        take = first_ones(rule.limits)
    else:
        every = (loaded.question for loaded in stream() if rule.drops(loaded) is None)
        take = draw(every, rule.limits, rule.seed)
    texts = FirstSeen()
    for loaded in stream():
        question, reason = loaded.question, rule.drops(loaded)
        if reason is not None:
            tally.drop(reason, loaded)
        elif not take(question):
            tally.drop("beyond", loaded)
        elif tally.gold.add(question, loaded.left_out, texts):
            tally.drop("conflict", loaded)
        else:
            tally.splits[question.split] += 1
            tally.impossible += question.gold == "none"
            tally.chinese += taken_for_english(question)
            yield loaded


def first_places(places: Sequence[str]) -> str:
    return f" (first at {', '.join(places[:SHOWN])})" if places else ""


def taken_for_english(question: Question) -> bool:
    """True for a question with Chinese characters that its data set calls English."""
    return question.language == "en" and language_of(question.text) == "zh"


def first_ones(limits: Limits) -> Callable[[Question], bool]:
    """A function that takes the first questions up to each limit."""
    counts = Counter[str]()

    def is_taken(question: Question) -> bool:
        group = "all" if "all" in limits else question.split
        counts[group] += 1
        limit = limits.get(group)
        return limit is None or counts[group] <= limit

    return is_taken


def draw(questions: Iterable[Question], limits: Limits, seed: int) -> Callable[[Question], bool]:
    """A uniform random draw up to each limit: the questions with the lowest hashes of (seed, id), in any order of the
    file. ``questions`` are read through, and what is returned then says of each whether it was drawn."""
    hashes: dict[str, list[int]] = {}
    for question in questions:
        group = "all" if "all" in limits else question.split
        hashes.setdefault(group, []).append(hash64(f"{seed}\0{question.id}"))
    highest = {name: max(heapq.nsmallest(limits.get(name) or 0, of), default=-1) for name, of in hashes.items()}

    def is_taken(question: Question) -> bool:
        group = "all" if "all" in limits else question.split
        return limits.get(group) is None or hash64(f"{seed}\0{question.id}") <= highest[group]

    return is_taken


def split_of(key: str, shares: Sequence[float]) -> Split:
    """Train, dev or test by shares that add up to 1; it depends on the key alone."""
    place, edge = hash64(f"split {key}") / 2**64, 0.0
    splits: tuple[Split, ...] = ("train", "dev", "test")
    for split, share in zip(splits, shares, strict=True):
        edge += share
        if place < edge:
            return split
    return next(split for split, share in reversed(list(zip(splits, shares, strict=True))) if share > 0)


def share_of(question_id: str) -> float:
    """A number in [0, 1) that depends on the id alone: other questions do not change a question's split."""
    return hash64(f"dev {question_id}") / 2**64


def hash64(text: str) -> int:
    """A hash of 64 bits, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def write_questions(
    run: Path, stream: Iterable[Loaded], corpus: Iterable[Passage], tally: CollectCounts
) -> tuple[int, int]:
    """Write ``questions.jsonl`` and, from the questions' own passages and ``corpus``, each once, ``passages.jsonl``;
    how many of each. Raises :class:`UserError` if no question is left; then an earlier collecting's files stay."""
    passages = run / "passages.jsonl"
    collected = beside(passages, ".collected")  # without passages a file of the user's own stays

    def records() -> Iterator[tuple[str, Question | Passage]]:
        loaded, ids = None, FirstSeen()
        for loaded in stream:
            yield from (("passages", passage) for passage in loaded.passages if not ids.add(passage.id, passage.id, 0))
            yield "questions", loaded.question
        if loaded is None:
            raise UserError(f"no questions left to collect; {tally}{f'; {NO_GOLD}' * bool(tally.dropped['lost'])}")
        yield from (("passages", passage) for passage in corpus if not ids.add(passage.id, passage.id, 0))

    n = jsonl.write_each({"questions": run / "questions.jsonl", "passages": collected}, records())
    if n["passages"]:
        put_in_place(collected, passages)
    else:
        collected.unlink()
        if meta_of(passages).get("stage") == "collect":  # of other questions
            passages.unlink(missing_ok=True)
            meta_path(passages).unlink()
    return n["questions"], n["passages"]


def warnings(splits: Counter[str], near: Sequence[NearPair] | None, chinese: int = 0) -> list[str]:
    """Warnings: splits without questions, questions in two splits (None: too many to be compared), ``chinese``
    questions that are taken for English."""
    needs = {"train": "a gate is trained on them", "dev": "thresholds are chosen on them"}
    needs["test"] = "nothing is tested without them"
    lines = [
        f"no {split} questions: {reason}; make splits by --shares 0.5,0.25,0.25"
        for split, reason in needs.items()
        if not splits[split]
    ]
    if near is None:
        keep = "`--group-by COLUMN` keeps wordings of one question together"
        many = f"{splits.total():,} are more than {MOST_COMPARED:,}; {keep}"
        lines.append(f"questions of different splits were not compared: {many}")
    by_splits: dict[tuple[Split, Split], list[NearPair]] = {}
    for pair in near or ():
        by_splits.setdefault((pair.split, pair.other_split), []).append(pair)
    lines += [
        f"{split} questions with a near duplicate in {other}: {len(pairs)} ({pairs[0].id} and "
        f"{pairs[0].other_id}); this flatters the figures; `--group-by` a column that they share keeps them together"
        for (split, other), pairs in by_splits.items()
    ]
    if chinese:  # in use a question's language follows from its characters
        taken = f"{chinese} questions with Chinese characters are treated as English"
        lines.append(f"{taken}, other than in use; give --language zh, or a column 'language'")
    return lines
