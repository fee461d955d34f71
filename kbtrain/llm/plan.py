"""Which answers a sampling run asks for, as a stream over the question and evidence files."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kbtrain import jsonl
from kbtrain.answers.mask import mask_answers
from kbtrain.errors import UserError, at
from kbtrain.llm.base import Ask
from kbtrain.prompts.kbm import evidence_text
from kbtrain.records import Condition, Evidence, Question, Split


@dataclass(frozen=True)
class Plan:
    """Questions x conditions. ``samples`` gives the number of sampled answers by split (0: the greedy one only);
    ``mask_questions`` bounds how many questions of a split are asked under ``mask`` (None: all)."""

    questions: Path
    evidence: Path
    conditions: Sequence[Condition]
    samples: Mapping[Split, int]
    mask_questions: Mapping[Split, int] | None = None

    def asks(self) -> Iterator[Ask]:
        """Every ask, in the order of the question file; memory does not grow with it."""
        seen: Counter[Split] = Counter()
        for question, evidence in _pairs(self.questions, self.evidence):
            seen[question.split] += 1
            for condition in self.conditions:
                if condition != "mask" or seen[question.split] <= self._mask_limit(question.split):
                    text = _text(question, evidence, condition)
                    yield Ask(question, condition, text, self.samples.get(question.split, 0))

    def total(self, counts: Mapping[Split, int]) -> int:
        """Number of asks, given the number of questions of each split."""
        masked = 0
        if "mask" in self.conditions:
            masked = int(sum(min(n, self._mask_limit(split)) for split, n in counts.items()))
        plain = sum(condition != "mask" for condition in self.conditions)
        return plain * sum(counts.values()) + masked

    def _mask_limit(self, split: Split) -> float:
        return float("inf") if self.mask_questions is None else self.mask_questions.get(split, 0)


def check_files(questions: Path, evidence: Path) -> Counter[Split]:
    """Read both files to the end before any model is loaded; returns the number of questions of each split.

    Raises :class:`UserError` for a broken or repeated record and for evidence of another question.
    """
    counts: Counter[Split] = Counter()
    seen: set[str] = set()
    for question, _ in _pairs(questions, evidence):
        if question.id in seen:
            raise UserError(f"{at(questions)}: field 'id': duplicate '{question.id}'")
        if not question.answers or not all(a.strip() for a in question.answers):
            raise UserError(f"{at(questions)}: field 'answers': question '{question.id}' has an empty answer or none")
        seen.add(question.id)
        counts[question.split] += 1
    if not counts:
        raise UserError(f"{at(questions)}: no questions in it")
    return counts


def _pairs(questions: Path, evidence: Path) -> Iterator[tuple[Question, Evidence]]:
    both = itertools.zip_longest(jsonl.read(Question, questions), jsonl.read(Evidence, evidence))
    for number, (question, found) in enumerate(both, 1):
        if question is None or found is None or question.id != found.question_id:
            wanted, got = (question and question.id), (found and found.question_id)
            raise UserError(f"{at(evidence, number)}: evidence of {got!r} where {wanted!r} is due; run retrieve again")
        yield question, found


def _text(question: Question, evidence: Evidence, condition: Condition) -> str | None:
    if condition == "llm":
        return None
    text = evidence_text(evidence.hits)
    return mask_answers(text, question) if condition == "mask" else text
