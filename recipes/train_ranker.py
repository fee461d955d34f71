"""Train a ranker of knowledge snippets: a cross-encoder that reads a dialogue's context and a snippet together.

Reads turns and snippets (data_gen/collect_turns.py), writes a folder that data_gen/turn_features.py searches with,
and ranks.json: Recall@1 and Recall@3 on dev and test beside TF-IDF. A killed run goes on when the same command is
given again.

Examples:
  accelerate launch --config_file ds_configs/accelerate_cpu.yaml recipes/train_ranker.py \\
      --config recipes/configs/ranker_minilm.yaml --train runs/ketod/turns.jsonl \\
      --snippets runs/ketod/snippets.jsonl --output runs/ketod/ranker
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.errors import UserError, at
from kbtrain.jsonl import read
from kbtrain.provenance import file_sha256, package_versions, write_atomically, write_meta
from kbtrain.records import Snippet, TurnExample
from kbtrain.retrieval.ranker import Candidates, TfIdfRank, read_ranker_data, recall, training_pairs
from kbtrain.training.config import TrainingConfig, training_arguments
from kbtrain.training.run import claim, finished, identity, settled

RANKS = "ranks.json"
NOT_PART_OF_A_RUN = frozenset({"output", "dry_run", "keep_checkpoints", "report_to"})


class TrainRankerConfig(TrainingConfig):
    model: str = Field("all-minilm-l6-v2", description="pretrained encoder: embedded name, local folder or hub id")
    train: Path = Field(description="turns of all splits (turns.jsonl)")
    snippets: Path = Field(description="their knowledge (snippets.jsonl)")
    negatives: int = Field(3, ge=1, description="wrong snippets of the same dialogue for each right one")
    max_length: int = Field(256, ge=32, description="tokens; the oldest turns are cut away, the snippet never")
    device_batch_size: int = Field(16, ge=1, description="pairs per device and forward pass")
    learning_rate: float = Field(3e-5, gt=0, description="peak learning rate")
    select: Literal["recall@1", "recall@3", "mrr", "last"] = Field(  # type: ignore[assignment]
        "recall@3", description="checkpoint kept, by dev; or the last"
    )


def say(text: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def main(config: TrainRankerConfig) -> None:
    started = time.time()
    turns, candidates = read_ranker_data(config.train, config.snippets)
    for split in ("train", "dev"):
        if not turns[split] and (split == "train" or config.select != "last"):
            hint = "" if split == "train" else "; set select: last to keep the last checkpoint"
            raise UserError(f"{at(config.train)}: no {split} turn with a gold snippet{hint}")
    pairs = training_pairs(turns["train"], candidates, config.negatives, config.seed)
    counts = ", ".join(f"{split} {len(found)}" for split, found in turns.items())
    if config.dry_run:
        steps = math.ceil(len(pairs) / (config.device_batch_size * config.gradient_accumulation_steps))
        return say(f"train_ranker: turns with gold snippets: {counts}; {len(pairs)} pairs, {steps} steps an epoch")

    from kbtrain.models.load import choose_device
    from kbtrain.training.processes import main_first, start_processes

    device = choose_device(config.device)
    start_processes(device)
    run = identity(config.model_dump(mode="json"), config.train, config.snippets, NOT_PART_OF_A_RUN)
    main_first(lambda: claim(config.output, run))
    if finished(config.output, RANKS):
        return say(f"train_ranker: {config.output} is finished already; nothing to do")
    ranker, trainer = train(config, turns["dev"], candidates, pairs, device)
    if trainer.args.should_save:
        facts = {"pairs": len(pairs), "steps": trainer.state.global_step, "seconds": round(time.time() - started)}
        save(config, turns, candidates, ranker, trainer, run | facts)
    trainer.accelerator.wait_for_everyone()


def train(
    config: TrainRankerConfig, dev: Sequence[TurnExample], candidates: Candidates, pairs: Any, device: str
) -> Any:
    from transformers import set_seed

    from kbtrain.models.encoders import has_segments, open_encoder
    from kbtrain.retrieval.ranker import Ranker
    from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierTrainer, Objective
    from kbtrain.training.finish import train_to_end
    from kbtrain.training.processes import compute_dtype, main_first

    set_seed(config.seed)
    model, tokenizer = open_encoder(config.model, "fp32", device, n_logits=1)
    compute = main_first(lambda: settled(config.output, "compute", lambda: compute_dtype(config.dtype, device, model)))
    ranker = Ranker(model, tokenizer, config.max_length)
    rows = [ranker.row(p.example.context, p.hit.title, p.hit.text, float(p.right)) for p in pairs]
    arguments = training_arguments(config, compute, device, has_dev=bool(dev))
    arguments.greater_is_better = True
    trainer = ClassifierTrainer(
        model,
        arguments,
        rows,
        ClassifierCollator(tokenizer.pad_token_id, has_segments(model)),
        Objective((0.5, 0.5)),
        lambda: recall(dev, candidates, lambda example, hits, k: ranker.best(example.context, hits, k)),
        watch=progress_bar(),
    )
    train_to_end(trainer, config.output, say)
    ranker.model = trainer.plain_model()
    return ranker, trainer


def save(config: TrainRankerConfig, turns: Any, candidates: Candidates, ranker: Any, trainer: Any, run: Any) -> None:
    from kbtrain.retrieval.ranker import RANKER, Ranker
    from kbtrain.training.run import write_run_files

    output = config.output
    ranker.model.float().save_pretrained(output)
    ranker.tokenizer.save_pretrained(output)
    settings = {"kind": "ranker", "base_model": config.model, "max_length": config.max_length}
    write_atomically(output / RANKER, json.dumps({**settings, "run": run, "versions": package_versions()}) + "\n")
    again = Ranker.load(output, device=str(ranker.model.device))
    tfidf = TfIdfRank(list(read(Snippet, config.snippets)))
    found: dict[str, Any] = {}
    for split in ("dev", "test"):
        mine = recall(turns[split], candidates, lambda example, hits, k: again.best(example.context, hits, k))
        found[split] = {"turns": len(turns[split]), "ranker": mine, "tfidf": recall(turns[split], candidates, tfidf)}
    found["snippets_sha256"] = file_sha256(config.snippets)
    write_atomically(output / RANKS, json.dumps(found, indent=1) + "\n")
    write_run_files(output, config, ("train", "snippets"), trainer.state.log_history)
    write_meta(output / RANKS, stage="train_ranker", config=run, inputs=[config.train, config.snippets])
    if not config.keep_checkpoints:
        shutil.rmtree(output / "checkpoints")
    for split in ("dev", "test"):
        for name in ("ranker", "tfidf"):
            figures = ", ".join(f"{key} {value:.3f}" for key, value in found[split][name].items())
            say(f"{split} ({found[split]['turns']} turns): {name}: {figures}")
    say(f"train_ranker: {run['pairs']} pairs, {run['steps']} steps in {run['seconds']} s -> {output}")


def progress_bar() -> Any:
    from tqdm import tqdm

    bar = tqdm(unit="step", disable=int(os.environ.get("RANK", "0")) > 0)

    def show(step: int, steps: int, logs: Mapping[str, float]) -> None:
        bar.total = steps
        bar.update(step - bar.n)
        if "eval_mrr" in logs:
            bar.write(f"step {step}: dev " + ", ".join(f"{k[5:]} {v:.3f}" for k, v in logs.items() if k[:4] == "eval"))

    return show


if __name__ == "__main__":
    run_script(main, TrainRankerConfig, __doc__)
