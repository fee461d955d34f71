"""Turn stored samples into labels: mastery, certainty, benefit and the effect of retrieval, with intervals.

Reads RUN/questions.jsonl and RUN/samples.db, writes RUN/labels.jsonl. tau is a number or a quantile of the training
questions' values; dev and test never influence it. The distribution is printed and stored in
RUN/labels.jsonl.meta.json. Labelling always starts from the beginning: additional samples may change every label.

Examples:
  kbtrain run label --config label_paper --run runs/qwen2_7b
  kbtrain run label --run runs/demo --verdicts --tau-mastery '{quantile: 0.7}' --tau-certainty '{quantile: 0.5}'
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from kbtrain.answers import grading
from kbtrain.config import Config, check_counts, run_script
from kbtrain.errors import UserError, at
from kbtrain.io import jsonl
from kbtrain.io.files import beside
from kbtrain.io.provenance import check_current, check_unchanged, meta_of, write_meta
from kbtrain.io.store import SampleStore
from kbtrain.labeling.distribution import Distribution
from kbtrain.labeling.indicators import DRAWS, MAX_EMPTY, SEED
from kbtrain.labeling.label import Cut, LabelledBy, LabelRule, with_taus
from kbtrain.labeling.label_stage import (
    LabelCounts,
    Quantile,
    Tau,
    choose_tau,
    common_answers,
    label_questions,
    passages_shown,
    refuse_unequal,
)
from kbtrain.labeling.verdicts import Aligned, QuestionVerdicts
from kbtrain.questions.checks import read_questions
from kbtrain.records import CONDITIONS, Label, Question
from kbtrain.runtime.progress import progress_bar


class LabelConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and samples.db")
    sampling_run: str = Field("main", description="name of the sampling run in the store")
    tau_mastery: Tau = Field(0.8, description="known if mastery > tau: a number, {quantile: SHARE}, or middle")
    tau_certainty: Tau = Field(0.8, description="certain if certainty > tau: a number, {quantile: SHARE}, or middle")
    by: LabelledBy = Field("samples", description="samples, or greedy: labels from the greedy answer alone")
    cut: Cut = Field("keep", description="answers cut at the token limit: keep or drop")
    certainty: Literal["common", "paper"] = Field(
        "common", description="common: one scale for all splits; paper: 1 - U / ln I"
    )
    certainty_answers: int | None = Field(
        None, ge=2, description="number of answers of the common scale; null: the smallest number of any split"
    )
    verdicts: bool = Field(False, description="grade by the verdicts in RUN/verdicts.jsonl, see data_gen/judge.py")

    @model_validator(mode="after")
    def _possible(self) -> LabelConfig:
        check_counts(self, "certainty", "common", "certainty_answers")
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "labels.jsonl",)


def questions(path: Path) -> Iterator[Question]:
    total = sum(1 for _ in jsonl.lines(path))
    rows = progress_bar(read_questions(path), total=total, desc="label", unit="questions")
    return (question for _, question in rows)


def main(config: LabelConfig) -> None:
    started = time.monotonic()
    source, store_path, target = (config.run / name for name in ("questions.jsonl", "samples.db", "labels.jsonl"))
    draft, judged = beside(target, ".draft"), config.run / "verdicts.jsonl" if config.verdicts else None
    check_unchanged(source)
    if judged is not None:
        check_current(judged, source)
    with SampleStore(store_path, read_only=True) as store:
        sampling = store.run_meta(config.sampling_run)
        tally = LabelCounts(rule_of(config, store))
        verdicts = None if judged is None else Aligned(QuestionVerdicts, judged)
        drafted = label_questions(store, config.sampling_run, questions(source), tally, verdicts)
        n = jsonl.write(draft, drafted)
    try:
        if not n:
            raise no_labels(config, store_path, source, tally.counts["llm_greedy_only"])
        if config.certainty == "paper" and config.by == "samples":
            refuse_unequal(tally)
        # dev and test take no part in the taus, so these are known only when all answers are graded
        taus = (
            choose_tau("tau_mastery", config.tau_mastery, tally.mastery),
            choose_tau("tau_certainty", config.tau_certainty, tally.certainty),
        )
        rule, distribution = rule_facts(config, tally, taus, sampling), Distribution()  # before anything is written
        jsonl.write(target, distribution.counting(with_taus(label, *taus) for label in jsonl.read(Label, draft)))
    finally:
        draft.unlink()
    extra = {
        "label_rule": rule,
        "sampling": sampling,
        "counts": dict(sorted(tally.counts.items())),
        "distribution": distribution.as_dict(),
    }
    inputs = [source, store_path, *([judged] if judged else [])]
    write_meta(target, stage="label", config=config, inputs=inputs, extra=extra, started=started)
    counts, graded = tally.counts, f"{judged.name} ({rule['judge']['judge']})" if judged else "rules"
    unread = counts["llm_no_verdict"] + counts["llm_judge_abstained"]
    print("\n".join([*distribution.lines(), *tally.warnings()]))
    print(f"{n} labels, graded by {graded}, tau {taus[0]:.3g} / {taus[1]:.3g} (mastery / certainty), "
          f"{counts['questions_without_llm_samples'] - unread} questions without samples, {unread} without a verdict, "
          f"{refused_note(tally)}{time.monotonic() - started:.0f} s -> {target}")  # fmt: skip


def rule_of(config: LabelConfig, store: SampleStore) -> LabelRule:
    """Rule by which answers become indicators; the certainties of all splits share a scale, unless as in the paper."""
    scale = config.certainty_answers or common_answers(store, config.sampling_run)
    return LabelRule(config.by, config.cut, None if config.certainty == "paper" else scale)


def no_labels(config: LabelConfig, store: Path, source: Path, n_greedy: int) -> UserError:
    """The error of a store without answers that give labels, with its remedy."""
    answers = "samples" if config.by == "samples" else "greedy answers"
    remedy = f"the greedy answers to {n_greedy} give labels: --by greedy" if n_greedy else "run data_gen/sample.py"
    return UserError(f"{at(store)}: holds no {answers} under 'llm' for {source}; {remedy}")


def rule_facts(
    config: LabelConfig, tally: LabelCounts, taus: tuple[float, float], sampling: Mapping[str, Any]
) -> dict[str, Any]:
    """All that the labels' values depend on, for the metadata and the gates that learn from them."""
    judged, evidence = config.run / "verdicts.jsonl", config.run / "evidence.jsonl"
    rule: dict[str, Any] = {
        "by": config.by,
        "max_empty": MAX_EMPTY,
        "certainty": {"rule": config.certainty, "answers": tally.rule.certainty_answers},
        "mastery_step": {split: 1 / max(sizes) for split, sizes in tally.answers.items()},
        "cut": {"rule": config.cut, "share": tally.cut_shares()},
        "tau_mastery": {"value": taus[0], "rule": _rule(config.tau_mastery)},
        "tau_certainty": {"value": taus[1], "rule": _rule(config.tau_certainty)},
        **grading.rules_of(question for _, question in read_questions(config.run / "questions.jsonl")),
        # verdicts without metadata were changed by hand, and are to be kept
        "judge": (meta_of(judged).get("judge") or {"judge": "your own verdicts"}) if config.verdicts else None,
        "bootstrap": {"draws": DRAWS, "seed": SEED},
    }
    rule |= {fact: sampling[fact] for fact in ("own_prompts", "not_known") if sampling.get(fact)}
    titles, passages = passages_shown(evidence, sampling)
    if titles != "missing":
        rule["titles"] = titles
    if passages:
        rule["passages"] = passages
    return rule


def refused_note(tally: LabelCounts) -> str:
    """Number of questions that the server refused, by condition; empty where it refused none."""
    counts = ", ".join(f"{n} under '{c}'" for c in CONDITIONS if (n := tally.counts[f"{c}_refused"]))
    return f"refused by the server {counts}, " if counts else ""


def _rule(setting: Tau) -> str:
    if setting == "middle":
        return "the cut of train nearest to halves"
    return f"quantile {setting.quantile} of train" if isinstance(setting, Quantile) else "number"


if __name__ == "__main__":
    run_script(main, LabelConfig, __doc__)
