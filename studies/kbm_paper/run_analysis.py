"""All analyses of one sampling run, in one pass over its questions; memory does not grow with their number."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kbm_paper.label_statistics import LabelStatistics
from kbm_paper.tallies import (
    Accuracies,
    Copying,
    LeastCertain,
    Stability,
    TauSweep,
    graded_answers,
    is_mask,
    new_sweeps,
)
from kbtrain.answers import grading
from kbtrain.answers.mask import mask_answers, mask_leak
from kbtrain.answers.thoughts import counted_answers, is_left_out
from kbtrain.errors import UserError, at
from kbtrain.io.store import SampleStore
from kbtrain.labeling.distribution import INDICATORS, Indicator
from kbtrain.labeling.indicators import grade_answer
from kbtrain.labeling.label import DEFAULT_RULE, LabelRule, indicators, label
from kbtrain.labeling.label_stage import common_answers, verdicts_on
from kbtrain.labeling.verdicts import Aligned, QuestionVerdicts
from kbtrain.prompts.kbm import evidence_text
from kbtrain.records import CONDITIONS, Condition, Evidence, Question, SampleSet


@dataclass
class RunAnalysis:
    """Analyses of one sampling run, or of its questions from one ``dataset``; ``model`` and ``meta`` come from the
    run's own metadata; :func:`name_runs` sets ``name``."""

    model: str
    folder: Path
    sampling_run: str
    split: str
    meta: Mapping[str, Any]
    accuracies: Accuracies
    stability: Stability
    least_certain: LeastCertain
    statistics: LabelStatistics
    copying: Copying = field(default_factory=Copying)
    sweeps: dict[Indicator, TauSweep] = field(default_factory=new_sweeps)
    counts: Counter[str] = field(default_factory=Counter)
    rule: LabelRule = DEFAULT_RULE
    dataset: str = ""
    name: str = ""

    @classmethod
    def begin(
        cls, store: SampleStore, folder: Path, run: str, split: str, tau: tuple[float, float], examples: int
    ) -> RunAnalysis:
        """Nothing counted yet. Raises :class:`UserError` for an unknown run, or one without answers."""
        meta, common = store.run_meta(run), common_answers(store, run)
        conditions = frozenset(c for c in CONDITIONS if store.counts(run).get(c))
        samples = meta.get("samples")
        most = max(samples.values(), default=30) if isinstance(samples, dict) else 30  # the paper's
        if not conditions:
            raise UserError(f"{at(store.path)}: run '{run}' holds no answers; run data_gen/sample.py")
        return cls(
            model=str(meta.get("model", run)),
            folder=folder,
            sampling_run=run,
            split=split,
            meta=meta,
            accuracies=Accuracies(conditions),
            stability=Stability(most, *tau),
            least_certain=LeastCertain(examples, common),
            statistics=LabelStatistics(*tau),
            sweeps=new_sweeps(common),
            rule=LabelRule(certainty_answers=common),
        )

    def read(
        self,
        store: SampleStore,
        questions: Iterable[Question],
        evidence: Aligned[Evidence] | None,
        verdicts: Aligned[QuestionVerdicts] | None,
    ) -> list[RunAnalysis]:
        """Go through all questions of the split; returns the same for each data set, where there are several.

        Raises :class:`UserError` for evidence of another order.
        """
        empty, parts = copy.deepcopy(replace(self, least_certain=LeastCertain(0))), dict[str, RunAnalysis]()
        for question in questions:
            hits = None if evidence is None else evidence.record_of(question)
            right = None if verdicts is None else verdicts_on(verdicts, question)
            if self.split not in ("all", question.split):
                continue
            stored = {c: row for c in CONDITIONS if (row := store.get(self.sampling_run, question.id, c)) is not None}
            sets = {c: row for c, row in stored.items() if row.refused is None}
            if question.dataset not in parts:
                parts[question.dataset] = replace(copy.deepcopy(empty), dataset=question.dataset)
            for analysis in (self, parts[question.dataset]):
                analysis.counts["questions"] += 1
                analysis.counts.update(f"{c}_refused" for c in stored if c not in sets)
                if sets:
                    analysis._add(question, sets, hits, right)
                else:
                    analysis.counts["questions_without_answers"] += 1
        for aligned in (evidence, verdicts):
            if aligned is not None:
                aligned.finish()
        return [parts[name] for name in sorted(parts)] if len(parts) > 1 else []

    def _add(
        self,
        question: Question,
        sets: Mapping[Condition, SampleSet],
        evidence: Evidence | None,
        verdicts: grading.Verdicts | None,
    ) -> None:
        answers = {
            c: graded_answers(question, row, verdicts) for c, row in sets.items() if counted_answers(row.samples)
        }
        graded = bool(question.answers)  # without a gold answer there is certainty, and nothing else
        self.counts["questions_without_gold"] += not graded
        greedy = {
            c: grade_answer(question, s.greedy, verdicts)
            for c, s in sets.items()
            if graded and s.greedy is not None and not is_left_out(s.greedy)
        }
        self.accuracies.add(sets, answers, greedy)
        if graded:
            self.counts["abstained_answers"] += sum(r is None for part in answers.values() for r in part.right)
        if "llm" in answers:
            self.least_certain.add(question, sets["llm"], answers["llm"])
            if len(answers["llm"]) > 1:
                self.stability.add(answers["llm"], answers.get("rag"))
        if "llm" in answers and "rag" in answers:
            for indicator in INDICATORS:
                self.sweeps[indicator].add(indicator, answers["llm"], answers["rag"])
        if "mask" in answers and graded:
            leak: tuple[str, ...] = ()
            if evidence is None:
                self.counts["mask_leak_unknown"] += 1
            elif evidence.mask_leak is None:  # retrieved by a stage that does not look for leaks
                leak = mask_leak(mask_answers(evidence_text(evidence.hits, evidence.titles) or "", question), question)
            else:
                leak = evidence.mask_leak
            self.copying.add(answers["mask"], sum(is_mask(sample.text) for sample in sets["mask"].samples), leak)
        by_condition = {
            condition: indicated
            for condition, row in sets.items()
            if len(row.samples) > 1 and (indicated := indicators(question, row, verdicts, self.rule)[0]) is not None
        }
        if "llm" in by_condition:
            tau = self.statistics.tau_mastery, self.statistics.tau_certainty
            self.statistics.add(label(question, by_condition, *tau))
        else:
            self.counts["questions_without_label"] += 1
