"""KBM's double judgement from stored scores (section 5.4): passages that do not lead to an answer are dropped.

Reads a run's questions.jsonl, samples.db, scores/ and scores_reference.jsonl (eval/score_reference.py); no model runs
here. Both thresholds are chosen on dev (best_accuracy also reads training questions for the first one). Writes
RUN/double_judgement.json and .md.

Examples:
  kbtrain run double_judgement --config kbm_double_judgement
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import run_script
from kbtrain.errors import UserError, at
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.cost import Usage, usage
from kbtrain.evaluation.decisions import DevRule, GateInput, decide
from kbtrain.evaluation.gate_inputs import training_in
from kbtrain.evaluation.outcomes import AccuracyKind, Correctness, Resample, drawn_units
from kbtrain.evaluation.run_folder import (
    ResampleConfig,
    RunFolder,
    StoredAnswersConfig,
    check_sampled,
    read_run,
    seen_note,
)
from kbtrain.evaluation.scores import ByGate, in_order, read_scores
from kbtrain.io.provenance import check_current, meta_of, write_atomically, write_result
from kbtrain.metrics.significance import Delta, draw_policies
from kbtrain.metrics.thresholds import Dev, ThresholdConfig, Training, choose
from kbtrain.report.summary import bootstrap_units
from kbtrain.report.tables import Column, Table, Value, as_markdown, as_text
from kbtrain.report.words import by_rule, points_interval

DRAWS, SEED, NO_TRAINING = 5_000, 20_243, Training()


class DoubleJudgementConfig(ThresholdConfig, StoredAnswersConfig, ResampleConfig):
    run: Path = Field(Path("runs/demo"), description="run folder")
    gates: tuple[str, ...] = Field(("kbm_mastery", "kbm_certainty"), description="gates with second scores, in order")
    accuracy: AccuracyKind = Field("greedy", description="greedy answers, or expected (samples)")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "double_judgement.json",)


def main(config: DoubleJudgementConfig) -> None:
    started, (target,) = time.monotonic(), config.writes()
    run = read_run(config.run, config.sampling_run, config.allow_missing)
    check_sampled([run], config.accuracy)
    cut = DevRule(config.threshold_rule, config.target_ratio, config.accuracy)
    rows = judged_twice(config, run, cut)
    units = drawn_units(config.resample, run.test.questions)
    note = f"Model: {run.model}; thresholds {by_rule(cut.rule)}. Intervals draw {bootstrap_units({'resample': units})}."
    table = double_judgement_table(rows, note + seen_note([run], config.gates))
    write_atomically(target.with_suffix(".md"), as_markdown(table))
    inputs = [*run.files, config.run / "scores_reference.jsonl"]
    write_result(target, asdict(table), stage="double_judgement", config=config, inputs=inputs, started=started)
    print("\n".join([as_text(table), *run.notes]))
    print(f"double judgement: {len(rows)} gates on {len(run.test.questions)} test questions -> {target} and .md")


def judged_twice(config: DoubleJudgementConfig, run: RunFolder, cut: DevRule) -> list[DoubleJudgement]:
    """Each gate that has second scores. Raises :class:`UserError` where none has."""
    path = config.run / "scores_reference.jsonl"
    sources = (config.run / name for name in ("questions.jsonl", "evidence.jsonl"))
    check_current(path, *sources, command="eval/score_reference.py")
    again, made_by = read_scores(path), meta_of(path).get("key", {}).get("kbm")
    gates = [gate for gate in config.gates if gate in again]
    if not gates:
        raise UserError(f"{path}: no scores of {', '.join(config.gates)}")
    if skipped := [gate for gate in config.gates if gate not in again]:
        print(f"skipped, no scores in {path}: {', '.join(skipped)}")
    for gate in gates:
        first, _ = run.stored.scores_of(gate)
        if made_by not in (None, meta_of(first).get("key", {}).get("gate", made_by)):
            raise UserError(f"{at(path)}: made by another gate than {first}; run eval/score_reference.py again")
    kind = oc.dev_kind(run.dev.outcomes, cut.kind)
    of = (config.run, config.sampling_run, gates, run.stored, kind)
    training = training_in(*of) if cut.rule == "best_accuracy" else {}
    return [judge_double(run, again, gate, cut, config.resample, training.get(gate, NO_TRAINING)) for gate in gates]


@dataclass(frozen=True)
class AnswerPolicy:
    """Accuracy, share of questions with a search, share whose chunks were passed on, and prompt tokens read in all
    (None: those of some answers are not known).

    ``gain``: accuracy minus that of as many chunks passed on at random.
    """

    name: str
    accuracy: float
    searched: float
    passed_on: float
    tokens: int | None
    gain: Delta


@dataclass(frozen=True)
class DoubleJudgement:
    """Five ways to answer the same ``n`` questions: LLM Only, All RAG, one judgement of the gate, two judgements, and
    as many chunks passed on as by two judgements, at random.

    ``threshold`` and ``second_threshold`` are those of the scores without and with the reference. ``second_gain``:
    accuracy of two judgements minus that of one.
    """

    gate: str
    n: int
    threshold: float
    second_threshold: float
    ways: tuple[AnswerPolicy, ...]
    second_gain: Delta


def second_threshold(rule: str, searched: NDArray[np.bool_], with_reference: Floats, answers: Correctness) -> float:
    """Chosen on the dev questions that the first judgement searches for: chunks are dropped if the score with them
    is above it. Chunks of a part are dropped only where that gives more right answers than passing on all or none, by
    two standard errors. Rule ``0.5`` needs no dev; without a searched dev question it is 0.5 as well."""
    if rule == "0.5" or not searched.any():
        return 0.5
    # "retrieve" of the rule, which prefers few of them, is "pass the chunks on" here: the scores change their sign
    passed_on = Dev(-with_reference[searched], answers.llm[searched], answers.rag[searched])
    # passed on: -score > value; judge_twice passes on what is not above the second threshold
    return float(np.nextafter(-choose("best_accuracy", passed_on).value, -np.inf))


def judge_twice(
    gate: str, first: Floats, with_reference: Floats, answers: Correctness, used: Usage, thresholds: tuple[float, float]
) -> DoubleJudgement:
    """``first``: scores of the plain questions; ``with_reference``: of the same questions with their chunks;
    ``thresholds`` of both."""
    threshold, second = thresholds
    searched = first > threshold
    passed_on = searched & (with_reference <= second)
    none, everything = np.zeros_like(searched), np.ones_like(searched)
    chosen = {
        "LLM Only": (none, none),
        "All RAG": (everything, everything),
        "gate": (searched, searched),
        "double judgement": (searched, passed_on),
    }
    retrieve = [passed.astype(np.float64) for _, passed in chosen.values()]
    drawn = draw_policies(answers.llm, answers.rag, retrieve, DRAWS, SEED, answers.clusters)
    ways = [
        AnswerPolicy(
            name,
            accuracy=float(of.accuracy[0]),
            searched=float(is_searched.mean()),
            passed_on=float(of.ratio[0]),
            tokens=_read(used, passed.astype(np.float64)),
            gain=of.over_chance,
        )
        for of, (name, (is_searched, passed)) in zip(drawn, chosen.items(), strict=True)
    ]
    ways.append(_random(float(passed_on.mean()), answers, used))
    gain = drawn[3].accuracy_over(drawn[2])
    return DoubleJudgement(gate, len(first), threshold, second, tuple(ways), gain)


def _random(share: float, answers: Correctness, used: Usage) -> AnswerPolicy:
    """As many chunks passed on, of randomly drawn questions, the only ones with a search: expected figures."""
    accuracy = (1 - share) * answers.llm.mean() + share * answers.rag.mean()
    return AnswerPolicy("random", float(accuracy), share, share, _read(used, share), Delta(0.0, 0.0, 0.0))


def _read(used: Usage, passed: Floats | float) -> int | None:
    """Prompt tokens, where ``passed`` is the probability of passing the chunks of a question on."""
    tokens = ((1 - passed) * used.llm_in + passed * used.rag_in).sum()
    return round(float(tokens)) if used.has_tokens.all() else None


def judge_double(
    run: RunFolder, referenced: ByGate, gate: str, cut: DevRule, resample: Resample, train: Training = NO_TRAINING
) -> DoubleJudgement:
    """``referenced``: the scores that the gate gives when it sees the chunks; ``resample``: what intervals draw;
    ``train``: training questions, for the first threshold by rule ``best_accuracy``."""
    _, plain = run.stored.scores_of(gate)
    path, parts = run.stored.path, (run.dev, run.test)
    (dev_first, first), (dev_second, second) = (
        [np.array(in_order(gate, scores, part.ids, path)) for part in parts] for scores in (plain, referenced[gate])
    )
    chosen = decide(GateInput(gate, dev_first, first, train=train), run.dev.outcomes, cut).threshold
    threshold = chosen.value if chosen else 0.5
    dev = oc.answers(run.dev.outcomes, oc.dev_kind(run.dev.outcomes, cut.kind))
    test, used = oc.answers(run.test.outcomes, cut.kind), usage(run.test.graded["llm"], run.test.graded["rag"])
    other = second_threshold(cut.rule, dev_first > threshold, dev_second, dev)
    clusters = oc.clusters_of(resample, run.test.questions)
    return judge_twice(gate, first, second, replace(test, clusters=clusters), used, (threshold, other))


def double_judgement_table(rows: Sequence[DoubleJudgement], note: str) -> Table:
    """Accuracy and tokens read of LLM Only, All RAG, one judgement, two, and chance (KBM, figure 8)."""
    columns = [Column("gate", "text"), Column("way", "text"), Column("n", "count"),
               Column("accuracy"), Column("vs Rnd", "points"), Column("95 %", "text"), Column("searched"),
               Column("passed on"), Column("tokens read", "count"), Column("of All RAG's")]  # fmt: skip
    body: list[list[Value]] = [
        [row.gate, way.name, row.n, way.accuracy, way.gain.mean, points_interval(way.gain), way.searched,
         way.passed_on, way.tokens, way.tokens / everything if way.tokens is not None and everything else None]
        for row in rows
        for everything in [row.ways[1].tokens]
        for way in row.ways
    ]  # fmt: skip
    second = "; ".join(
        f"{row.gate} {100 * row.second_gain.mean:+.1f} {points_interval(row.second_gain)}" for row in rows
    )
    text = (
        "In percent; tokens read: prompt tokens of the answers, all questions together. Passed on: share of questions "
        "whose chunks reach the answering model; vs Rnd: accuracy minus that of as many chunks "
        f"passed on at random (row random: as many as by two judgements). The second judgement's gain over one: "
        f"{second}."
    )
    return Table("double_judgement", "Double judgement (KBM, figure 8)", f"{text} {note}", columns, body)


if __name__ == "__main__":
    run_script(main, DoubleJudgementConfig, __doc__)
