"""Fit any gate that has a fit(examples, need): in seconds, without a recipe of its own.

The gate is a kind of kbtrain's registry (GATES) or of another package's entry point. It is handed the labelled plain
questions (or turns) and for each the probability that retrieval is needed, whatever the label's direction. The folder
is opened again and must give equal scores; it gets a card, dev's figures and the threshold of best F1 on dev. Without
--key a gate is fitted to each label there is, and the one that ranks dev best is kept. Features of a gate that names
them (Kind.features) are extracted once and kept beside the output folder, for every later fit, to whatever label.

Examples:
  python recipes/fit_gate.py --gate structural --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --output runs/ketod/structural
  python recipes/fit_gate.py --gate my_gate --train runs/demo/examples/train.jsonl \\
      --dev runs/demo/examples/dev.jsonl --output runs/demo/my_gate --key benefit --labels soft
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.gates.fitting import Fitted, best_key, kind_to_fit, plain
from kbtrain.gates.registry import Kind
from kbtrain.prompts.kbm import Key
from kbtrain.records import TurnExample
from kbtrain.training.config import FittedConfig
from kbtrain.training.data import read_classifier_data, read_examples
from kbtrain.training.fitted import claim_fitted, finish_single
from kbtrain.training.kept_features import KeptFeatures

KEYS: tuple[Key, ...] = ("benefit", "mastery", "certainty")  # of equally good ones, the first


class FitGateConfig(FittedConfig):
    """Settings of this script."""

    gate: str = Field(description="kind of gate, by its name in the registry or of its entry point")
    key: Key | None = Field(None, description="questions: label to learn; without it the one that dev chooses")
    features: Path | None = Field(
        None,
        description="file of the gate's kept features, if it names such; without it GATE_features.safetensors "
        "beside the output folder",
    )


def main(config: FitGateConfig) -> None:
    """Look the gate up, bind the folder to this run, fit by each key, write the best."""
    started = time.monotonic()
    kind = kind_to_fit(config.gate)
    claim_fitted(config, config.gate, frozenset({"features"}))
    kept = kept_features(config, kind)
    tried = fit_by_keys(config, kind, kept)
    key, areas = best_key(tried, kept)
    best, chosen = tried[key], {"key": key} | ({"dev_auroc_by_key": areas} if len(areas) > 1 else {})
    said = finish_single(
        config, best.gate, lambda folder: kind.open(folder, "auto", "auto"), best.train, best.dev, started, chosen, kept
    )
    print("fit_gate: " + said)
    if kept is not None:
        print(f"features of {len(kept)} examples in {kept.path}, {kept.extracted} of them extracted now")


def kept_features(config: FitGateConfig, kind: Kind) -> KeptFeatures | None:
    """The file of the gate's features; None for a gate that names none. Raises :class:`UserError`."""
    if kind.features is None:
        return None
    path = config.features or config.output.parent / f"{config.gate}_features.safetensors"
    return KeptFeatures(path, kind.features, config.gate)


def fit_by_keys(config: FitGateConfig, kind: Kind, kept: KeptFeatures | None) -> dict[Key, Fitted]:
    """A gate for the key asked for, or for each whose labels have both classes in both files (turns have one label).

    Raises :class:`UserError` if there is none, naming what the first lacks.
    """
    turns = isinstance(read_examples(config.train)[0], TurnExample)
    keys: tuple[Key, ...] = (config.key or "mastery",) if turns or config.key else KEYS
    found: dict[Key, Fitted] = {}
    problems = []
    for key in keys:
        try:
            data = read_classifier_data(config.train, config.dev, key, config.labels)
        except UserError as error:
            problems.append(error)
            continue
        train, dev = plain(data.train), plain(data.dev)
        examples, need = [row.example for row in train], [row.need for row in train]
        more = () if kept is None else (kept.of(examples),)
        gate = kind.fit(examples, need, *more) if kind.fit else None
        if gate is None or gate.card is None:
            raise UserError(f"gate '{config.gate}': its fit() gives no gate with a card to write")
        found[key] = Fitted(gate, train, dev)
    if not found:
        raise problems[0]
    return found


if __name__ == "__main__":
    run_script(main, FitGateConfig, __doc__)
