"""Training of the encoder gate: rows with acts and offsets as further targets, and the probe that is fitted instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from kbtrain.gates.encoder.gate import OffsetGate, turns_only
from kbtrain.training.config import ClassifierConfig
from kbtrain.training.data import ClassifierData, act_targets, class_weights, common_acts

if TYPE_CHECKING:
    from peft import PeftMixedModel, PeftModel
    from transformers import PreTrainedModel

    from kbtrain.gates.encoder.input import EncoderInput
    from kbtrain.training.classifier_trainer import ClassifierRow

Base = Literal["dialogue_state"] | None


def fit_base(base: Base, data: ClassifierData, weights: tuple[float, float]) -> tuple[OffsetGate | None, list[float]]:
    """The gate to whose log odds the encoder's are added, if there is one, and the training rows' own offsets."""
    if base is None:
        return None, [0.0] * len(data.train)
    return OffsetGate.fit(turns_only([row.example for row in data.train]), weights)


def encoder_rows(
    reader: EncoderInput, data: ClassifierData, acts: Sequence[str], offsets: Sequence[float]
) -> list[ClassifierRow]:
    """Training rows; ``acts`` are the auxiliary targets' names."""
    from kbtrain.training.classifier_trainer import ClassifierRow

    rows = []
    for row, offset in zip(data.train, offsets, strict=True):
        read = reader.encode(row.example)
        rows.append(ClassifierRow(read.ids, read.segments, (), row.need, act_targets(row.example, acts), offset))
    return rows


def with_adapter(model: PreTrainedModel, rank: int, alpha: int) -> PeftModel | PeftMixedModel:
    """The encoder wrapped with new adapters on all linear layers; its classifier is trained whole."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="SEQ_CLS")
    return get_peft_model(model, lora)


def training_facts(
    compute: str, acts: Sequence[str], weights: tuple[float, float], base: OffsetGate | None
) -> dict[str, object]:
    """Facts of a training for the card: precision, auxiliary targets, weights of the classes, and the base's line."""
    facts = {"compute": compute, "acts_foreseen": acts, "class_weights": weights}
    return facts | ({"base_slope": base.slope, "base_intercept": base.intercept} if base else {})


def describe(config: ClassifierConfig, base: Base, act_weight: float, method: str, data: ClassifierData) -> str:
    """One line of figures for a dry run: classes, weights, steps, acts and the base's slope."""
    rows_a_step = config.device_batch_size * config.gradient_accumulation_steps
    no, yes = class_weights(data.train, config.class_weight)
    fitted, _ = fit_base(None if method == "probe" else base, data, (no, yes))
    acts = common_acts(data.train) if act_weight else ()
    start = f"adds to {base}, slope {fitted.slope:.2f}" if fitted else f"base: {base or 'none'}"
    counts = (f"{sum(r.is_needed for r in rows)} of {len(rows)}" for rows in (data.train, data.dev))
    steps = "" if method == "probe" else f"{-(-len(data.train) // rows_a_step)} steps an epoch and process; "
    return (
        f"{' in train, '.join(counts)} in dev need retrieval; class weights {no:.2f}, {yes:.2f}; {steps}"
        f"acts foreseen: {', '.join(acts) or 'none'}; {start}"
    )
