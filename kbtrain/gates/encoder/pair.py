"""Pair of a fine-tuned encoder and a probe as one gate: the folder that averages their log odds, and its card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kbtrain.gate_folder import set_threshold
from kbtrain.gates.average import AverageGate
from kbtrain.gates.registry import load_gate
from kbtrain.provenance import package_versions, peak_rss_mb
from kbtrain.training.config import ClassifierConfig
from kbtrain.training.data import ClassifierData
from kbtrain.training.finish import DevScores, Ending, finish, score_held_out, snippet
from kbtrain.training.model_card import ModelCard


def finish_pair(
    config: ClassifierConfig, members: Sequence[Path], data: ClassifierData, device: str, run: Mapping[str, Any]
) -> str:
    """Write ``config.output``: a gate of ``members`` (folders inside it), threshold, scores of dev and test, card.

    Returns the sentence to be said.
    """
    # its members as opened from their folders: nothing is left to be compared
    gate = AverageGate.of(config.output, members, lambda member: load_gate(member, device=device))
    dev = DevScores.of(gate, data.dev, config.dev)
    about = {**run, "train_examples": len(data.train), "dev_examples": len(dev.need), "peak_rss_mb": peak_rss_mb()}

    def save() -> tuple[float, dict[str, float]]:
        set_threshold(config.output, gate.name, dev.threshold)
        text = _model_card([member.name for member in members], dev, about).text(0.0)
        (config.output / "README.md").write_text(text, encoding="utf-8")
        return 0.0, dev.metrics

    ending = Ending(
        save=save,
        trained_on=f"average of {' and '.join(member.name for member in members)}",
        run=about,
        facts={"dev": dev.metrics},
        data=("train", "dev", "test"),
        score=lambda: score_held_out(config, gate, dev),
    )
    return finish(config, None, ending)


def _model_card(members: Sequence[str], dev: DevScores, run: Mapping[str, object]) -> ModelCard:
    return ModelCard(
        title=f"Retrieval gate: the average of {' and '.join(f'`{name}`' for name in members)}",
        what="Says whether a dialogue's next turn, or a question, needs retrieved knowledge. Score: sigmoid of the "
        "mean of its members' log odds, in [0, 1].",
        use=snippet(dev.examples),
        points=("Its members' folders, with model cards of their own, are inside this one: copy it whole.",),
        limits="trained on the data named below; other dialogues, domains and languages were not tried.",
        of_dev=dev.counts(),
        metrics=dev.table,
        threshold=dev.threshold_text,
        run=run,
        versions=package_versions(),
        n_probe=len(dev.need),
        tags=("adaptive-retrieval", "ragate"),
    )
