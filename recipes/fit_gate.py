"""Fit any gate that has a fit(examples, need), in seconds, without a separate recipe.

The gate is a kind of kbtrain's registry (GATES) or of another package's entry point. It gets the labelled plain
questions (or turns), and for each the probability that retrieval is needed, whatever the label's direction. The saved
folder is opened again and must give equal scores; it gets a card, dev's figures and the threshold of best F1 on dev.
Without --key a gate is fitted to each label, and the one that ranks dev best is kept.

Of kbtrain's own gates, encoder_probe reads questions or turns with a frozen sentence encoder, features reads the form
of a question (its own recipe also the corpus's word counts), by_source its source, dialogue_state turns. The others
have no fit: probe needs the answering model's hidden states; kbm, encoder, ragate_mha and ragate_peft are trained in
steps; a stack is made of other gates; seakr and draft learn nothing from labels.

Examples:
  kbtrain run fit_gate --gate dialogue_state --run runs/ketod
  kbtrain run fit_gate --gate encoder_probe --run runs/demo
  kbtrain run fit_gate --gate my_gate --train runs/demo/examples/train.jsonl \\
      --dev runs/demo/examples/dev.jsonl --output runs/demo/my_gate --key benefit --labels soft
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.gate.card import KeyedCard
from kbtrain.gate.gate import Gate
from kbtrain.gates.registry import GATES, Kind, kind_named, kind_to_fit, load_gate
from kbtrain.metrics.turns import classifier_metrics
from kbtrain.prompts.kbm import Key
from kbtrain.records import TurnExample
from kbtrain.training.config import FitConfig
from kbtrain.training.data import Labelled, read_classifier_data, read_examples
from kbtrain.training.fit import FittedGate, SingleEnding, claim_fit_folder

KEYS: tuple[Key, ...] = ("benefit", "mastery", "certainty")  # of equally good ones, the first


def names_to_fit() -> str:
    """Names of the kinds that come with the package and have a fit, for a help text."""
    return ", ".join(sorted(name for name in GATES if kind_named(name).fit))


class FitGateConfig(FitConfig):
    """Settings of this script."""

    gate: str = Field(description=f"kind of gate: {names_to_fit()}, or the name of an entry point")
    run: Path | None = Field(None, description="run folder; its examples or turns and a folder in it are the defaults")
    train: Path = Field(Path("RUN/examples/train.jsonl"), description="training examples (JSONL), or turns")
    dev: Path = Field(
        Path("RUN/examples/dev.jsonl"), description="dev examples, which choose the threshold stored in the folder"
    )
    output: Path = Field(Path("RUN/GATE"), description="folder the gate is written to")
    key: Key | None = Field(None, description="questions: label to learn; null: the label that ranks dev best")

    @model_validator(mode="before")
    @classmethod
    def _of_run(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Paths in the run folder for those that are not given. Raises :class:`ValueError` where both are missing."""
        missing = [name for name in ("train", "dev", "output") if values.get(name) is None]
        if missing and values.get("run") is None:
            raise ValueError(f"give --run, or --{missing[0]}")
        if not missing:
            return values
        run = Path(values["run"])
        turns = run / "turns.jsonl"
        paths = {split: turns if turns.exists() else run / "examples" / f"{split}.jsonl" for split in ("train", "dev")}
        paths["output"] = run / str(values.get("gate"))
        return values | {name: paths[name] for name in missing}


def main(config: FitGateConfig) -> None:
    """Look the gate up, bind the folder to this run, fit by each key, write the best."""
    started = time.monotonic()
    kind = kind_to_fit(config.gate)
    claim_fit_folder(config, config.gate, frozenset({"run"}))
    by_key = fit_by_keys(config, kind)
    key, areas = best_key(by_key)
    best, facts = by_key[key], {"key": key} | ({"dev_auroc_by_key": areas} if len(areas) > 1 else {})
    ending = SingleEnding(config, best, load_gate, started, facts)
    print("fit_gate: " + ending.finish())


def fit_by_keys(config: FitGateConfig, kind: Kind) -> dict[Key, FittedGate]:
    """A gate for the key asked for, or for each whose labels have both classes in both files (turns have one label).

    Raises :class:`UserError` without any, naming what the first lacks.
    """
    turns = isinstance(read_examples(config.train)[0], TurnExample)
    if (reads := "turn" if turns else "question") not in kind.reads:
        raise UserError(
            f"{config.train}: {reads}s; gate '{config.gate}' reads {' and '.join(sorted(kind.reads))}s alone"
        )
    keys: tuple[Key, ...] = (config.key or "mastery",) if turns or config.key else KEYS
    by_key: dict[Key, FittedGate] = {}
    problems: list[UserError] = []
    for key in keys:
        try:
            data = read_classifier_data(config.train, config.dev, key, config.labels)
        except UserError as error:
            problems.append(error)
            continue
        train, dev = plain_rows(data.train), plain_rows(data.dev)
        by_key[key] = FittedGate(fit_kind(config.gate, kind, key, train), train, dev)
    if not by_key:
        raise problems[0]
    return by_key


def fit_kind(name: str, kind: Kind, key: Key, rows: Sequence[Labelled]) -> Gate:
    """A gate of the kind, fitted to labels of that key. Raises :class:`UserError` for one without a card."""
    examples, need = [row.example for row in rows], [row.need for row in rows]
    named = {"key": key} if issubclass(kind.card, KeyedCard) else {}
    gate = kind.fit(examples, need, **named) if kind.fit else None
    if gate is None or gate.card is None:
        raise UserError(f"gate '{name}': its fit() gives no gate with a card to write")
    return gate


def best_key(tried: Mapping[Key, FittedGate]) -> tuple[Key, dict[str, float]]:
    """The key whose gate ranks dev best, and each one's AUROC.

    All are measured on the same labels: benefit's (a search was needed), and on their own only where these are missing.
    """
    areas = {}
    for key, fitted in tried.items():
        rows = tried.get("benefit", fitted).dev
        scores = fitted.gate.score([row.example for row in rows])
        areas[key] = classifier_metrics([row.is_needed for row in rows], scores).get("auroc", 0.5)
    return max(areas, key=lambda key: areas[key]), {str(key): area for key, area in areas.items()}


def plain_rows(rows: tuple[Labelled, ...]) -> list[Labelled]:
    """The rows without retrieved text, if there are any: what a gate is asked about before a search."""
    return [row for row in rows if getattr(row.example, "reference", None) is None] or list(rows)


if __name__ == "__main__":
    run_script(main, FitGateConfig, __doc__)
