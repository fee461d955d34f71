"""Pair of a fine-tuned encoder and a probe as one gate: the folder that averages their log odds, and its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbtrain.gate_folder import CARD, set_threshold
from kbtrain.gates.average import AverageGate
from kbtrain.gates.registry import load_gate
from kbtrain.metrics.dev import classifier_metrics, intervals_of_examples
from kbtrain.provenance import write_meta
from kbtrain.training.data import ClassifierData
from kbtrain.training.finish import ClassifierConfig, dev_threshold, score_held_out
from kbtrain.training.run import write_run_files

_TEXT = """---
library_name: kbtrain
tags: [adaptive-retrieval, ragate]
---
# Retrieval gate: the average of {members}
Says whether a dialogue's next turn, or a question, needs retrieved knowledge. Score: sigmoid of the mean of its
members' log odds, in [0, 1]. Their folders, with model cards of their own, are inside this one: copy it whole.

```python
import kbtrain

gate = kbtrain.load_gate("this/folder")
print(gate.score(examples))  # kbtrain.records.TurnExample or GateExample
```

- Trained on the data named in the members' cards; other dialogues, domains and languages were not tried.

## On dev ({n_dev} examples, {positive} positive; 95 % intervals)
{metrics}

Threshold {threshold:.6g} (best F1 on dev; dev chose it, so its own precision, recall and F1 are optimistic).
"""


def finish_pair(
    config: ClassifierConfig, members: Sequence[Path], data: ClassifierData, device: str, run: Mapping[str, Any]
) -> str:
    """Write ``config.output``: a gate of ``members`` (folders inside it), threshold, scores of dev and test, card.

    Returns what is to be said of it.
    """
    output, dev = config.output, [row.example for row in data.dev]
    gate = AverageGate.of(output, members, lambda member: load_gate(member, device=device))
    kept, need = gate.score(dev), [row.need for row in data.dev]
    threshold = dev_threshold(data.dev, kept, config.dev)
    set_threshold(output, gate.name, threshold)
    found = classifier_metrics(need, kept)
    text = _TEXT.format(
        members=" and ".join(f"`{member.name}`" for member in members),
        n_dev=len(dev),
        positive=sum(value > 0.5 for value in need),
        metrics=intervals_of_examples(dev, need, kept, threshold.threshold),
        threshold=threshold.threshold,
    )
    (output / "README.md").write_text(text, encoding="utf-8")
    write_run_files(output, config, ("train", "dev", "test"), None)
    write_meta(output / CARD, stage="train", config=run, inputs=[config.train, config.dev], extra={"dev": found})
    score_held_out(config, output, gate, dev, kept)
    figures = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    return f"average of {' and '.join(member.name for member in members)}; dev: {figures} -> {output}"
