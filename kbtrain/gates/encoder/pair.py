"""Pair of a fine-tuned encoder and a probe as one gate: the folder that averages their log odds, and its card."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kbtrain.gate.card import CARD, set_threshold
from kbtrain.gates.average import AverageGate
from kbtrain.gates.encoder.probe import EncoderProbe, ProbeInput
from kbtrain.gates.late_scores import score_late_test
from kbtrain.gates.registry import load_gate
from kbtrain.io.provenance import package_versions, peak_rss_mb, write_atomically
from kbtrain.training.config import ClassifierConfig, LoraAlpha, LoraRank
from kbtrain.training.data import ClassifierData, class_weights
from kbtrain.training.finish import SCORES, ClassifierEnding, DevScores, Ending
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
    lora_rank: LoraRank = 16
    lora_alpha: LoraAlpha = 32

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
        recipe.say(PairEnding(config, folders, data, recipe.device, recipe.facts()).finish())


class PairEnding(Ending):
    """The end of a pair: ``config.output`` becomes a gate of ``members``, folders inside it."""

    data = ("train", "dev", "test")

    def __init__(
        self,
        config: ClassifierConfig,
        members: Sequence[Path],
        data: ClassifierData,
        device: str,
        run: Mapping[str, Any],
    ) -> None:
        super().__init__(config)
        self.names = [member.name for member in members]
        self.gate = AverageGate.from_members(config.output, members, lambda member: load_gate(member, device=device))
        self.dev = DevScores.from_gate(self.gate, data.dev, config.dev)
        self.scored = config, self.gate, self.dev
        self.facts, self.figures = {"dev": self.dev.metrics}, self.dev.metrics
        counts = {"train_examples": len(data.train), "dev_examples": len(self.dev.need)}
        self.run = {**run, **counts, "peak_rss_mb": peak_rss_mb()}
        self.trained_on = f"average of {' and '.join(self.names)}"

    def write(self, folder: Path) -> None:
        set_threshold(folder, self.gate.name, self.dev.threshold)

    def difference(self, folder: Path) -> float:
        """0: the members were opened from their folders."""
        return 0.0

    def readme(self, worst: float) -> str:
        return _model_card(self.names, self.dev, self.run).text(worst)

    def save(self) -> float:
        """Write beside the members, without a folder to move."""
        self.write(self.config.output)
        write_atomically(self.config.output / "README.md", self.readme(0.0))
        return 0.0


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
        probe = fit_probe(config, recipe.device, data)
        recipe.say(ClassifierEnding(config, "encoder_probe", probe, data, None, recipe.facts()).finish())


def fit_probe(config: PairConfig, device: str, data: ClassifierData) -> EncoderProbe:
    """A logistic regression on the frozen encoder's embeddings and, with a base, on the dialogue's state."""
    from kbtrain.models.encoders import open_body

    body, tokenizer = open_body(config.model, config.dtype, device)
    reader = ProbeInput(tokenizer, config.max_length, config.base == "dialogue_state")
    examples, need = [row.example for row in data.train], [row.need for row in data.train]
    return EncoderProbe.fit(body, reader, examples, need, class_weights(data.train, config.class_weight))
