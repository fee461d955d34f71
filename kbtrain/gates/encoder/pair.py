"""Pair of a fine-tuned encoder and a probe as one gate: the folder that averages their log odds, and its card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kbtrain.gate.card import CARD, set_threshold
from kbtrain.gates.average import AverageGate
from kbtrain.gates.encoder.train import fit_probe
from kbtrain.gates.late_scores import score_late_test
from kbtrain.gates.registry import load_gate
from kbtrain.provenance import package_versions, peak_rss_mb, write_atomically
from kbtrain.training.config import ClassifierConfig
from kbtrain.training.data import ClassifierData
from kbtrain.training.finish import SCORES, DevScores, Ending, Note, finish, finish_classifier, score_held_out
from kbtrain.training.model_card import ModelCard
from kbtrain.training.recipe import Recipe

Pair = TypeVar("Pair", bound="PairConfig")


class ProbeSettings(BaseModel):
    """Settings in which the probe beside a fine-tuned encoder differs from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base: Literal["dialogue_state"] | None = None
    max_length: int = Field(64, ge=16)
    class_weight: float = Field(0.0, ge=0, le=1)


class PairConfig(ClassifierConfig):
    """Keys of an encoder and of a probe beside it; ``only_tuned``: names of keys that a probe does not read."""

    only_tuned: ClassVar[tuple[str, ...]] = ()

    max_length: int = Field(256, ge=16, description="tokens; the oldest turns are cut away, or a reference's tail")
    base: Literal["dialogue_state"] | None = Field(
        None, description="turns only: a gate fitted first, to whose log odds the encoder's are added (probe: jointly)"
    )
    method: Literal["full", "lora", "probe"] = Field(
        "full", description="train all weights, low-rank adapters, or no weight (nothing about steps is read then)"
    )
    probe: ProbeSettings | None = Field(
        None, description="methods full and lora: fit a probe too ({base, max_length, class_weight}), average the two"
    )

    @model_validator(mode="after")
    def _one_probe(self) -> Self:
        if self.method == "probe" and self.probe:
            raise ValueError("key probe is for methods full and lora; method probe is that probe alone")
        return self

    def members(self) -> list[Self]:
        """The trainings of a pair, each in a folder of its own inside ``output``."""
        if not self.probe:
            return []
        tuned = {"probe": None, "output": self.output / "tuned"}
        settings = {"method": "probe", "probe": None, "output": self.output / "probe", **self.probe.model_dump()}
        settings |= {name: type(self).model_fields[name].default for name in self.only_tuned}
        return [self.model_copy(update=changes) for changes in (tuned, settings)]


class TunedConfig(PairConfig):
    """Keys of an encoder's fine-tuning: what learns how fast, and what is foreseen besides the label."""

    only_tuned = ("act_weight", "layer_decay", "frozen_layers")

    head_learning_rate: float = Field(1e-3, gt=0, le=1, description="peak learning rate of the new layers")
    frozen_layers: int | None = Field(
        None, ge=0, description="method full: embeddings and so many layers above them stay as they are"
    )
    layer_decay: float = Field(1.0, gt=0, le=1, description="each layer learns so much slower than the one above it")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="hard labels are taken this much less seriously")
    act_weight: float = Field(0.0, ge=0, description="turns only: weight of foreseeing what the system will do next")
    lora_rank: int = Field(16, ge=1, description="rank of the adapters")
    lora_alpha: int = Field(32, ge=1, description="scale of the adapters")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.method != "full" and self.layer_decay < 1:
            raise ValueError("layer_decay is for method full; adapters learn at one rate")
        if self.method != "full" and self.frozen_layers is not None:
            raise ValueError("frozen_layers is for method full; beside adapters nothing else learns")
        if self.method == "probe" and self.act_weight:
            raise ValueError("act_weight is for methods full and lora; a probe foresees nothing")
        return self


def train_pair(name: str, config: Pair, data: ClassifierData, train: Callable[[Pair, ClassifierData], None]) -> None:
    """Train both members by ``train`` and make their average in ``config.output``; ``name``: the recipe's."""
    recipe = Recipe(name, config)
    if not recipe.claim(CARD, SCORES, late=partial(score_late_test, config)):
        return
    for member in config.members():
        train(member, data)
    if recipe.first:
        folders = [member.output for member in config.members()]
        recipe.say(finish_pair(config, folders, data, recipe.device, recipe.facts()))


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

    def save(note: Note) -> tuple[float, dict[str, float]]:
        set_threshold(config.output, gate.name, dev.threshold)
        text = _model_card([member.name for member in members], dev, about).text(0.0)
        write_atomically(config.output / "README.md", text)
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
    return dev.page(
        title=f"Retrieval gate: the average of {' and '.join(f'`{name}`' for name in members)}",
        what="Says whether a dialogue's next turn, or a question, needs retrieved knowledge. Score: sigmoid of the "
        "mean of its members' log odds, in [0, 1].",
        points=("Its members' folders, with model cards of their own, are inside this one: copy it whole.",),
        limits="trained on the data named below; other dialogues, domains and languages were not tried.",
        run=run,
        versions=package_versions(),
        tags=("adaptive-retrieval", "ragate"),
    )


def train_probe(recipe: Recipe, config: PairConfig, data: ClassifierData) -> None:
    """Fit and finish a probe, in the first rank only: there is nothing to share among processes."""
    if recipe.first:
        body = (config.model, config.dtype, recipe.device, config.max_length)
        probe = fit_probe(*body, config.base, data, config.class_weight)
        recipe.say(finish_classifier(config, "encoder_probe", probe, data, None, recipe.facts()))
