"""The end of a classifying gate's training: threshold on dev, folder saved and checked, dev and test scored."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kbtrain.classifier_folder import ClassifierCard, Kind
from kbtrain.folder import CARD
from kbtrain.metrics._part_training_intervals import intervals_of_examples
from kbtrain.metrics.dev import classifier_metrics
from kbtrain.provenance import package_versions, peak_rss_mb, write_meta
from kbtrain.training.classifier_data import ClassifierData
from kbtrain.training.classifier_save import save_classifier
from kbtrain.training.data import label_rule
from kbtrain.training.finish import ClassifierConfig, dev_threshold, score_held_out
from kbtrain.training.run_files import write_run_files


def finish(
    config: ClassifierConfig,
    output: Path,
    kind: Kind,
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
