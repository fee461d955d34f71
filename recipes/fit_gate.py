"""Fit any gate that has a fit(examples, need): in seconds, without a recipe of its own.

The gate is a kind of kbtrain's registry (GATES) or of another package's entry point. It is handed the labelled plain
questions (or turns) and for each the probability that retrieval is needed, whatever the label's direction. The folder
is opened again and must give equal scores; it gets a card, dev's figures and the threshold of best F1 on dev.

Examples:
  python recipes/fit_gate.py --gate structural --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --output runs/ketod/structural
  python recipes/fit_gate.py --gate my_gate --train runs/demo/examples/train.jsonl \\
      --dev runs/demo/examples/dev.jsonl --output runs/demo/my_gate --key benefit --labels soft
"""

from __future__ import annotations

import time

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.gates.registry import kinds
from kbtrain.prompts.kbm import Key
from kbtrain.training.config import FittedConfig
from kbtrain.training.data import Labelled, read_classifier_data
from kbtrain.training.fitted import finish_single


class FitGateConfig(FittedConfig):
    """Settings of this script."""

    gate: str = Field(description="kind of gate, by its name in the registry or of its entry point")
    key: Key = Field("mastery", description="questions only: which label says that retrieval is needed")


def main(config: FitGateConfig) -> None:
    """Look the gate up, read, fit, write."""
    started = time.time()
    able = {name: kind for name, kind in kinds().items() if kind.fit}
    if config.gate not in able:
        made_by = kinds()[config.gate].made_by if config.gate in kinds() else ""
        hint = f"it has no fit; run {made_by}" if made_by else did_you_mean(config.gate, able)
        raise UserError(f"key 'gate': '{config.gate}' cannot be fitted here; {hint}")
    kind = able[config.gate]
    data = read_classifier_data(config.train, config.dev, config.key, config.labels)
    train, dev = plain(data.train), plain(data.dev)
    gate = kind.fit([row.example for row in train], [row.need for row in train]) if kind.fit else None
    if gate is None or gate.card is None:
        raise UserError(f"gate '{config.gate}': its fit() gives no gate with a card to write")
    said = finish_single(config, gate, lambda folder: kind.open(folder, "auto", "auto"), train, dev, started)
    print("fit_gate: " + said)


def plain(rows: tuple[Labelled, ...]) -> list[Labelled]:
    """The rows without retrieved text, if there are any: what a gate is asked about before a search."""
    return [row for row in rows if getattr(row.example, "reference", None) is None] or list(rows)


if __name__ == "__main__":
    run_script(main, FitGateConfig, __doc__)
