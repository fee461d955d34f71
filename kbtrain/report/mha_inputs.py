"""RAGate-MHA's inputs beside each other: every input with the same budget of epochs, several seeds, epochs by dev."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from kbtrain.evaluation.turns import labelled_turns, run_of
from kbtrain.gate.card import ClassifierCard
from kbtrain.gates.ragate.mha import Inputs, input_folder
from kbtrain.io.provenance import write_atomically
from kbtrain.metrics.turns import GateDifference, GateTurns, classify_turns, compare
from kbtrain.records import Split, TurnExample
from kbtrain.report.tables import difference_table, gate_table
from kbtrain.show.text_table import aligned
from kbtrain.training.config import ClassifierConfig
from kbtrain.training.recipe import Recipe

COMPARED = ("f1", "auroc", "average_precision")


@dataclass(frozen=True)
class TrainedInput:
    """One finished network: the epoch that dev chose, and dev's figures at it."""

    inputs: str
    seed: int
    epoch: float
    f1: float
    auroc: float
    average_precision: float
    seconds: float

    @classmethod
    def from_card(cls, folder: Path, inputs: str, seed: int) -> TrainedInput:
        """From the card of a finished folder."""
        run = ClassifierCard.read(folder, "ragate_mha").run
        dev = run["dev"]
        figures = dev["f1"], dev["auroc"], dev["average_precision"]
        return cls(inputs, seed, run["best_epoch"], *figures, run["seconds"])


@dataclass(frozen=True)
class InputComparison:
    """``rows``: every network; on test, if there is one, each input's means over seeds and the first input minus each
    other one, paired over dialogues."""

    epochs: float
    rows: list[TrainedInput]
    test: list[GateTurns]
    differences: list[GateDifference]

    def text(self) -> str:
        """Tables of dev and, if there is one, test."""
        head = ("input", "seeds", f"epochs chosen, of {self.epochs:g}", "dev F1", "dev AUC", "dev AP")
        by_input: dict[str, list[TrainedInput]] = {}
        for row in self.rows:
            by_input.setdefault(row.inputs, []).append(row)
        cells = [
            [name, str(len(of)), " ".join(f"{row.epoch:g}" for row in of),
             *(_spread([getattr(row, figure) for row in of]) for figure in COMPARED)]
            for name, of in by_input.items()
        ]  # fmt: skip
        parts = [aligned(head, cells)]
        if self.test:
            parts += ["test:", gate_table(self.test), difference_table(self.differences)]
        return "\n\n".join(parts)


def _spread(values: Sequence[float]) -> str:
    sd = f" sd {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{sd}"


def compared_inputs(folders: Mapping[tuple[str, int], Path], epochs: float, turns: Path | None) -> InputComparison:
    """``folders``: by input and seed; ``turns``: dev and test turns, None: nothing was scored on test."""
    rows = [TrainedInput.from_card(folder, *key) for key, folder in folders.items()]
    if turns is None:
        return InputComparison(epochs, rows, [], [])
    examples: dict[Split, list[TurnExample]] = {
        "dev": labelled_turns(turns, "dev"),
        "test": labelled_turns(turns, "test"),
    }
    runs: dict[str, list[Path]] = {}
    for (inputs, _), folder in folders.items():
        runs.setdefault(inputs, []).append(folder / "scores.jsonl")
    scores = {inputs: [run_of(path, examples) for path in paths] for inputs, paths in runs.items()}
    truth = np.array([bool(turn.label) for turn in examples["test"]])
    dialogues = [turn.dialogue_id for turn in examples["test"]]
    found, drawn = classify_turns(truth, dialogues, scores, draws=2000, seed=0)
    return InputComparison(epochs, rows, found, compare(drawn, next(iter(scores)), COMPARED))


def write_inputs(output: Path, found: InputComparison) -> None:
    """Write inputs.json and inputs.md."""
    write_atomically(output / "inputs.json", json.dumps(asdict(found), indent=1) + "\n")
    write_atomically(output / "inputs.md", "```\n" + found.text() + "\n```\n")


def train_inputs(
    recipe: Recipe,
    config: ClassifierConfig,
    inputs: Sequence[Inputs],
    seeds: Sequence[int],
    train: Callable[[Inputs, int], None],
) -> None:
    """Train all inputs with one seed, then with the next: whenever it is stopped, all had about as many.

    Each goes into its folder in the config's output; then inputs.json and inputs.md are written there.
    """
    folders: dict[tuple[str, int], Path] = {}
    for seed in seeds:
        for one in inputs:
            train(one, seed)
            folders[one, seed] = config.output / input_folder(one, seed)
    if recipe.first:
        found = compared_inputs(folders, config.epochs, config.test)
        write_inputs(config.output, found)
        recipe.show(found.text())
    recipe.say(f"{len(folders)} networks, at most {config.epochs:g} epochs each -> {config.output / 'inputs.md'}")
