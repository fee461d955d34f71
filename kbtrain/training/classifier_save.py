"""The end of a classifying gate's training: saved, opened again, and the scores must be the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kbtrain.classifier_folder import ClassifierCard, write_classifier_card
from kbtrain.errors import UserError
from kbtrain.folder import CARD
from kbtrain.gates.encoder.input import Example

TOLERANCE = 1e-6  # of a probability, between the trained model and the one opened from its folder


def save_classifier(
    output: Path, gate: Any, card: ClassifierCard, probe: Sequence[Example], kept: Sequence[float], figures: str
) -> float:
    """Write weights, tokenizer, model card and ``gate.json`` into ``output``; ``kept`` are ``gate``'s scores
    of the dev examples ``probe``, ``figures`` a table of how good they are.

    ``gate.json`` arrives last: a folder that has it is whole. Returns the largest difference of a score; raises
    :class:`UserError` above 1e-6, and leaves the folder without a gate.
    """
    staging = output / "saving"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    gate.model.save_pretrained(staging)
    gate.reader.tokenizer.save_pretrained(staging)
    if hasattr(gate, "save_beside"):
        gate.save_beside(staging)
    write_classifier_card(staging, card)
    again = type(gate).load(staging, device=str(gate.model.device)).score(probe)
    worst = max(abs(a - b) for a, b in zip(kept, again, strict=True))
    if not worst <= TOLERANCE:
        raise UserError(
            f"{staging}: the saved gate scores differently from the trained one (by up to {worst:.2g}); "
            "nothing was put into the output folder"
        )
    (staging / "README.md").write_text(card_text(card, worst, len(probe), figures), encoding="utf-8")
    for path in sorted(staging.iterdir(), key=lambda p: p.name == CARD):
        target = output / path.name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(path, target)
    staging.rmdir()
    return float(worst)


_TEXT = """---
library_name: kbtrain
tags: [adaptive-retrieval, ragate]
---
# Retrieval gate ({kind}{base})
Says whether a dialogue's next turn, or a question, needs retrieved knowledge. Score: p(retrieval needed) in [0, 1].

```python
import kbtrain

gate = kbtrain.load_gate("this/folder")
print(gate.score(examples))  # kbtrain.records.TurnExample or GateExample
```

- Reads: {reads}{adds}
- Labels: {labels}{rule}
- Saved, opened again and scored on {n_probe} examples: largest difference of a score {worst:.1e}.
- Trained on the data named below; other dialogues, domains and languages were not tried.

## On dev ({n_probe} examples; 95 % intervals)
{figures}

Dev chose the threshold, so its own precision, recall and F1 are optimistic.

## Threshold (chosen on dev)
{thresholds}

## Run
{run}

## Versions
{versions}
"""


_ADDS = """
- Its logit is added to the log odds of a {} gate (`base.json`), fitted to the same training turns: turns only."""


def card_text(card: ClassifierCard, worst: float, n_probe: int, figures: str) -> str:
    """The README.md of the gate's folder, filled from its run."""
    cuts = {name: f"{t.threshold:.6g} (rule {t.rule}, {t.n_dev} examples)" for name, t in card.thresholds.items()}
    return _TEXT.format(
        kind=card.kind,
        base=f" on {card.base_model}" if card.base_model else "",
        adds=_ADDS.format(card.base) if card.base else "",
        reads=", ".join(f"{key} {value}" for key, value in card.reads.items()),
        labels=card.labels,
        rule="".join(f", {key} {value}" for key, value in card.label_rule.items()),
        n_probe=n_probe,
        figures=figures,
        worst=worst,
        thresholds=_table(cuts) or "none",
        run=_table(card.run),
        versions=_table(card.versions),
    )


def _table(values: dict[str, Any]) -> str:
    return "| | |\n|---|---|\n" + "\n".join(f"| {k} | {v} |" for k, v in values.items()) if values else ""
