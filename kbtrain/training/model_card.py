"""The README.md of a gate's folder, filled from the run that made it."""

from __future__ import annotations

from collections.abc import Mapping

from kbtrain.gate_folder import GateCard

_TEXT = """---
library_name: kbtrain
base_model: {base}
tags: [knowledge-boundary, adaptive-retrieval]
---
# Knowledge-boundary model on {base}
Says before any retrieval whether `{base}` masters a question, is certain of it, and gains from retrieved text.
One forward pass gives p({keys}).

```python
import kbtrain
from kbtrain.records import GateExample

gate = kbtrain.load_gate("this/folder")
question = GateExample("q1", "q1", "test", "What is the capital of France?", "en", None)
print(gate.probabilities([question]))
```

- Answers are not written by this model: it scores, `{base}` answers. Its scores hold for that model only.
- Method: {method}, {labels} labels, weights in {dtype}, prompts of at most {max_length} tokens.
- Labels: {rule}
- Prompt fingerprint: `{fingerprint}` (checked when the gate is opened).
- Saved, opened again and scored on {n_probe} examples: largest difference of a probability {worst:.1e}.

- Limits: learnt from questions like those named below; other languages, question forms and later versions of
  `{base}` were not tried. Scores rank questions; as probabilities they are calibrated on no data but the training's.
- Threshold: none is set by training. `eval/calibrate.py` chooses one on dev and writes it into `gate.json`.

## On dev (95 % intervals where given: questions resampled)
{scores}

## Run
{run}

## Versions
{versions}
"""


def model_card(
    card: GateCard,
    scores: Mapping[str, float],
    worst: float,
    n_probe: int,
    intervals: Mapping[str, str] | None = None,
) -> str:
    """``scores``: dev metrics by name; ``worst``: the reload check's largest difference over ``n_probe`` examples;
    ``intervals``: figures as text, with their intervals, in place of the bare ones."""
    kbm = card.model_dump()
    return _TEXT.format(
        base=card.base_model,
        keys="), p(".join(kbm["keys"]),
        method={"full": "full fine-tune", "lora": "LoRA", "qlora": "LoRA beside NF4 weights"}[kbm["method"]],
        labels=kbm["labels"],
        dtype=kbm["dtype"],
        max_length=kbm["max_length"],
        rule=", ".join(f"{key} {value}" for key, value in card.label_rule.items()) or "rule not recorded",
        fingerprint=kbm["prompt_fingerprint"],
        n_probe=n_probe,
        worst=worst,
        scores=_table({name: f"{value:.4f}" for name, value in scores.items()} | dict(intervals or {}))
        or "No dev examples were given.",
        run=_table(card.run),
        versions=_table(card.versions),
    )


def _table(values: Mapping[str, object]) -> str:
    if not values:
        return ""
    return "| | |\n|---|---|\n" + "\n".join(f"| {key} | {value} |" for key, value in values.items())
