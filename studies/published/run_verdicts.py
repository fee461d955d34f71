"""Verdicts on both greedy answers of a run folder's questions, and what the gate features reads of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kbtrain.answers.grading import is_same, rule_verdict
from kbtrain.arrays import Floats
from kbtrain.errors import UserError
from kbtrain.gates.features.additive import Row
from kbtrain.gates.features.frequencies import Frequencies
from kbtrain.gates.features.gate import feature_rows
from kbtrain.io import jsonl
from kbtrain.io.store import SampleStore
from kbtrain.labeling.examples import example
from kbtrain.metrics.ranking import normalised_area
from kbtrain.records import Question
from published.fits import Places, of_features


@dataclass(frozen=True)
class RunVerdicts:
    """Questions, their features, and 1 where the answer without (``llm``) and with passages (``rag``) is right.

    ``changed``: 1 where these answers differ. ``pool``: places of the training and dev questions; ``test``: of the test
    questions.
    """

    questions: list[Question]
    rows: list[Row]
    llm: Floats
    rag: Floats
    changed: Floats
    pool: list[int]
    test: list[int]

    @classmethod
    def read(cls, run: Path) -> RunVerdicts:
        """Questions of a run folder whose two greedy answers have a verdict. Raises :class:`UserError` without any."""
        questions, right = [], []
        with SampleStore(run / "samples.db", read_only=True) as store:
            for question in jsonl.read(Question, run / "questions.jsonl"):
                made = [store.get("main", question.id, condition) for condition in ("llm", "rag")]
                texts = [one.greedy.text for one in made if one is not None and one.greedy is not None]
                found = [rule_verdict(question, text) for text in texts]
                if len(found) == 2 and None not in found:
                    questions.append(question)
                    right.append([*(float(bool(one)) for one in found), float(not is_same(question, *texts))])
        if not questions:
            raise UserError(f"{run}: no question with a verdict on both answers")
        frequencies = Frequencies.of_index(run / "bm25")
        rows = feature_rows(frequencies, [example(question, None) for question in questions], after_search=False)
        llm, rag, changed = np.array(right).T
        splits = [
            [i for i, one in enumerate(questions) if (one.split == "test") == of_test] for of_test in (False, True)
        ]
        return cls(questions, rows, llm, rag, changed, *splits)

    def scores(self, places: Places, gains: Floats, scored: Places) -> Floats:
        """Scores by the gate features, fitted to these questions' gains."""
        return of_features(self.rows)(places, gains, scored)

    def area(self, scores: Floats) -> float:
        """Oracle-normalised area of scores of the test questions."""
        return normalised_area(scores, self.llm[self.test], self.rag[self.test]) or 0.0
