"""Simulate how often the intervals of kbtrain audit and kbtrain value hold the true figure of a whole file.

Reads published verdicts (llm_outcomes): right or wrong without a search and with one, of every question. The gate is
simulated: the gain of a search plus noise, at a threshold that searches for a share of the questions. An audit draws
turns and hides the rest; a log hides one arm of each question. The true figures are those of the whole file. No model
is loaded; minutes.

Examples:
  python benchmarks/interval_coverage.py --path "[llm_outcomes/outcomes.jsonl, llm_outcomes_more/outcomes.jsonl]"
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.arrays import Bools, Floats
from kbtrain.config import Config, run_script
from kbtrain.evaluation.audit import JudgedTurns, audit_figures, draw_turns
from kbtrain.io.text_files import read_text
from kbtrain.metrics.off_policy import Logged, policy_value
from kbtrain.metrics.significance import Delta
from kbtrain.runtime.progress import progress_bar

JUDGE_ERRS = 0.1  # of the verdicts of the simulated judge
SIGNAL = 0.7  # of the gain in the gate's score, beside noise of spread 1


class CoverageConfig(Config):
    path: list[Path] = Field(description="files of published verdicts, a question a line")
    models: list[str] = Field(["llama-3-8b-instruct", "gpt-4o"], description="models whose verdicts are taken")
    times: int = Field(1000, ge=1, description="audits and logs of each kind")
    turns: int = Field(100, ge=10, description="turns of an audit that people judge")
    judged: int = Field(400, ge=20, description="turns that a judge labels, where people label a part")
    requests: list[int] = Field([500, 2000], description="sizes of the logs")
    explore: float = Field(0.05, gt=0, lt=1, description="share of the requests that a coin decides")
    seed: int = Field(0, ge=0, description="seed of the draws")


def main(config: CoverageConfig) -> None:
    lines = [json.loads(line) for path in config.path for line in read_text(path).splitlines()]
    audits = ["| model, searched | people alone: " + " | ".join(FIGURES) + " | with a judge: " + " | ".join(FIGURES)
              + " | width |", "|---|" + "--:|" * (2 * len(FIGURES) + 1)]  # fmt: skip
    values = ["| model, policy, requests | fewest | covered |", "|---|--:|--:|"]
    for number, model in enumerate(config.models):
        rng = np.random.default_rng([config.seed, number])
        verdicts = [line["llms"][model] for line in lines if model in line["llms"]]
        llm, rag = (np.array([one[arm] for one in verdicts], dtype=np.float64) for arm in ("none", "one"))
        scores = SIGNAL * (rag - llm) + rng.normal(size=len(llm))
        for share in (0.9, 0.5):
            audits.append(audit_row(f"{model}, {share:.0%}", JudgedTurns(scores, llm, rag), share, config, rng))
        values += value_rows(model, JudgedTurns(scores, llm, rag), config, rng)
    print(f"{config.times} audits of {config.turns} turns; with a judge who errs in {JUDGE_ERRS:.0%}: {config.judged} "
          f"turns, {config.turns} of them judged by people")  # fmt: skip
    print("\n".join([*audits, "", f"{config.times} logs with {config.explore:.0%} explored", *values]))


FIGURES = ("never", "always", "gate", "difference", "needless", "missed")


def audit_row(name: str, world: JudgedTurns, share: float, config: CoverageConfig, rng: np.random.Generator) -> str:
    """Coverage of each figure: by people alone, and by people and a judge; ratio of the widths for the gate's share."""
    threshold = float(np.quantile(world.scores, 1 - share))
    true = audit_figures(world, threshold)
    covered: dict[bool, list[list[bool]]] = {False: [], True: []}
    widths: dict[bool, list[float]] = {False: [], True: []}
    for _ in progress_bar(range(config.times), desc=name, unit="audits"):
        for judge in (False, True):
            found = audit_figures(audited(world, config, judge, rng), threshold)
            pairs = [(getattr(found, figure), getattr(true, figure)) for figure in FIGURES]
            covered[judge].append([holds(one, of.mean) for one, of in pairs])
            widths[judge].append(found.gate.high - found.gate.low)
    cells = [f"{share:.1%}" for judge in (False, True) for share in np.mean(covered[judge], axis=0)]
    return f"| {name} | {' | '.join(cells)} | {np.mean(widths[True]) / np.mean(widths[False]):.2f} |"


def audited(world: JudgedTurns, config: CoverageConfig, judge: bool, rng: np.random.Generator) -> JudgedTurns:
    """An audit's turns; with a judge, who errs at random, people judge a part of them."""
    places = draw_turns(world.scores, config.judged if judge else config.turns, rng)
    llm, rag = world.llm[places], world.rag[places]
    if not judge:
        return JudgedTurns(world.scores[places], llm, rag)
    by_judge = [np.where(rng.random(len(places)) < JUDGE_ERRS, 1 - arm, arm) for arm in (llm, rag)]
    unseen = rng.permutation(len(places))[config.turns :]
    people = [arm.copy() for arm in (llm, rag)]
    for arm in people:
        arm[unseen] = np.nan
    return JudgedTurns(world.scores[places], people[0], people[1], by_judge[0], by_judge[1])


def value_rows(model: str, world: JudgedTurns, config: CoverageConfig, rng: np.random.Generator) -> Iterator[str]:
    """Coverage of the estimate for policies unlike the one in service, and for that one."""
    served = world.scores > np.median(world.scores)
    policies = {
        "always": np.ones_like(served), "25 %": world.scores > np.quantile(world.scores, 0.75), "as served": served
    }  # fmt: skip
    for policy, searches in policies.items():
        true = float(np.where(searches, world.rag, world.llm).mean())
        for n in config.requests:
            drawn = [
                policy_value(*one_log(world, served, searches, n, config.explore, rng))
                for _ in progress_bar(range(config.times), desc=f"{policy}, {n}", unit="logs")
            ]
            cells = [f"{np.mean([one.fewest for one in drawn]):.0f}"]
            cells.append(f"{np.mean([holds(one.normalised, true) for one in drawn]):.1%}")
            yield f"| {model}, {policy}, {n:,} | {' | '.join(cells)} |"


def one_log(
    world: JudgedTurns, served: Bools, searches: Bools, n: int, explore: float, rng: np.random.Generator
) -> tuple[Logged, Bools]:
    """A log of n requests, and what the policy would do."""
    places = rng.integers(len(served), size=n)
    decided = served[places]
    done: Bools = np.where(rng.random(n) < explore, rng.random(n) < 0.5, decided)
    propensity: Floats = np.where(done == decided, 1 - explore / 2, explore / 2)
    right = np.where(done, world.rag[places], world.llm[places])
    return Logged(world.scores[places], done, propensity, right), searches[places]


def holds(interval: Delta | None, true: float) -> bool:
    """True if the interval holds the value; without an interval nothing was claimed."""
    return interval is None or interval.low - 1e-12 <= true <= interval.high + 1e-12


if __name__ == "__main__":
    run_script(main, CoverageConfig, __doc__)
