"""Fidelity of gates to always searching: searches skipped, and the share of answers that then differ. No gold is read.

An answer differs where the greedy answers with and without passages differ in meaning
(:func:`kbtrain.answers.grading.is_same`). A gate's threshold is chosen on dev with a guarantee (promise
"answers_changed" of :mod:`kbtrain.metrics.thresholds`) and measured on test, where nothing was chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from kbtrain.answers import grading
from kbtrain.answers.thoughts import is_left_out
from kbtrain.arrays import Floats
from kbtrain.errors import UserError, at
from kbtrain.evaluation.calibrate import Chosen, calibrate_change, place_of
from kbtrain.evaluation.scores import StoredScores, in_order
from kbtrain.gate.card import KeyedCard
from kbtrain.gates.registry import read_card
from kbtrain.gates.seakr.gate import scale_of
from kbtrain.gates.thresholds_store import Source
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_current, check_unchanged, meta_of
from kbtrain.io.store import SampleStore
from kbtrain.labeling.change import Equality, MeaningGroups, by_groups
from kbtrain.metrics.significance import Delta, random_gate_p, share
from kbtrain.questions.checks import leak_key
from kbtrain.records import CONDITIONS, Question, SampleSet, Split

MAX_CHANGE = 0.05  # of the answers that may differ from always searching
DELTA = 0.1  # probability that the promise fails
ALPHA = 0.05
SPLITS: tuple[Split, Split] = ("dev", "test")


@dataclass
class Changes:
    """Questions of one split with both greedy answers; ``differ``: these differ in meaning.

    ``left_out``: questions without two answers, by reason.
    """

    questions: list[Question] = field(default_factory=list)
    differ: list[bool] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def differs(self) -> Floats:
        """1 where the answers differ, else 0."""
        return np.array(self.differ, dtype=np.float64)

    def add(
        self, question: Question, llm: SampleSet | None, rag: SampleSet | None, is_same: Equality = grading.is_same
    ) -> None:
        """Add a question with its stored answers; one without two answers that count is skipped."""
        if any(answers is not None and answers.refused is not None for answers in (llm, rag)):
            self.left_out["refused by the server"] += 1
        elif llm is None or rag is None or llm.greedy is None or rag.greedy is None:
            self.left_out["without a stored answer"] += 1
        elif is_left_out(llm.greedy) or is_left_out(rag.greedy):
            self.left_out["whose answer was cut before it began, or is a thought alone"] += 1
        else:
            self.questions.append(question)
            self.differ.append(not is_same(question, llm.greedy.text, rag.greedy.text))

    def share(self, share: float) -> Changes:
        """This share of the questions, picked by a hash of their ids as in other calibrations."""
        at = [place for place, question in enumerate(self.questions) if place_of(question.id) < share]
        return Changes([self.questions[place] for place in at], [self.differ[place] for place in at], self.left_out)

    def scores(self, gate: str, of: Mapping[str, float], path: Path) -> Floats:
        """A gate's scores in the questions' order. Raises :class:`UserError` for a missing one."""
        return np.array(in_order(gate, of, [question.id for question in self.questions], path), dtype=np.float64)


def read_changes(run: Path, sampling_run: str = "main") -> dict[Split, Changes]:
    """Changes of dev and test from the stored answers of a run folder.

    A dev question that is a test question, too, is skipped. Raises :class:`UserError` where a split has none.
    """
    path = run / "questions.jsonl"
    check_unchanged(path)
    questions = list(jsonl.read(Question, path))
    tested = {leak_key(question) for question in questions if question.split == "test"}
    by_split: dict[Split, Changes] = {}
    groups = read_groups(run)
    with SampleStore(run / "samples.db", read_only=True) as store:
        store.run_meta(sampling_run)
        for split in SPLITS:
            by_split[split] = changes = Changes()
            for question in questions:
                if question.split == split == "dev" and leak_key(question) in tested:
                    changes.left_out["that are test questions, too"] += 1
                elif question.split == split:
                    same = by_groups(None if groups is None else groups.get(question.id))
                    llm, rag = (store.get(sampling_run, question.id, condition) for condition in CONDITIONS[:2])
                    changes.add(question, llm, rag, same)
            if not changes.questions:
                raise UserError(f"{at(path)}: no {split} question with stored answers under llm and rag")
    return by_split


def read_groups(run: Path) -> dict[str, MeaningGroups] | None:
    """A model's groups of answers, where the run's labels of change are by them; None where the rule compares.

    Raises :class:`UserError` for a file that was changed, and for groups of other questions.
    """
    if not meta_of(run / "labels.jsonl").get("label_rule", {}).get("meanings"):
        return None
    path = run / "meanings.jsonl"
    check_current(path, run / "questions.jsonl")
    return {record.question_id: record for record in jsonl.read(MeaningGroups, path)}


@dataclass(frozen=True)
class Fidelity:
    """One gate at the threshold that dev chose. Shares of the questions; ``Delta`` with 95 % intervals, on test.

    ``skipped``: searches skipped; ``changed``: answers that differ from always searching; ``at_random``: those that
    would differ with as many searches skipped at random, with the exact one-sided ``p`` of the gate's choice.
    ``bound``: what dev guarantees, with probability 1 - ``delta``.
    """

    gate: str
    threshold: float
    limit: float
    delta: float
    bound: float
    n_dev: int
    dev_skipped: float
    dev_changed: float
    n: int
    skipped: Delta
    changed: Delta
    changed_never: float
    at_random: float
    p: float

    @property
    def certain(self) -> bool:
        """True if the gate skips better than chance."""
        return self.p < ALPHA


def fidelity(gate: str, chosen: Chosen, scores: Floats, changed: Floats) -> Fidelity:
    """A gate's figures on test at a threshold from dev (:func:`~kbtrain.evaluation.calibrate.calibrate_change`)."""
    searched, n, guarantee = scores > chosen.threshold, len(scores), chosen.evidence["guarantee"]
    differ, skipped = float((changed * ~searched).sum()), int((~searched).sum())
    never = float(changed.mean())
    p = random_gate_p(changed, n - skipped, float(changed.sum()) - differ)
    return Fidelity(
        gate=gate,
        threshold=chosen.threshold,
        limit=guarantee["limit"],
        delta=guarantee["delta"],
        bound=guarantee["bound"],
        n_dev=chosen.evidence["n_dev"],
        dev_skipped=1 - chosen.evidence["retrieval_ratio"],
        dev_changed=chosen.evidence["changed"],
        n=n,
        skipped=share(skipped, n),
        changed=share(differ, n),
        changed_never=never,
        at_random=never * skipped / n,
        p=1.0 if p is None or np.isnan(p) else p,  # all answers change, or none does: chance does as well
    )


def fidelities(
    changes: Mapping[Split, Changes],
    stored: StoredScores,
    gates: Iterable[str],
    limit: float = MAX_CHANGE,
    delta: float = DELTA,
) -> dict[str, tuple[Chosen, Fidelity]]:
    """The threshold of each of these ``gates`` from dev and its figures on test, most searches skipped on dev first.

    Raises :class:`UserError` for too few dev questions, and for a missing score.
    """
    dev, test = changes["dev"], changes["test"]
    by_gate = {}
    for gate in gates:
        on_dev, on_test = (part.scores(gate, stored.by_gate[gate], stored.path) for part in (dev, test))
        source = stored.behind.get(gate)
        scale = None if source is None else scale_of(source.folder, source.name)
        chosen = calibrate_change(on_dev, dev.differs, limit, delta, None if scale is None else scale.floor)
        by_gate[gate] = (chosen, fidelity(gate, chosen, on_test, test.differs))
    return dict(sorted(by_gate.items(), key=lambda item: -item[1][1].dev_skipped))


def left_out_lines(changes: Mapping[Split, Changes]) -> Sequence[str]:
    """A line for each reason why questions are skipped."""
    return [
        f"skipped: {n} {split} questions {reason}"
        for split, of in changes.items()
        for reason, n in of.left_out.items()
        if n
    ]


def read_fidelities(path: Path) -> tuple[dict[str, Any], list[Fidelity]]:
    """Meta data and figures of a ``fidelity.json``. Raises :class:`UserError`: missing, broken."""
    document = jsonl.read_value(path, "run eval/fidelity.py first", "run eval/fidelity.py again")
    try:
        return document["meta"], TypeAdapter(list[Fidelity]).validate_python(document["gates"])
    except (KeyError, TypeError, ValidationError):
        raise UserError(f"{at(path)}: not the figures that eval/fidelity.py writes; run it again") from None


def predicts_change(source: Source) -> bool:
    """True for a score that learnt the label ``change``."""
    card = read_card(source.folder)
    if isinstance(card, KeyedCard):
        return source.name == f"{card.PREFIX}_change"
    return getattr(card, "key", None) == "change"
