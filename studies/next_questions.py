"""Learning curves of the gate features with questions chosen at random, near its threshold, or spread.

Reads published verdicts (llm_outcomes): each data set's train questions are the pool, its test questions measure. A
random start is labelled; each round chooses more by the current gate's scores, and the gate is fitted again. The
threshold is the median score of the pool. No model is loaded; minutes.

Examples:
  python studies/next_questions.py --corpus passages.jsonl \\
      --path "[llm_outcomes/outcomes.jsonl, llm_outcomes_more/outcomes.jsonl]"
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from published.fits import of_features
from published.sheet import corpus_features
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.gates.features.additive import Row
from kbtrain.io.text_files import read_text
from kbtrain.metrics.ranking import normalised_area
from kbtrain.records import GateExample
from kbtrain.runtime.progress import progress_bar
from kbtrain.serve.next_questions import By, choose_next


class NextConfig(Config):
    path: list[Path] = Field(description="files of published verdicts, a question a line")
    corpus: Path = Field(description="passages whose words' counts the gate reads")
    out: Path = Field(Path("runs/next"), description="folder for the index of the passages")
    model: str = Field("llama-3-8b-instruct", description="model whose verdicts are taken")
    start: int = Field(100, ge=20, description="questions of the random start")
    more: int = Field(50, ge=1, description="questions of each round")
    rounds: int = Field(3, ge=1, description="rounds")
    repeats: int = Field(20, ge=1, description="random starts of each data set")
    seed: int = Field(0, ge=0, description="of the draws")


def main(config: NextConfig) -> None:
    lines = [line for path in config.path for line in map(json.loads, read_text(path).splitlines())]
    lines = [line for line in lines if config.model in line["llms"]]
    rows = corpus_features(config.corpus, config.out, [GateExample.ask(line["question"]) for line in lines])
    verdicts = [line["llms"][config.model] for line in lines]
    none, one = (np.array([verdict[arm] for verdict in verdicts], dtype=np.float64) for arm in ("none", "one"))
    sets: dict[str, dict[str, list[int]]] = defaultdict(lambda: {"train": [], "test": []})
    for place, line in enumerate(lines):
        sets[line["dataset"]][line["split"]].append(place)
    sizes = [config.start + config.more * i for i in range(config.rounds + 1)]
    print("| data set, chosen by | " + " | ".join(f"{size} labelled" for size in sizes) + " |")
    print("|---|" + "--:|" * len(sizes))
    gains: dict[str, list[float]] = defaultdict(list)
    for name, splits in sets.items():
        curves = {by: curve(name, rows, none, one, splits, by, config) for by in get_args(By)}
        for by, areas in curves.items():
            print(f"| {name}, {by} | {' | '.join(f'{area:.3f}' for area in areas.mean(axis=0))} |")
            gains[by] += (areas - curves["random"])[:, 1:].mean(axis=1).tolist()
    for by in get_args(By)[1:]:
        values = np.array(gains[by])
        half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
        gain = f"{values.mean():+.4f} +- {half:.4f}"
        print(f"{by} minus random, mean of the rounds: {gain} ({len(values)} starts)")


def curve(
    name: str, rows: Sequence[Row], none: Floats, one: Floats, splits: Mapping[str, list[int]], by: By,
    config: NextConfig,
) -> Floats:  # fmt: skip
    """Oracle-normalised areas on the data set's test questions, of each start and round."""
    fit, pool, test = of_features(rows), np.array(splits["train"]), splits["test"]
    found = []
    for repeat in progress_bar(range(config.repeats), desc=f"{name}, {by}", unit="starts"):
        rng = np.random.default_rng([config.seed, repeat])
        known, areas = rng.permutation(pool)[: config.start], []
        for _ in range(config.rounds + 1):
            rest = np.setdiff1d(pool, known)
            scores = fit(known.tolist(), (one - none)[known], [*rest.tolist(), *test])
            areas.append(normalised_area(scores[len(rest) :], none[test], one[test]) or 0.0)
            of_pool = scores[: len(rest)]
            chosen = choose_next(of_pool, config.more, by, float(np.median(of_pool)), rng)
            known = np.concatenate([known, rest[chosen]])
        found.append(areas)
    return np.array(found)


if __name__ == "__main__":
    run_script(main, NextConfig, __doc__)
