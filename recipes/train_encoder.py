"""Train the encoder gate: any pretrained encoder, fine-tuned to predict whether a turn or a question needs retrieval.

Methods full and lora fine-tune it. Method probe leaves it unchanged and fits a logistic regression on its embedding of
the question or the current utterance (with base dialogue_state also on acts, services and slots so far). This takes a
minute, and on KETOD, with few labels, gives the better F1.

Reads turns (data_gen/collect_turns.py) or questions (data_gen/build.py), writes a gate folder (kbtrain.load_gate
opens it) with its scores of dev and, if given, test. The same command resumes a killed run.

Examples:
  kbtrain run train_encoder --launch cpu \\
      --config encoder_probe_turns --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --test runs/ketod/turns.jsonl --output runs/ketod/encoder_probe
  kbtrain run train_encoder --launch cpu \\
      --config encoder_minilm_turns --train runs/ketod/turns.jsonl --dev runs/ketod/turns.jsonl \\
      --test runs/ketod/turns.jsonl --output runs/ketod/encoder --seed 0
  kbtrain run train_encoder --config encoder_minilm_questions \\
      --train runs/demo/examples/train.jsonl --dev runs/demo/examples/dev.jsonl --output runs/demo/encoder
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from kbtrain.config import run_script
from kbtrain.gate.card import CARD
from kbtrain.gates.encoder.gate import EncoderInput, Feature, turns_only
from kbtrain.gates.encoder.probe import EncoderProbe, ProbeInput, pooling_of
from kbtrain.models.adapters import open_body
from kbtrain.training.config import ClassifierConfig, LoraAlpha, LoraRank, training_arguments
from kbtrain.training.data import ClassifierData, class_weights, common_acts, read_classifier_data
from kbtrain.training.finish import SCORES, ClassifierEnding, checked_test, dev_metrics
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from peft import PeftMixedModel, PeftModel
    from transformers import PreTrainedModel

    from kbtrain.gates.encoder.gate import EncoderGate
    from kbtrain.training.classifier_trainer import ClassifierTrainer


class TrainEncoderConfig(ClassifierConfig):
    model: str = Field("all-minilm-l6-v2", description="pretrained encoder: embedded name, local folder or hub id")
    features: tuple[Feature, ...] = Field(
        ("structure",), description="turns only, before the context: structure, acts, resp, syn-resp, ner, know, source"
    )
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
        if self.method == "probe" and "features" in self.model_fields_set:
            raise ValueError("key 'features': a probe reads the text alone; remove it, or name another method")
        if self.method == "probe" and self.dtype not in ("auto", "fp32"):
            raise ValueError("key 'dtype': a probe is fitted in fp32; remove it, or name another method")
        if self.method == "probe" and self.act_weight:
            raise ValueError("act_weight is for methods full and lora; a probe predicts no acts")
        return self


def main(config: TrainEncoderConfig) -> None:
    data = read_classifier_data(config.train, config.dev, config.key, config.labels)
    test = checked_test(config, data)
    if config.base:
        turns_only([*(row.example for row in (*data.train, *data.dev)), *test])
    recipe = Recipe("train_encoder", config)
    if config.dry_run:
        return recipe.say(describe(config, data))
    if not recipe.claim(CARD, SCORES):
        return None
    if config.method == "probe":
        return train_probe(recipe, config, data)
    gate, trainer, facts = train(recipe, config, data)
    if recipe.first:
        model: Any = trainer.plain_model()
        gate.model = (model.merge_and_unload() if config.method == "lora" else model).float()
        recipe.say(ClassifierEnding(config, "encoder", gate, data, trainer.state, recipe.facts(**facts)).finish())
    recipe.leave()


def train(
    recipe: Recipe, config: TrainEncoderConfig, data: ClassifierData
) -> tuple[EncoderGate, ClassifierTrainer, dict[str, Any]]:
    from transformers import set_seed

    from kbtrain.gates.encoder.gate import EncoderGate
    from kbtrain.models.adapters import checkpoint, compute_of, has_segments, open_encoder, pad_id
    from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierTrainer, Objective, classifier_rows

    acts = common_acts(data.train) if config.act_weight else ()
    weights = class_weights(data.train, config.class_weight)
    set_seed(config.seed)  # the new classifier's first weights
    model, tokenizer = open_encoder(config.model, "fp32", recipe.device, n_logits=1 + len(acts))
    if config.gradient_checkpointing:
        checkpoint(model)
    compute = recipe.compute(lambda: compute_of(config.model, config.dtype, recipe.device))
    reader = EncoderInput(tokenizer, config.max_length, config.features)
    gate = EncoderGate(model, reader)
    trainer = ClassifierTrainer(
        with_adapter(model, config.lora_rank, config.lora_alpha) if config.method == "lora" else model,
        training_arguments(config, compute, recipe.device, has_dev=True),
        classifier_rows(reader, data, acts),
        ClassifierCollator(pad_id(tokenizer), has_segments(model), len(acts)),
        Objective(weights, 1, config.act_weight, config.head_learning_rate),
        dev_metrics(gate, data),
    )
    recipe.train_to_end(trainer)
    return gate, trainer, {"compute": compute, "acts_foreseen": acts, "class_weights": weights}


def with_adapter(model: PreTrainedModel, rank: int, alpha: int) -> PeftModel | PeftMixedModel:
    """The encoder wrapped with new adapters on all linear layers; its classifier is trained whole."""
    from peft import LoraConfig, get_peft_model

    lora = LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="SEQ_CLS")
    return get_peft_model(model, lora)


def describe(config: TrainEncoderConfig, data: ClassifierData) -> str:
    """One line of figures for a dry run: classes, weights, steps and acts."""
    rows_a_step = config.device_batch_size * config.gradient_accumulation_steps
    no, yes = class_weights(data.train, config.class_weight)
    acts = common_acts(data.train) if config.act_weight else ()
    counts = (f"{sum(r.is_needed for r in rows)} of {len(rows)}" for rows in (data.train, data.dev))
    steps = "" if config.method == "probe" else f"{-(-len(data.train) // rows_a_step)} steps an epoch and process; "
    return (
        f"{' in train, '.join(counts)} in dev need retrieval; class weights {no:.2f}, {yes:.2f}; {steps}"
        f"predicted acts: {', '.join(acts) or 'none'}; base: {config.base or 'none'}"
    )


def train_probe(recipe: Recipe, config: TrainEncoderConfig, data: ClassifierData) -> None:
    """Fit and finish a probe: a logistic regression on the frozen encoder's embeddings and, with a base, on the
    dialogue's state. In the first rank only: there is nothing to share among processes."""
    if not recipe.first:
        return
    body, tokenizer = open_body(config.model, config.dtype, recipe.device)
    reader = ProbeInput(tokenizer, config.max_length, config.base == "dialogue_state", pooling_of(config.model))
    examples, need = [row.example for row in data.train], [row.need for row in data.train]
    probe = EncoderProbe.fit(body, reader, examples, need, class_weights(data.train, config.class_weight))
    recipe.say(ClassifierEnding(config, "encoder_probe", probe, data, None, recipe.facts()).finish())


if __name__ == "__main__":
    run_script(main, TrainEncoderConfig, __doc__)
