"""Import of answers generated elsewhere, with both conditions, into the store.

The file's own verdicts on its answers are compared with this project's grading: a cheap check of both.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from kbtrain.answers.grading import rule_verdict
from kbtrain.answers.missing import is_missing
from kbtrain.errors import UserError
from kbtrain.io.store import SampleStore
from kbtrain.questions.answered import Answered
from kbtrain.questions.base import NO_GOLD
from kbtrain.questions.checks import FirstSeen
from kbtrain.questions.collect import SHOWN, first_places, taken_for_english
from kbtrain.questions.gold import GoldCounts
from kbtrain.questions.rows import format_value
from kbtrain.records import Condition, GateScore, Question, SampleSet


@dataclass
class StatedVerdicts:
    """One condition: agreement of kbtrain's verdicts with the file's; numbers and first ids of the other answers.

    ``ours_only``: right by kbtrain's grading, wrong by the file's; ``theirs_only`` the reverse.
    ``n_without_verdict``: answers without a verdict by the rule; ``n`` does not count them.
    """

    n: int = 0
    right: int = 0
    n_stated: int = 0
    ours_only: int = 0
    theirs_only: int = 0
    n_without_verdict: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, question: Question, right: bool | None, stated: bool | None) -> None:
        """Count one answer; ``stated`` is the file's verdict, None where it has none."""
        if right is None:
            self.n_without_verdict += 1
            return
        self.n += 1
        self.right += right
        if stated is None:
            return
        self.n_stated += 1
        self.ours_only += right and not stated
        self.theirs_only += stated and not right
        if right != stated and len(self.first) < SHOWN:
            self.first.append(question.id)

    def line(self, condition: Condition) -> str:
        text = f"{condition}: {self.right} of {self.n} greedy answers right ({self.right / max(self.n, 1):.1%})"
        if self.n_without_verdict:
            text += f"; {self.n_without_verdict} answers skipped, of which no rule can tell"
        if not self.n_stated:
            return text
        agreed = self.n_stated - self.ours_only - self.theirs_only
        return (f"{text}; the file's own verdict agrees in {agreed} of {self.n_stated} "
                f"({agreed / self.n_stated:.1%}; right by this grading alone {self.ours_only}, by theirs alone "
                f"{self.theirs_only})")  # fmt: skip


BATCH = 500  # question-conditions made durable at once
MANY, LEAST, LONGEST = 0.05, 5, 300  # of one wrong answer: share and number of questions for a warning; characters
_SPOKEN = re.compile(r"\bI\b(?!/)|\b[Ss]orry\b|^.{0,3}$")  # by a model, which does not know; or yes, no, a letter


@dataclass
class ImportCounts:
    """Counts of an import so far: splits, the file's verdicts beside our grading, other gates' scores, ``chinese``
    questions that are taken for English, and answers that are not right, of which those in ``fit`` may be."""

    splits: Counter[str] = field(default_factory=Counter)
    graded: dict[Condition, StatedVerdicts] = field(default_factory=dict)
    empty: Counter[Condition] = field(default_factory=Counter)
    unfit: Counter[tuple[Condition, str]] = field(default_factory=Counter)
    fit: set[str] = field(default_factory=set)
    scores: list[GateScore] = field(default_factory=list)
    chinese: int = 0
    thoughts: int = 0  # answers that came with reasoning
    thoughts_only: int = 0  # reasoning that no answer follows
    without_gold: list[str] = field(default_factory=list)  # places of rows that are skipped, as those of the next
    one_armed: list[str] = field(default_factory=list)  # without both answers
    gold: GoldCounts = field(default_factory=GoldCounts)

    def into(self, store: SampleStore, run: str, rows: Iterable[Answered]) -> Iterator[Question]:
        """The rows' questions; their answers are stored, but for those that an interrupted import has stored."""
        done = store.done(run)
        waiting: list[SampleSet] = []
        texts = FirstSeen()
        for row in rows:
            if not (row.question.answers and row.has_both):
                (self.one_armed if row.question.answers else self.without_gold).append(row.place)
                continue
            self._count(row)
            self.gold.add(row.question, row.left_out, texts)
            waiting += [s for s in row.sample_sets() if (s.question_id, s.condition) not in done]
            if len(waiting) >= BATCH:
                store.put(run, waiting)
                waiting = []
            yield row.question
        if not self.splits:
            skipped = f"{len(self.without_gold)} rows skipped{first_places(self.without_gold)}"
            raise UserError(f"no question has a reference answer; {skipped}; {NO_GOLD}")
        store.put(run, waiting)

    def _count(self, row: Answered) -> None:
        self.splits[row.question.split] += 1
        self.chinese += taken_for_english(row.question)
        self.scores += [GateScore(row.question.id, gate, score) for gate, score in row.scores.items()]
        for condition, answer in row.answers.items():
            right = rule_verdict(row.question, answer.text)
            self.graded.setdefault(condition, StatedVerdicts()).add(row.question, right, row.stated.get(condition))
            begin = answer.text[:LONGEST]
            self.fit.update((begin,) if right else row.question.answers)
            self.unfit[condition, begin] += not right
            self.empty[condition] += answer.is_empty
            self.thoughts += answer.thought
            self.thoughts_only += answer.finish == "thought"

    def as_dict(self) -> dict[str, Any]:
        graded = {condition: dict(vars(stated)) for condition, stated in self.graded.items()}
        return {"splits": dict(self.splits), "scores": Counter(s.gate for s in self.scores), "graded": graded,
                "thoughts": self.thoughts, "thoughts_only": self.thoughts_only, "without_gold": len(self.without_gold),
                "one_armed": len(self.one_armed), **self.gold.as_dict()}  # fmt: skip

    def lines(self) -> list[str]:
        """For people: one line a condition, then splits and scores."""
        splits = ", ".join(f"{split} {self.splits[split]}" for split in ("train", "dev", "test"))
        scores = ", ".join(f"{gate} {n}" for gate, n in self.as_dict()["scores"].items()) or "none"
        lines, total = list(self.gold.lines()), self.splits.total()
        for places, lack in ((self.without_gold, "have no reference answer (none, empty or a placeholder)"),
                             (self.one_armed, "lack one of both answers (null, no field, an empty cell)")):  # fmt: skip
            lines += [f"warning: rows skipped that {lack}: {len(places)}{first_places(places)}"] * bool(places)
        if counts := ", ".join(f"{n} under '{condition}'" for condition, n in (+self.empty).items()):
            lines.append(f"warning: empty answers, which count as wrong: {counts}")
        if self.thoughts:
            alone = f"{self.thoughts_only} are reasoning alone: skipped"
            lines.append(f"reasoning stripped from {self.thoughts} answers; {alone}")
        lines += [
            f"warning: the answer {format_value(text, 80)} to {n} of {total} questions under '{condition}' is right "
            "for none; is it an error in place of an answer?"
            for (condition, text), n in self.unfit.most_common(int(2 / MANY))
            if n >= LEAST and n > MANY * total and text not in self.fit
            if not _SPOKEN.search(text) and not is_missing(text)
        ]
        lines += [stated.line(condition) for condition, stated in self.graded.items()]
        return [*lines, f"{total} questions ({splits}), scores: {scores}"]
