"""Settings and steps that recipes of classifying gates share: go on from a checkpoint, choose the threshold, score.

The end of a classifying gate's training: threshold on dev, folder saved and checked, dev and test scored.

The end of a classifying gate's training: saved, opened again, and the scores must be the same.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.gate_folder import CARD, ClassifierCard, Threshold
from kbtrain.metrics.dev import classifier_metrics, intervals_of_examples
from kbtrain.prompts.kbm import Key
from kbtrain.provenance import file_sha256, package_versions, peak_rss_mb, write_meta
from kbtrain.records import Example, GateScore
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.data import ClassifierData, Labelled, Labels, label_rule, read_examples
from kbtrain.training.run import last_good, write_run_files

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

SCORES = "scores.jsonl"
NOT_PART_OF_A_RUN = frozenset({"output", "test", "dry_run", "keep_checkpoints", "report_to"})


class ClassifierConfig(TrainingConfig):
    """What both recipes ask for beside the usual settings."""

    dev: Path = Field(description="dev examples (JSONL); they choose checkpoint and threshold")
    test: Path | None = Field(None, description="scored after the training; chooses nothing")
    key: Key = Field("mastery", description="questions only: which label says that retrieval is needed")
    labels: Labels = Field("hard", description="questions only: hard, or soft (sampled shares)")
    class_weight: float = Field(1.0, ge=0, le=1, description="0: classes as they are; 1: both have the same say")
    select: Literal["loss", "auroc", "average_precision", "f1", "last"] = Field(  # type: ignore[assignment]
        "f1", description="checkpoint kept, by dev: loss, auroc, average_precision, f1; or the last"
    )


def classifier_arguments(config: ClassifierConfig, compute: str, device: str) -> TrainingArguments:
    """As every recipe's, with dev's best chosen by our own figures."""
    arguments = training_arguments(config, compute, device, has_dev=True)
    arguments.greater_is_better = config.select != "loss"
    arguments.label_names = ["need"]
    return arguments


def train_to_end(trainer: Trainer, output: Path, say: Callable[[str], None]) -> None:
    """From the last complete checkpoint, if there is one; incomplete ones are swept and told of."""
    checkpoint, broken = last_good(output / "checkpoints")
    trainer.accelerator.wait_for_everyone()  # all have looked before one of them sweeps
    for path in broken:
        say(f"{path}: incomplete (killed while saving); left out")
        shutil.rmtree(path, ignore_errors=True)
    if checkpoint:
        say(f"goes on from {checkpoint}")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def dev_threshold(rows: Sequence[Labelled], scores: Sequence[float], dev: Path) -> Threshold:
    """Best F1 on dev, as ``gate.json`` keeps it."""
    from kbtrain.metrics.dev import best_f1_threshold

    found = best_f1_threshold([row.need for row in rows], scores)
    return Threshold(threshold=found.value, rule="best_f1", dev_file_sha256=file_sha256(dev), n_dev=len(rows))


def held_out_examples(path: Path | None) -> list[Example]:
    """The test split's examples of a file. Raises :class:`UserError` if it has none."""
    found = [example for example in read_examples(path) if example.split == "test"] if path else []
    if path and not found:
        raise UserError(f"{at(path)}: no example of split 'test' in it")
    return found


def score_held_out(config: Any, output: Path, gate: Any, dev: Sequence[Example], kept: Sequence[float]) -> None:
    """Scores of dev (``kept``) and of the test split, if ``config`` names one, into the folder."""
    test = held_out_examples(config.test)
    inputs = [config.dev, *([config.test] if config.test and config.test != config.dev else [])]
    scores = [*kept, *(gate.score(test) if test else [])]
    write_scores(output, gate.name, [*dev, *test], scores, inputs, seed=config.seed)


def write_scores(
    output: Path, gate: str, examples: Sequence[Example], scores: Sequence[float], inputs: Sequence[Path], **facts: Any
) -> None:
    """``scores.jsonl`` of the folder: one line an example, higher = retrieval more needed."""
    rows = (GateScore(e.id, gate, score) for e, score in zip(examples, scores, strict=True))
    jsonl.write(output / SCORES, rows)
    write_meta(output / SCORES, stage="score", config=None, inputs=inputs, extra={"gates": {gate: facts}})


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
    card.write(staging)
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


def finish(
    config: ClassifierConfig,
    output: Path,
    kind: str,
    gate: Any,
    data: ClassifierData,
    state: Any,
    run: Mapping[str, Any],
) -> str:
    """Save ``gate`` (its best weights) into ``output``; returns what is to be said of it.

    ``state`` is transformers' trainer state, None where nothing was trained in steps; ``run`` is what the card shall
    say of the training.
    """
    dev = [row.example for row in data.dev]
    gate.cut = 0
    kept = gate.score(dev)
    found = classifier_metrics([row.need for row in data.dev], kept)
    facts: dict[str, Any] = {"train_examples": len(data.train), "dev_examples": len(dev)}
    facts |= {"without_label": data.unlabelled, "dev_turns_cut": gate.cut, "dev": found}
    how = "fitted"
    if state is not None:
        state.save_to_json(str(output / "trainer_state.json"))
        facts |= {"steps": state.global_step, "best_epoch": best_epoch(state, config.epochs)}
        how = f"{state.global_step} steps, best epoch {facts['best_epoch']:g}"
    card = ClassifierCard(
        kind=kind,
        base_model=config.model,
        reads=gate.reader.settings,
        labels=config.labels,
        key=config.key,
        base=gate.base.kind if getattr(gate, "base", None) else None,
        seed=config.seed,
        thresholds={gate.name: dev_threshold(data.dev, kept, config.dev)},
        label_rule=label_rule(config.train),
        run={**run, **facts, "peak_rss_mb": peak_rss_mb()},
        versions=package_versions(),
    )
    figures = intervals_of_examples(dev, [row.need for row in data.dev], kept, card.thresholds[gate.name].threshold)
    worst = save_classifier(output, gate, card, dev, kept, figures)
    write_run_files(output, config, ("train", "dev", "test"), state.log_history if state else None)
    write_meta(output / CARD, stage="train", config=card.run, inputs=[config.train, config.dev], extra=facts)
    score_held_out(config, output, gate, dev, kept)
    if not config.keep_checkpoints:
        shutil.rmtree(output / "checkpoints", ignore_errors=state is None)
    told = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
    return (
        f"{len(data.train)} examples, {how}, {run['seconds']} s; dev: {told}; saved, opened again, scores equal "
        f"(to {worst:.0e}) -> {output}"
    )


def best_epoch(state: Any, epochs: float) -> float:
    """The epoch whose checkpoint is kept."""
    return float(round((state.best_global_step or state.global_step) / state.max_steps * epochs, 2))
