"""Near duplicates in different splits: paraphrases and typing variants that a gate would recognise.

Cosine of character n-grams weighted by their rarity (TF-IDF), so that questions of one pattern about two things are
far apart. Exact repeats are :func:`kbtrain.questions.checks.find_leaks`'s, and counted here too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.prompts.kbm import query_text
from kbtrain.records import Question, Split

NearRule = Literal["count", "refuse", "ignore"]
ALIKE = 0.85  # cosine from which two questions count as nearly the same
MOST = 20_000  # questions: more are not compared, since time grows with the product of the splits
_BLOCK = 512
# Pairs of splits, and the figures that a question of both makes too good.
FLATTERED: dict[tuple[Split, Split], str] = {
    ("train", "dev"): "thresholds and choices on dev, not the figures on test",
    ("train", "test"): "the figures on test",
    ("dev", "test"): "the figures on test, by the thresholds",
}


@dataclass(frozen=True)
class NearPair:
    """A question of ``split`` and the one of a later split that is most alike; ``cosine`` 0 to 1."""

    id: str
    split: Split
    other_id: str
    other_split: Split
    cosine: float


def near_duplicates(questions: Sequence[Question]) -> list[NearPair]:
    """Training questions with a near duplicate in dev, those with one in test, and dev questions with one in test.

    Of each pair of splits a question of the earlier one is paired with the most similar question of the later one.
    """
    held_out = [q for q in questions if q.split != "train"]
    if not held_out or len({q.split for q in questions}) < 2:
        return []
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    vectorizer.fit(query_text(q) for q in questions)
    pairs = []
    for split, other_split in FLATTERED:
        earlier = [q for q in questions if q.split == split]
        against = [q for q in held_out if q.split == other_split]
        if not earlier or not against:
            continue
        columns = vectorizer.transform([query_text(q) for q in against]).T.tocsc()
        for start in range(0, len(earlier), _BLOCK):
            block = earlier[start : start + _BLOCK]
            cosines = (vectorizer.transform([query_text(q) for q in block]) @ columns).toarray()
            best = cosines.argmax(axis=1)
            for question, place, row in zip(block, best, cosines, strict=True):
                if row[place] >= ALIKE:
                    twin = against[place]
                    pairs.append(NearPair(question.id, split, twin.id, twin.split, float(row[place])))
    return pairs


def check_near(path: Path, splits: Counter[str], rule: NearRule) -> list[NearPair] | None:
    """Near duplicates in a file of collected questions, ``splits`` counted; None where they were not looked for,
    since the rule says so or there are too many questions.

    Raises :class:`UserError` if there are some and the rule is to refuse; the file is deleted then.
    """
    if len(+splits) < 2:
        return []
    if rule == "ignore" or splits.total() > MOST:
        return None
    pairs = near_duplicates(list(jsonl.read(Question, path)))
    if pairs and rule == "refuse":
        path.unlink()
        first = pairs[0]
        raise UserError(
            f"{len(pairs)} questions have a near duplicate in another split, first: '{first.id}' ({first.split}) and "
            f"'{first.other_id}' ({first.other_split}); keep them together by group_by, or set near_duplicates: count"
        )
    return pairs
