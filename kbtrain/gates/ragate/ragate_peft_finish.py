"""RAGate-PEFT's run, told and filed: threshold on dev, the gate's folder, scores of dev and test, the model card."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbtrain.folder import CARD
from kbtrain.gates.ragate.peft import RagatePeft
from kbtrain.gates.ragate.ragate_peft_folder import RagatePeftCard
from kbtrain.gates.ragate.ragate_peft_save import save_peft
from kbtrain.metrics._part_training_intervals import intervals_of_examples
from kbtrain.metrics.dev import classifier_metrics
from kbtrain.models.adapters import base_fingerprint
from kbtrain.models.bases import adapters_in_fp32
from kbtrain.prompts.ragate_peft_prompts import ragate_peft_fingerprint
from kbtrain.provenance import package_versions, peak_rss_mb, write_meta
from kbtrain.records import TurnExample
from kbtrain.training.classifier_data import ClassifierData
from kbtrain.training.data import label_rule
from kbtrain.training.finish import dev_threshold, score_held_out
from kbtrain.training.run_files import write_run_files

_TEXT = """---
library_name: kbtrain
base_model: {base}
tags: [adaptive-retrieval, ragate]
---
# RAGate-PEFT on {base}
Says whether a dialogue's next turn needs retrieved knowledge. Score: p(True) against p(False) in [0, 1], one forward
pass. The folder holds the adapter; the base model is opened beside it{nf4}.

```python
import kbtrain

gate = kbtrain.load_gate("this/folder")
print(gate.score(turns))  # kbtrain.records.TurnExample
```

- Reads: context{features}; at most {max_length} tokens, the oldest turns are left out.
- Labels: a turn is positive if people enriched it{rule}. Loss at the answer's token alone.
- Limits: trained on the dialogues named below; other domains and languages were not tried. The threshold is for data
  with the same share of positives. Scores rank turns; they are not calibrated probabilities.
- Saved, opened again and scored on {n_probe} turns: largest difference of a score {worst:.1e}.

## On dev ({n_dev} turns, {positive} positive; 95 % intervals over dialogues)
{metrics}

Threshold {threshold:.6g} (best F1 on dev; dev chose it, so its own precision, recall and F1 are optimistic).

## Run
{run}

## Versions
{versions}
"""


def finish_peft(
    config: Any, output: Path, gate: RagatePeft, data: ClassifierData, state: Any, run: Mapping[str, Any]
) -> str:
    """Save ``gate`` into ``output``; ``state`` is transformers' trainer state. Returns what is to be said of it."""
    state.save_to_json(str(output / "trainer_state.json"))
    dev = [row.example for row in data.dev if isinstance(row.example, TurnExample)]
    adapters_in_fp32(gate.scorer.model)
    kept = gate.score(dev)
    need = [row.need for row in data.dev]
    found = classifier_metrics(need, kept)
    threshold = dev_threshold(data.dev, kept, config.dev)
    facts: dict[str, Any] = {"train_examples": len(data.train), "dev_examples": len(dev), "dev": found}
    facts |= {"without_label": data.unlabelled, "steps": state.global_step, "best_step": state.best_global_step}
    card = RagatePeftCard(
        base_model=config.model,
        base_fingerprint=base_fingerprint(config.model),
        prompt_fingerprint=ragate_peft_fingerprint(config.features),
        dtype=run["compute"],
        merged=config.merge_adapter,
        thresholds={gate.name: threshold},
        label_rule=label_rule(config.train),
        run={**run, **facts, "peak_rss_mb": peak_rss_mb()},
        versions=package_versions(),
        **{name: getattr(config, name) for name in ("method", "features", "max_length", "seed")},
    )
    figures = intervals_of_examples(dev, need, kept, threshold.threshold)
    worst = save_peft(output, gate, card, dev, kept, lambda worst: _card_text(card, need, figures, worst))
    write_run_files(output, config, ("train", "dev", "test"), state.log_history)
    write_meta(output / CARD, stage="train", config=card.run, inputs=[config.train, config.dev], extra=facts)
    score_held_out(config, output, gate, dev, kept)
    if not config.keep_checkpoints:
        shutil.rmtree(output / "checkpoints")
    told = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    return (
        f"{len(data.train)} turns, {state.global_step} steps in {run['seconds']} s ({run['compute']}); dev: {told}; "
        f"adapter saved, opened again, scores equal (to {worst:.0e}) -> {output}"
    )


def _card_text(card: RagatePeftCard, need: Sequence[float], metrics: str, worst: float) -> str:
    return _TEXT.format(
        base=card.base_model,
        nf4=" in NF4 (4 bits, doubly quantised)" if card.method == "qlora" else "",
        features="".join(f", {name}" for name in card.features),
        max_length=card.max_length,
        rule="".join(f", {key} {value}" for key, value in card.label_rule.items()),
        n_probe=len(need),
        worst=worst,
        n_dev=len(need),
        positive=round(sum(need)),
        metrics=metrics,
        threshold=card.thresholds[RagatePeft.name].threshold,
        run=_table(card.run),
        versions=_table(card.versions),
    )


def _table(values: Mapping[str, object]) -> str:
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in values.items())
