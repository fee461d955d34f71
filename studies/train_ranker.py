"""Train a ranker of knowledge snippets: a cross-encoder that reads a dialogue's context and a snippet together.

Reads turns and snippets (data_gen/collect_turns.py), writes a folder that studies/respond.py searches with,
and ranks.json: Recall@1 and Recall@3 on dev and test beside TF-IDF. A killed run resumes when the same command is
given again.

Examples:
  accelerate launch --config_file ds_configs/accelerate_cpu.yaml studies/train_ranker.py \\
      --config studies/ranker_minilm.yaml --train runs/ketod/turns.jsonl \\
      --snippets runs/ketod/snippets.jsonl --output runs/ketod/ranker
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator
from ragate_responses.ranker import Candidates, Pair, Ranker, read_ranker_data, recall, training_pairs
from ragate_responses.train_ranker import RANKS, RankerConfig, RankerEnding

from kbtrain.config import run_script
from kbtrain.errors import UserError, at
from kbtrain.io.provenance import file_sha256
from kbtrain.records import TurnExample
from kbtrain.training.config import training_arguments
from kbtrain.training.data import check_apart
from kbtrain.training.recipe import Recipe

if TYPE_CHECKING:
    from kbtrain.training.classifier_trainer import ClassifierTrainer


class TrainRankerConfig(RankerConfig):
    model: str = Field("all-minilm-l6-v2", description="pretrained encoder: embedded name, local folder or hub id")
    negatives: int = Field(3, ge=1, description="wrong snippets of the same dialogue for each right one")
    max_length: int = Field(256, ge=32, description="tokens; the oldest turns are cut away, the snippet never")
    device_batch_size: int = Field(16, ge=1, description="pairs per device and forward pass")
    learning_rate: float = Field(3e-5, gt=0, le=1, description="peak learning rate")
    select: Literal["recall@1", "recall@3", "mrr", "last"] = Field(  # type: ignore[assignment]
        "recall@3", description="checkpoint kept, by dev; or the last"
    )

    @model_validator(mode="after")
    def _one_file(self) -> TrainRankerConfig:
        if self.dev is not None and os.path.realpath(self.dev) != os.path.realpath(self.train):
            raise ValueError("key 'dev': the dev turns are those in train's file; put all splits there, or remove it")
        return self


def main(config: TrainRankerConfig) -> None:
    recipe = Recipe("train_ranker", config)
    turns, candidates = read_ranker_data(config.train, config.snippets)
    check_apart(turns["train"], turns["dev"], config.train, config.train)
    for split in ("train", "dev"):
        if not turns[split] and (split == "train" or config.select != "last"):
            hint = "" if split == "train" else "; set select: last to keep the last checkpoint"
            raise UserError(f"{at(config.train)}: no {split} turn with a gold snippet{hint}")
    pairs = training_pairs(turns["train"], candidates, config.negatives, config.seed)
    if config.dry_run:
        counts = ", ".join(f"{split} {len(examples)}" for split, examples in turns.items())
        steps = math.ceil(len(pairs) / (config.device_batch_size * config.gradient_accumulation_steps))
        return recipe.say(f"turns with gold snippets: {counts}; {len(pairs)} pairs, {steps} steps an epoch")
    if not recipe.claim(RANKS, snippets_sha256=file_sha256(config.snippets)):
        return None
    ranker, trainer = train(recipe, config, turns["dev"], candidates, pairs)
    if recipe.first:
        ranker_ending = RankerEnding(config, turns, candidates, ranker, trainer, recipe.facts())
        sentence = ranker_ending.finish()
        for line in (*ranker_ending.lines(), sentence):
            recipe.say(line)
    return recipe.leave()


def train(
    recipe: Recipe, config: TrainRankerConfig, dev: Sequence[TurnExample], candidates: Candidates, pairs: list[Pair]
) -> tuple[Ranker, ClassifierTrainer]:
    from transformers import set_seed

    from kbtrain.models.adapters import checkpoint, compute_of, has_segments, open_encoder, pad_id
    from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierTrainer, Objective

    set_seed(config.seed)
    model, tokenizer = open_encoder(config.model, "fp32", recipe.device, n_logits=1)
    if config.gradient_checkpointing:
        checkpoint(model)
    compute = recipe.compute(lambda: compute_of(config.model, config.dtype, recipe.device))
    ranker = Ranker(model, tokenizer, config.max_length)
    trainer = ClassifierTrainer(
        model,
        training_arguments(config, compute, recipe.device, has_dev=bool(dev)),
        [ranker.row(p.example.context, p.hit.title, p.hit.text, float(p.right)) for p in pairs],
        ClassifierCollator(pad_id(tokenizer), has_segments(model)),
        Objective((0.5, 0.5)),
        lambda: recall(dev, candidates, lambda example, hits, k: ranker.best(example.context, hits, k)),
    )
    recipe.train_to_end(trainer)
    ranker.model = trainer.plain_model()
    return ranker, trainer


if __name__ == "__main__":
    run_script(main, TrainRankerConfig, __doc__)
