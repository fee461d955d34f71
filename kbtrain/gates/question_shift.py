"""Numbers about questions, without their words, and a test of whether new questions are of the kind of the dev ones.

A gate's labels are about questions like those that it was trained on; others can come with the very scores of dev.
What is kept of a question are its length, counts, its kind and how many of its words are new, so that a log without
texts, and a gate's folder, hold enough for the test.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import regex

from kbtrain.answers.writing import CJK, UNIT, UNSPACED
from kbtrain.gates.features.question import KINDS, names
from kbtrain.metrics.calibration import ALARM, shift

LONGEST = 2000  # characters of a question that are looked at; its length counts whole
KEPT = 500  # dev questions whose numbers are kept: enough to see a shift of 0.09 with as many new ones
LEAST = 5  # expected questions of a kind, from which on it is counted by itself
_HEX = 6  # digits of a word's hash
_WORD = regex.compile(rf"[{CJK}]|{UNIT}|[^\W{CJK}{UNSPACED}]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
NUMBERS = ("characters", "words", "names", "numbers", "new_words")
Asked = Mapping[str, Any]  # of one question: :data:`NUMBERS` by their keys, and "kind"


def question_numbers(text: str, vocabulary: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The numbers and the kind of one question.

    ``new_words``: share of its words in lower case whose hashes are not in ``vocabulary``; skipped without either.
    Names are no such words: the splits of a data set are apart in them.
    """
    read = text[:LONGEST]
    words = _WORD.findall(read)
    common = _common(words)
    numbers: dict[str, Any] = {
        "characters": len(text),
        "words": len(words),
        "names": len(names(read, cased=False)),  # as in the numbers that folders and logs keep
        "numbers": len(_NUMBER.findall(read)),
        "kind": next((kind for kind, pattern in KINDS.items() if pattern.search(read)), "other"),
    }
    if vocabulary and common:
        numbers["new_words"] = round(sum(_hash(word) not in vocabulary for word in common) / len(common), 4)
    return numbers


def dev_questions(texts: Sequence[str], entities: int | None = None) -> dict[str, Any]:
    """Numbers of dev questions, for a gate's folder: ``n``, ``numbers`` (sorted), ``kinds`` (counts), ``vocabulary``.

    ``entities``: the number of entities that they ask about, kept where it is smaller than ``n``.

    The vocabulary is that of the half of them whose hash is odd, and ``new_words`` are those of the other half: given
    the vocabulary, their numbers and those of new questions of the same kind come from one distribution.
    """
    halves: tuple[list[str], list[str]] = ([], [])
    for text in dict.fromkeys(texts):
        halves[hashlib.sha256(text.encode(errors="replace")).digest()[0] & 1].append(text)
    vocabulary = frozenset(_hash(word) for text in halves[1] for word in _common(_WORD.findall(text[:LONGEST])))
    even = set(halves[0])
    rows = [question_numbers(text, vocabulary if text in even else frozenset()) for text in texts]
    units = {} if entities is None or entities >= len(texts) else {"entities": entities}
    return summed(rows) | {"vocabulary": " ".join(sorted(vocabulary)), **units}


def summed(rows: Sequence[Asked]) -> dict[str, Any]:
    """``n``, ``numbers`` and ``kinds`` of many questions, as :func:`question_shift` compares them."""
    numbers = {name: _subsample([row[name] for row in rows if name in row]) for name in NUMBERS}
    return {"n": len(rows), "numbers": numbers, "kinds": dict(sorted(Counter(row["kind"] for row in rows).items()))}


def vocabulary_of(dev: Mapping[str, Any]) -> frozenset[str]:
    """Hashes of words, as :func:`dev_questions` keeps them."""
    return frozenset(str(dev.get("vocabulary", "")).split())


def _common(words: Sequence[str]) -> list[str]:
    return [word for word in words if word == word.lower() and not word.isdigit()]


def _hash(word: str) -> str:
    return hashlib.sha256(word.encode(errors="replace")).hexdigest()[:_HEX]


def _subsample(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    if len(ordered) > KEPT:
        ordered = [ordered[i] for i in np.linspace(0, len(ordered) - 1, KEPT).round().astype(int)]
    return ordered


@dataclass(frozen=True)
class QuestionShift:
    """``p_values`` by what was compared, each times their number (Bonferroni), so that any one may be looked at;
    ``changes``: what it is on dev and now."""

    p_values: dict[str, float]
    changes: dict[str, str]
    n_dev: int
    n_new: int

    @property
    def p_value(self) -> float:
        """Of new questions being of the kind of the dev questions."""
        return min(self.p_values.values(), default=1.0)

    @property
    def alarming(self) -> bool:
        """True if a difference is more than chance."""
        return self.p_value < ALARM

    def line(self, gate: str) -> str:
        """The finding in one line; it begins with "warning" if it is alarming."""
        if not self.alarming:
            return f"{gate}: {self.n_new} new questions are of the kind of the dev questions (p = {self.p_value:.2g})"
        alarms = sorted((p, name) for name, p in self.p_values.items() if p < ALARM)
        findings = "; ".join(f"{self.changes[name]}, p = {p:.1e}" for p, name in alarms)
        return (
            f"warning: {self.n_new} new questions are of another kind than the {self.n_dev} dev questions of '{gate}' "
            f"({findings}); its labels say little about them: train it on questions of the new kind"
        )


def question_shift(dev: Mapping[str, Any], new: Sequence[Asked]) -> QuestionShift:
    """Compare with :func:`dev_questions`: numbers by Kolmogorov and Smirnov, kinds by chi-squared.

    ``new`` has each question once, however often it was asked. Several dev questions about an entity count as one. Both
    tests err on the careful side: the first for numbers with ties, the second since rare kinds are counted together.
    """
    p_values, changes = dict[str, float](), dict[str, str]()
    for name in NUMBERS:
        before, now = dev.get("numbers", {}).get(name) or [], [row[name] for row in new if name in row]
        if before and now:
            p_values[name] = shift(before, now, (dev.get("entities"), None)).p_value
            changes[name] = f"{name.replace('_', ' ')} {np.mean(before):.3g} on dev, {np.mean(now):.3g} now"
    counts = Counter(row["kind"] for row in new if "kind" in row)
    kinds = dev.get("kinds", {})
    p_value = _p_of_kinds(kinds, counts, dev.get("entities", dev["n"]) / dev["n"])
    if p_value is not None:
        p_values["kind"] = p_value
        changes["kind"] = _changed_kind(kinds, counts)
    corrected = {name: min(1.0, p * len(p_values)) for name, p in p_values.items()}
    return QuestionShift(corrected, changes, int(dev["n"]), len(new))


def _p_of_kinds(before: Mapping[str, int], now: Mapping[str, int], weight: float) -> float | None:
    """None where there are not two kinds to compare. ``weight``: of a question before, as evidence."""
    from scipy.stats import chi2_contingency

    kinds = sorted({*before, *now})
    table = np.array([[counts.get(kind, 0) for kind in kinds] for counts in (before, now)], dtype=np.float64)
    table[0] *= weight
    if not table.sum(axis=1).all():
        return None
    rare = table.sum(axis=0) * table.sum(axis=1).min() / table.sum() < LEAST
    table = np.column_stack([table[:, ~rare], table[:, rare].sum(axis=1)])
    table = table[:, table.sum(axis=0) > 0]
    return float(chi2_contingency(table, correction=False).pvalue) if table.shape[1] > 1 else None


def _changed_kind(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """The kind whose share changed most."""
    old, new = (sum(counts.values()) for counts in (before, now))
    kind = max(sorted({*before, *now}), key=lambda name: abs(before.get(name, 0) / old - now.get(name, 0) / new))
    return f"kind '{kind}' {before.get(kind, 0) / old:.0%} on dev, {now.get(kind, 0) / new:.0%} now"
