"""Training of the encoder gate, and of the probe that is fitted instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from kbtrain.gates.encoder.probe import EncoderProbe, ProbeInput, pooling_of
from kbtrain.models.adapters import open_body
from kbtrain.training.config import ClassifierConfig, LoraAlpha, LoraRank
from kbtrain.training.data import ClassifierData, act_targets, class_weights, common_acts
from kbtrain.training.finish import ClassifierEnding
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from peft import PeftMixedModel, PeftModel
    from transformers import PreTrainedModel

    from kbtrain.gates.encoder.gate import EncoderInput
    from kbtrain.gates.ragate.mha import MHAInput
    from kbtrain.training.classifier_trainer import ClassifierRow


class TunedConfig(ClassifierConfig):
    """Keys of an encoder's training: what learns how fast, what is foreseen besides the label."""

    max_length: int = Field(
        256, ge=16, description="longest input, in tokens; the oldest turns, or the end of a reference, are cut"
    )
    base: Literal["dialogue_state"] | None = Field(
        None, description="method probe, turns only: additional input of the regression: dialogue_state"
    )
    method: Literal["full", "lora", "probe"] = Field(
        "full", description="train all parameters, low-rank adapters, or none (the keys about steps are then ignored)"
    )

    head_learning_rate: float = Field(1e-3, gt=0, le=1, description="peak learning rate of the new layers")
    act_weight: float = Field(
        0.0, ge=0, description="turns only: weight of the auxiliary task, predicting the system's next act"
    )
    lora_rank: LoraRank = 16
    lora_alpha: LoraAlpha = 32

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.method != "probe" and self.base is not None:
            raise ValueError("base is for method probe, which reads the dialogue's state beside the text")
        if self.method == "probe" and self.act_weight:
            raise ValueError("act_weight is for methods full and lora; a probe foresees nothing")
        return self


def classifier_rows(
    reader: EncoderInput | MHAInput, data: ClassifierData, acts: Sequence[str] = ()
) -> list[ClassifierRow]:
    """Training rows; ``acts`` are the auxiliary targets' names."""
    from kbtrain.training.classifier_trainer import ClassifierRow

    rows = []
    for row in data.train:
        read, targets = reader.encode(row.example), act_targets(row.example, acts)
        rows.append(ClassifierRow(read.ids, read.segments, read.other, row.need, targets))
    return rows


def with_adapter(model: PreTrainedModel, rank: int, alpha: int) -> PeftModel | PeftMixedModel:
    """The encoder wrapped with new adapters on all linear layers; its classifier is trained whole."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="SEQ_CLS")
    return get_peft_model(model, lora)


def describe(config: TunedConfig, data: ClassifierData) -> str:
    """One line of figures for a dry run: classes, weights, steps and acts."""
    rows_a_step = config.device_batch_size * config.gradient_accumulation_steps
    no, yes = class_weights(data.train, config.class_weight)
    acts = common_acts(data.train) if config.act_weight else ()
    counts = (f"{sum(r.is_needed for r in rows)} of {len(rows)}" for rows in (data.train, data.dev))
    steps = "" if config.method == "probe" else f"{-(-len(data.train) // rows_a_step)} steps an epoch and process; "
    return (
        f"{' in train, '.join(counts)} in dev need retrieval; class weights {no:.2f}, {yes:.2f}; {steps}"
        f"acts foreseen: {', '.join(acts) or 'none'}; base: {config.base or 'none'}"
    )


def train_probe(recipe: Recipe, config: TunedConfig, data: ClassifierData) -> None:
    """Fit and finish a probe: a logistic regression on the frozen encoder's embeddings and, with a base, on the
    dialogue's state. In the first rank only: there is nothing to share among processes."""
    if not recipe.first:
        return
    body, tokenizer = open_body(config.model, config.dtype, recipe.device)
    reader = ProbeInput(tokenizer, config.max_length, config.base == "dialogue_state", pooling_of(config.model))
    examples, need = [row.example for row in data.train], [row.need for row in data.train]
    probe = EncoderProbe.fit(body, reader, examples, need, class_weights(data.train, config.class_weight))
    recipe.say(ClassifierEnding(config, "encoder_probe", probe, data, None, recipe.facts()).finish())
