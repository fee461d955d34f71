"""Settings and steps that recipes of classifying gates share: go on from a checkpoint, choose the threshold, score."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from kbtrain import jsonl
from kbtrain.errors import UserError, at
from kbtrain.folder import Threshold
from kbtrain.gates.encoder.input import Example
from kbtrain.prompts.kbm import Key
from kbtrain.provenance import file_sha256, write_meta
from kbtrain.records import GateScore
from kbtrain.training.checkpoints import last_good
from kbtrain.training.classifier_data import Labelled, Labels, read_examples
from kbtrain.training.config import TrainingConfig, training_arguments

if TYPE_CHECKING:
    from transformers import Trainer, TrainingArguments

SCORES = "scores.jsonl"
NOT_PART_OF_A_RUN = frozenset({"output", "test", "dry_run", "keep_checkpoints", "report_to"})


class ClassifierConfig(TrainingConfig):
    """What both recipes ask for beside the usual settings."""

    dev: Path = Field(description="dev examples (JSONL); they choose checkpoint and threshold")
    test: Path | None = Field(None, description="scored after the training; chooses nothing")
    key: Key = Field("mastery", description="questions only: which label says that retrieval is needed")
    labels: Labels = Field("hard", description="questions only: hard, or soft (sampled shares)")
    class_weight: float = Field(1.0, ge=0, le=1, description="0: classes as they are; 1: both have the same say")
    select: Literal["loss", "auroc", "average_precision", "f1", "last"] = Field(  # type: ignore[assignment]
        "f1", description="checkpoint kept, by dev: loss, auroc, average_precision, f1; or the last"
    )


def classifier_arguments(config: ClassifierConfig, compute: str, device: str) -> TrainingArguments:
    """As every recipe's, with dev's best chosen by our own figures."""
    arguments = training_arguments(config, compute, device, has_dev=True)
    arguments.greater_is_better = config.select != "loss"
    arguments.label_names = ["need"]
    return arguments


def train_to_end(trainer: Trainer, output: Path, say: Callable[[str], None]) -> None:
    """From the last complete checkpoint, if there is one; incomplete ones are swept and told of."""
    checkpoint, broken = last_good(output / "checkpoints")
    trainer.accelerator.wait_for_everyone()  # all have looked before one of them sweeps
    for path in broken:
        say(f"{path}: incomplete (killed while saving); left out")
        shutil.rmtree(path, ignore_errors=True)
    if checkpoint:
        say(f"goes on from {checkpoint}")
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)


def dev_threshold(rows: Sequence[Labelled], scores: Sequence[float], dev: Path) -> Threshold:
    """Best F1 on dev, as ``gate.json`` keeps it."""
    from kbtrain.metrics.dev import best_f1_threshold

    found = best_f1_threshold([row.need for row in rows], scores)
    return Threshold(threshold=found.value, rule="best_f1", dev_file_sha256=file_sha256(dev), n_dev=len(rows))


def held_out_examples(path: Path | None) -> list[Example]:
    """The test split's examples of a file. Raises :class:`UserError` if it has none."""
    found = [example for example in read_examples(path) if example.split == "test"] if path else []
    if path and not found:
        raise UserError(f"{at(path)}: no example of split 'test' in it")
    return found


def score_held_out(config: Any, output: Path, gate: Any, dev: Sequence[Example], kept: Sequence[float]) -> None:
    """Scores of dev (``kept``) and of the test split, if ``config`` names one, into the folder."""
    test = held_out_examples(config.test)
    inputs = [config.dev, *([config.test] if config.test and config.test != config.dev else [])]
    scores = [*kept, *(gate.score(test) if test else [])]
    write_scores(output, gate.name, [*dev, *test], scores, inputs, seed=config.seed)


def write_scores(
    output: Path, gate: str, examples: Sequence[Example], scores: Sequence[float], inputs: Sequence[Path], **facts: Any
) -> None:
    """``scores.jsonl`` of the folder: one line an example, higher = retrieval more needed."""
    rows = (GateScore(e.id, gate, score) for e, score in zip(examples, scores, strict=True))
    jsonl.write(output / SCORES, rows)
    write_meta(output / SCORES, stage="score", config=None, inputs=inputs, extra={"gates": {gate: facts}})
