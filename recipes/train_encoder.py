"""Train the encoder gate: any pretrained encoder, made to say whether a turn, or a question, needs retrieval.

Methods full and lora fine-tune it. Method probe leaves it as it is and fits a logistic regression on its embedding of
what is asked now (and, with base dialogue_state, on acts, services and slots so far): a minute's work, and on KETOD,
where labels are few, the better F1.

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

from typing import TYPE_CHECKING, Any

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.gate.card import CARD
from kbtrain.gates.encoder.gate import EncoderInput, Feature, turns_only
from kbtrain.gates.encoder.train import (
    TunedConfig,
    classifier_rows,
    describe,
    train_probe,
    with_adapter,
)
from kbtrain.training.config import training_arguments
from kbtrain.training.data import ClassifierData, class_weights, common_acts, read_classifier_data
from kbtrain.training.finish import SCORES, ClassifierEnding, dev_metrics, held_out_examples
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from kbtrain.gates.encoder.gate import EncoderGate
    from kbtrain.training.classifier_trainer import ClassifierTrainer


class TrainEncoderConfig(TunedConfig):
    model: str = Field("all-minilm-l6-v2", description="pretrained encoder: embedded name, local folder or hub id")
    features: tuple[Feature, ...] = Field(
        ("structure",), description="turns only, before the context: structure, acts, resp, syn-resp, ner, know, source"
    )


def main(config: TrainEncoderConfig) -> None:
    data = read_classifier_data(config.train, config.dev, config.key, config.labels)
    test = held_out_examples(config.test)  # a wrong file is an error before the training, not after it
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
    from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierTrainer, Objective

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


if __name__ == "__main__":
    run_script(main, TrainEncoderConfig, __doc__)
