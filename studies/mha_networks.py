"""RAGate-MHA's networks beside each other: the paper's grid of sizes, and inputs with one budget and several seeds.

Each network is trained by recipes/train_ragate_mha.py in its own folder, so a killed study resumes. Dev chooses;
with --test each input's figures on test are compared over dialogues.

Examples:
  python studies/mha_networks.py --config studies/ragate_mha_grid.yaml --turns runs/ketod/turns.jsonl \\
      --output runs/ketod/mha_sweep
  python studies/mha_networks.py --config studies/ragate_mha_inputs.yaml --turns runs/ketod/turns_features.jsonl \\
      --test --output runs/ketod/mha_inputs
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.scores import read_labelled_turns, seed_scores
from kbtrain.gate.card import ClassifierCard
from kbtrain.gates.ragate.mha import Inputs
from kbtrain.io.provenance import write_atomically
from kbtrain.metrics.turns import classify_turns, compare
from kbtrain.report.tables import difference_table, gate_table
from kbtrain.show import aligned, number

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "train_ragate_mha.py"
COMPARED = ("f1", "auroc", "average_precision")


class MhaNetworksConfig(Config):
    turns: Path = Field(description="turns.jsonl, with features if an input needs them")
    test: bool = Field(False, description="score the test turns too, and compare the inputs on them")
    output: Path = Field(description="folder of the networks and the tables")
    layers: tuple[int, ...] = Field((5,), min_length=1, description="layers; the paper's grid: 2 to 8")
    heads: tuple[int, ...] = Field((4,), min_length=1, description="attention heads; the paper's grid: 2 and 4")
    sizes: tuple[int, ...] = Field((64,), min_length=1, description="embedding sizes; the paper's grid: 64, 128, 256")
    inputs: tuple[Inputs, ...] = Field(("contx",), min_length=1, description="inputs; the first is compared with all")
    seeds: tuple[int, ...] = Field((0,), min_length=1, description="seeds of each network")
    recipe: dict[str, Any] = Field(default_factory=dict, description="further keys of train_ragate_mha")


@dataclass(frozen=True)
class Network:
    """Input, size and seed of one network."""

    inputs: Inputs
    layers: int
    heads: int
    d_model: int
    seed: int

    @property
    def folder(self) -> str:
        """A folder's name."""
        inputs = self.inputs.replace("*", "_x_").replace("+", "_")
        return f"{inputs}_l{self.layers}_h{self.heads}_d{self.d_model}_seed{self.seed}"


def networks(config: MhaNetworksConfig) -> list[Network]:
    """All combinations, small ones first; all inputs with one seed, then with the next."""
    combinations = itertools.product(config.seeds, config.sizes, config.layers, config.heads, config.inputs)
    return [Network(inputs, layers, heads, size, seed) for seed, size, layers, heads, inputs in combinations]


def train(network: Network, config: MhaNetworksConfig) -> dict[str, Any]:
    """Train one network, and return what its card notes of the training. Raises :class:`UserError` if that fails."""
    folder = config.output / network.folder
    data = {"train": config.turns, "dev": config.turns, **({"test": config.turns} if config.test else {})}
    keys = {**config.recipe, **asdict(network), **data, "output": folder}
    arguments = [part for key, value in keys.items() for part in (f"--{key.replace('_', '-')}", str(value))]
    if subprocess.run([sys.executable, str(RECIPE), *arguments], check=False).returncode != 0:
        raise UserError(f"{folder}: its training failed; see the line above")
    return ClassifierCard.read(folder, "ragate_mha").run


def dev_table(runs: Mapping[Network, dict[str, Any]]) -> str:
    """A line for each network, its seeds together: epochs chosen and dev figures; the best dev F1 first."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for network, run in runs.items():
        name = f"h({network.heads})-l({network.layers})-emb({network.d_model})"
        groups.setdefault((network.inputs, name), []).append(run)
    best_first = sorted(groups.items(), key=lambda item: -statistics.fmean(run["dev"]["f1"] for run in item[1]))
    rows = [
        [*name, " ".join(f"{run['best_epoch']:g}" for run in seeds),
         *(mean_and_sd([run["dev"][figure] for run in seeds]) for figure in COMPARED),
         f"{sum(run['seconds'] for run in seeds):.0f}"]
        for name, seeds in best_first
    ]  # fmt: skip
    return aligned(("input", "network", "epochs chosen", "dev F1", "dev AUC", "dev AP", "seconds"), rows)


def mean_and_sd(values: Sequence[float]) -> str:
    """Mean, and the standard deviation of several values."""
    sd = f" sd {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{number(statistics.fmean(values))}{sd}"


def test_tables(config: MhaNetworksConfig, trained: Sequence[Network]) -> list[str]:
    """Each input's figures on test, and the first input minus each other one, paired over dialogues."""
    examples = read_labelled_turns(config.turns, "dev", "test")
    files: dict[str, list[Path]] = {}
    for network in trained:
        files.setdefault(network.inputs, []).append(config.output / network.folder / "scores.jsonl")
    scores = {inputs: [seed_scores(path, examples) for path in paths] for inputs, paths in files.items()}
    truth = np.array([bool(turn.label) for turn in examples["test"]])
    dialogues = [turn.dialogue_id for turn in examples["test"]]
    figures, draws = classify_turns(truth, dialogues, scores, draws=2000, seed=0)
    return ["test:", gate_table(figures), difference_table(compare(draws, next(iter(scores)), COMPARED))]


def main(config: MhaNetworksConfig) -> None:
    """Train all networks; networks.json and networks.md are written again after each."""
    runs: dict[Network, dict[str, Any]] = {}
    for network in networks(config):
        runs[network] = train(network, config)
        rows = [{**asdict(trained), "run": run} for trained, run in runs.items()]
        write_atomically(config.output / "networks.json", json.dumps(rows, indent=1) + "\n")
        write_atomically(config.output / "networks.md", f"```\n{dev_table(runs)}\n```\n")
    tables = [dev_table(runs), *(test_tables(config, list(runs)) if config.test and len(config.inputs) > 1 else [])]
    write_atomically(config.output / "networks.md", "```\n" + "\n\n".join(tables) + "\n```\n")
    print(f"{tables[0]}\n{len(runs)} networks -> {config.output / 'networks.md'}")


if __name__ == "__main__":
    run_script(main, MhaNetworksConfig, __doc__)
