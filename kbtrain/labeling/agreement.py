"""Agreement of judges with people, on a small file of answers that people graded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator

from kbtrain.answers.grading import is_correct, is_empty
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.labeling.judges import Judge
from kbtrain.metrics.significance import wilson
from kbtrain.questions.reading.rows import plain
from kbtrain.records import Grading, Language, Question

Text = Annotated[str, BeforeValidator(plain)]  # a number is read as people write it


@dataclass(frozen=True)
class LabelledAnswer:
    """One line of the file: an answer, the gold answers, and whether a person calls it right."""

    id: Text
    answers: tuple[Text, ...]
    prediction: Text
    right: bool
    question: str = ""
    language: Language = "en"
    grading: Grading = "contains"
    options: tuple[Text, ...] = ()

    def as_question(self) -> Question:
        form: Literal["open", "choice"] = "choice" if self.options else "open"
        return Question(
            self.id, self.question or self.id, self.answers, "dev", "labelled", self.language, form, self.grading,
            self.options,
        )  # fmt: skip


@dataclass(frozen=True)
class Agreement:
    """One judge against people. Accuracy and kappa are over the answers it judged; ``n_abstained`` is listed beside
    them.

    ``accuracy_all`` counts every abstention as a disagreement. ``kappa`` (Cohen) is None if both sides know one class
    only. ``false_right``: the judge says right, people say wrong.
    """

    judge: str
    n: int
    n_abstained: int
    accuracy: float | None
    accuracy_low: float | None
    accuracy_high: float | None
    accuracy_all: float
    kappa: float | None
    false_right: int
    false_wrong: int


def read_labelled(path: Path) -> list[LabelledAnswer]:
    """Raises :class:`UserError` for a broken record, an id twice, no record, or a record without a gold answer."""
    by_id: dict[str, LabelledAnswer] = {}
    for number, row in jsonl.read_numbered(LabelledAnswer, path):
        if row.id in by_id:
            raise UserError(f"{at(path, number, 'id')}: duplicate '{row.id}'")
        if not row.answers or any(map(is_empty, row.answers)):
            raise UserError(f"{at(path, number, 'answers')}: no answer, or an empty one")
        by_id[row.id] = row
    if not by_id:
        raise UserError(f"{at(path)}: no labelled answers in it")
    return list(by_id.values())


def agreement(judge: Judge, rows: Sequence[LabelledAnswer]) -> Agreement:
    """Let a judge grade what people have graded; multiple choice is graded by its own rule, as in labels."""
    cases = [(row.as_question(), row.prediction) for row in rows]
    judged = iter(judge.judge([case for case in cases if case[0].grading != "option"]))
    opinions = [is_correct(*case) if case[0].grading == "option" else next(judged).right for case in cases]
    pairs = [(row.right, verdict) for row, verdict in zip(rows, opinions, strict=True) if verdict is not None]
    same = sum(human == verdict for human, verdict in pairs)
    low, high = wilson(same, len(pairs)) if pairs else (None, None)
    return Agreement(
        judge=judge.name,
        n=len(rows),
        n_abstained=len(rows) - len(pairs),
        accuracy=same / len(pairs) if pairs else None,
        accuracy_low=low,
        accuracy_high=high,
        accuracy_all=same / len(rows),
        kappa=_kappa(pairs),
        false_right=sum(verdict and not human for human, verdict in pairs),
        false_wrong=sum(human and not verdict for human, verdict in pairs),
    )


def _kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Undefined (0 / 0) where both sides give the same single class throughout."""
    if len({value for pair in pairs for value in pair}) < 2:
        return None
    from sklearn.metrics import cohen_kappa_score

    return float(cohen_kappa_score(*zip(*pairs, strict=True)))


def line(a: Agreement) -> str:
    """One line for a terminal."""
    if a.accuracy is None:
        return f"{a.judge}: abstained from all {a.n} labelled answers"
    kappa = "undefined" if a.kappa is None else f"{a.kappa:.3f}"
    return (
        f"{a.judge}: agrees with people in {a.accuracy:.3f} [{a.accuracy_low:.3f}, {a.accuracy_high:.3f}] "
        f"of {a.n - a.n_abstained} labelled answers, kappa {kappa}; {a.false_right} wrong ones called right, "
        f"{a.false_wrong} right ones called wrong; abstained from {a.n_abstained} of {a.n}"
    )
