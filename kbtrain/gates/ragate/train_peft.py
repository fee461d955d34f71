"""Training of RAGate-PEFT: rows of labelled turns, the trainer, and the end of a run.

The loss is at the one token that is True or False; loss and checkpoints are the KBM's, dev is measured as in RAGate's
table 2. At the end the threshold is chosen on dev, the adapter is saved, opened again, and must give the same scores;
then dev and test are scored and the model card is written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from kbtrain.errors import UserError, at
from kbtrain.gate_folder import ADAPTER, CARD
from kbtrain.gates.kbm.train import KBMTrainer, make_row
from kbtrain.gates.ragate.peft import MERGED, RagatePeft, RagatePeftCard, TurnPrompts
from kbtrain.gates.true_false.template import Encoded
from kbtrain.metrics.dev import classifier_metrics, intervals_of_examples
from kbtrain.models.adapters import adapters_in_fp32, base_fingerprint, open_merged, under_deepspeed
from kbtrain.prompts.ragate import PeftFeature, ragate_peft_fingerprint
from kbtrain.provenance import package_versions, peak_rss_mb, write_meta
from kbtrain.records import Example, TurnExample
from kbtrain.training.answer_trainer import IGNORE, Row
from kbtrain.training.data import ClassifierData, label_rule, read_classifier_data
from kbtrain.training.finish import dev_threshold, score_held_out
from kbtrain.training.run import write_run_files

_FIELDS: dict[PeftFeature, str] = {
    "resp": "response",
    "syn-resp": "synthetic_response",
    "ner": "entities",
    "know": "knowledge",
    "source": "source",
}


def read_turns(train: Path, dev: Path, features: Sequence[PeftFeature]) -> ClassifierData:
    """Both splits. Raises :class:`UserError` for questions, a missing feature, one class, or dialogues in both."""
    data = read_classifier_data(train, dev)
    for rows, path in ((data.train, train), (data.dev, dev)):
        check_turns([row.example for row in rows], path, features)
    return data


def check_turns(examples: Sequence[Example], path: Path, features: Sequence[PeftFeature]) -> list[TurnExample]:
    """The examples, all of them turns with these features. Raises :class:`UserError` naming the first that is not."""
    turns = []
    for example in examples:
        if not isinstance(example, TurnExample):
            raise UserError(f"{at(path)}: questions, where dialogue turns are expected (data_gen/collect_turns.py)")
        for name in features:
            if getattr(example, _FIELDS[name]) is None:
                raise UserError(
                    f"{at(path)}: example '{example.id}' has no '{name}'; make it first "
                    "(data_gen/turn_features.py), or take it out of features"
                )
        turns.append(example)
    return turns


def turns_of(rows: Sequence[object]) -> list[TurnExample]:
    """The turns of labelled rows."""
    found = [getattr(row, "example", None) for row in rows]
    return [turn for turn in found if isinstance(turn, TurnExample)]


def turn_row(prompts: TurnPrompts, turn: TurnExample) -> Row:
    """The row ends with the token that decides; nothing after it is fed in or learnt."""
    return answer_only(prompts.encode(turn), bool(turn.label))


def answer_only(encoded: Encoded, need: bool) -> Row:
    """The prompt and the answer up to its first differing token, which alone has a label."""
    row = make_row(encoded, [float(need)])
    place = encoded.tree.places[()].position
    end = len(encoded.prompt) + place + 1
    # transformers counts a step's labels from the second on, as if they were yet to be shifted: one goes before
    return Row(row.ids[:end], (IGNORE, row.labels[place]), (0, row.other[place]), (1.0, row.weight[place]), row.cut)


def peft_arguments(arguments: TrainingArguments, select: str, device: str) -> TrainingArguments:
    """As every recipe's; on a GPU AdamW in pages, which wait in the machine's memory when the GPU's is short."""
    if device.startswith("cuda") and not under_deepspeed():
        arguments.optim = OptimizerNames.PAGED_ADAMW
    arguments.greater_is_better = select != "loss"
    return arguments


class RagatePeftTrainer(KBMTrainer):
    """``labels`` is not used: a turn's label is True or False. ``turns_cut``: old turns that did not fit."""

    turns_cut = 0

    def dev_figures(self, probabilities: Mapping[Any, Sequence[float]]) -> dict[str, float]:
        """``loss``, ``auroc``, ``average_precision`` and the best ``f1`` of dev."""
        need: list[float] = [float(bool(turn.label)) for turn in self.dev]  # type: ignore[attr-defined]
        return classifier_metrics(need, probabilities["need"])


TOLERANCE = 1e-6  # of a probability, between the trained gate and the one opened from its folder


def save_peft(
    output: Path,
    gate: RagatePeft,
    card: RagatePeftCard,
    probe: Sequence[TurnExample],
    kept: Sequence[float],
    text: Callable[[float], str],
) -> float:
    """Write adapter, tokenizer, model card (``text`` of the reload check's
    difference) and ``gate.json``; ``kept`` are ``gate``'s scores of ``probe``.

    ``gate.json`` arrives last: a folder that has it is whole. Returns the largest difference of a score; raises
    :class:`UserError` above 1e-6, and leaves the folder without a gate.
    """
    staging, model = output / "saving", gate.scorer.model
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    model.save_pretrained(staging / ADAPTER)
    (staging / ADAPTER / "README.md").unlink(missing_ok=True)  # peft's empty template: the gate's card says it all
    tokenizer = gate.prompts.encoder.tokenizer
    tokenizer.save_pretrained(staging)
    card.write(staging)
    again = RagatePeft.load(staging, device=model.device.type).score(probe)
    worst = max(abs(a - b) for a, b in zip(kept, again, strict=True))
    if not worst <= TOLERANCE:
        raise UserError(
            f"{staging}: the saved gate scores differently from the trained one (by up to {worst:.2g}); "
            "nothing was put into the output folder"
        )
    if card.merged:
        write_merged(staging / MERGED, card, staging / ADAPTER, model.device.type, tokenizer)
    (staging / "README.md").write_text(text(worst), encoding="utf-8")
    for path in sorted(staging.iterdir(), key=lambda p: p.name == CARD):
        target = output / path.name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(path, target)
    staging.rmdir()
    return worst


def write_merged(folder: Path, card: RagatePeftCard, adapter: Path, device: str, tokenizer: Any) -> None:
    """A model of its own in 16 bits, for other software. Its scores differ from the gate's by rounding."""
    import torch

    model: Any = open_merged(card.base_model, adapter, card.method, device, torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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
