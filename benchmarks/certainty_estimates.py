"""Estimates of certainty from 5, 10, 15 and 30 stored answers, and which of them agrees best between these numbers.

Reads the answers that a run folder has stored (seconds, no model), of all questions with as many as the most of
``answers``. Of each question, so many answers are drawn at random without replacement, and certainty is estimated from
them alone: by the paper's plug-in entropy over ln I; by Miller and Madow's and by Chao and Shen's corrected entropies
over the logarithm of the most; and as the mean certainty of the fewest answers that are drawn from those (rarefaction,
``kbtrain.labeling.certainty``), which is the rule of data_gen/label.py.

Examples:
  python benchmarks/certainty_estimates.py --run runs/demo-full
  python benchmarks/certainty_estimates.py --run runs/demo-full --condition rag --least 0.1 --out runs/certainty.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.answers.grading import group_key
from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.labeling.certainty import certainty, group_sizes
from kbtrain.provenance import write_atomically
from kbtrain.questions.checks import read_questions
from kbtrain.records import Condition
from kbtrain.store import SampleStore

Sizes = tuple[int, ...]  # of the groups of equal answers
Estimate = Callable[[Sizes], float]


class CertaintyEstimatesConfig(Config):
    run: Path = Field(Path("runs/demo-full"), description="run folder with questions.jsonl and samples.db")
    sampling_run: str = Field("main", description="name of the sampling run in the store")
    condition: Condition = Field("llm", description="answers without passages, with them, or with masked ones")
    answers: tuple[int, ...] = Field((5, 10, 15, 30), min_length=2, description="numbers of answers that are compared")
    least: float = Field(0.0, ge=0, le=1, description="leave out questions whose answers agree less (paper's value)")
    draws: int = Field(20, ge=1, description="draws of so many answers of each question")
    seed: int = Field(0, ge=0, lt=2**31, description="of the draws")
    out: Path | None = Field(None, description="file for the table in Markdown (default: printed alone)")


def miller_madow(groups: Sizes) -> float:
    """Entropy in nats: the plug-in's, and (number of groups - 1) / 2 n for its bias (Miller 1955)."""
    return _plug_in(groups) + (len(groups) - 1) / (2 * sum(groups))


def chao_shen(groups: Sizes) -> float:
    """Entropy in nats for groups not seen yet: shares shrunk by the sample's coverage (1 - singletons / n), each group
    weighted by its chance to be seen (Chao and Shen 2003). All answers different: one singleton less."""
    n, singletons = sum(groups), sum(size == 1 for size in groups)
    coverage = 1 - (singletons if singletons < n else n - 1) / n
    shares = [coverage * size / n for size in groups]
    return math.fsum(-p * math.log(p) / (1 - (1 - p) ** n) for p in shares)


def _plug_in(groups: Sizes) -> float:
    n = sum(groups)
    return math.log(n) - math.fsum(size * math.log(size) for size in groups) / n


def estimates(fewest: int, most: int) -> dict[str, Estimate]:
    """Certainty from groups, by the estimate's name."""
    return {
        "plug-in over ln I (the paper's)": certainty,
        "Miller-Madow": lambda groups: 1 - miller_madow(groups) / math.log(most),
        "Chao-Shen": lambda groups: 1 - chao_shen(groups) / math.log(most),
        f"mean of {fewest} drawn (the labels')": lambda groups: certainty(groups, fewest),
    }


def main(config: CertaintyEstimatesConfig) -> None:
    numbers = sorted(set(config.answers))
    if numbers[0] < 2 or len(numbers) < 2:
        raise UserError(f"key 'answers': two numbers from 2 on to compare, not {list(config.answers)}")
    answered = grouped(config, numbers[-1])
    if not answered:
        raise UserError(
            f"{at(config.run / 'samples.db')}: no question with {numbers[-1]} answers under '{config.condition}'; "
            "sample more, or choose --answers"
        )
    rng = np.random.default_rng(config.seed)
    drawn = {n: [sizes(answers, n, config.draws, rng) for answers in answered] for n in numbers}
    head = [f"mean at {n}" for n in numbers]
    agree = [f"same label at {n}" for n in numbers[:-1]]
    columns = ["estimate", *head, "drift in sd", *agree]
    lines = [f"| {' | '.join(columns)} |", "|---|" + "--:|" * (len(columns) - 1)]
    for name, estimate in estimates(numbers[0], numbers[-1]).items():
        lines.append(row(name, {n: values(drawn[n], estimate) for n in numbers}))
    table = "\n".join(lines)
    print(f"{len(answered)} questions with {numbers[-1]} answers under '{config.condition}' in {config.run}; "
          f"{config.draws} draws of fewer\n{table}")  # fmt: skip
    if config.out is not None:
        write_atomically(config.out, table + "\n")


def grouped(config: CertaintyEstimatesConfig, n: int) -> list[list[str]]:
    """The group of each of the first ``n`` answers, by question; not of questions with fewer, or that agree less than
    ``least``."""
    found = []
    with SampleStore(config.run / "samples.db", read_only=True) as store:
        for _, question in read_questions(config.run / "questions.jsonl"):
            made = store.get(config.sampling_run, question.id, config.condition)
            if made is not None and len(made.samples) >= n:
                found.append([group_key(question, sample.text) for sample in made.samples[:n]])
    return [answers for answers in found if certainty(_sizes(answers)) >= config.least]


def sizes(answers: list[str], n: int, draws: int, rng: np.random.Generator) -> list[Sizes]:
    """Sizes of the groups among ``n`` of the answers, drawn ``draws`` times; of all of them once."""
    if n == len(answers):
        return [_sizes(answers)]
    return [_sizes(answers[i] for i in rng.permutation(len(answers))[:n]) for _ in range(draws)]


def _sizes(answers: Iterable[str]) -> Sizes:
    return group_sizes(answers)


def values(drawn: list[list[Sizes]], estimate: Estimate) -> Floats:
    """(questions, draws)."""
    return np.array([[estimate(groups) for groups in one] for one in drawn])


def row(name: str, found: dict[int, Floats]) -> str:
    """A line of the table.

    Drift: the largest difference of two means, over the standard deviation between questions at the most answers.
    Same label: share of the questions on the same side of tau, the median at the most answers, as with all of these.
    """
    most = found[max(found)].mean(axis=1)
    tau, spread = float(np.median(most)), float(most.std())
    means = [float(one.mean()) for one in found.values()]
    drift = f"{(max(means) - min(means)) / spread:.2f}" if spread else "-"
    same = [float(((one > tau) == (most > tau)[:, None]).mean()) for n, one in found.items() if n != max(found)]
    cells = [*(f"{mean:.3f}" for mean in means), drift, *(f"{share:.1%}" for share in same)]
    return f"| {name} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    run_script(main, CertaintyEstimatesConfig, __doc__)
