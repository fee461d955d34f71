"""The trainer of a response generator: dev's loss a token, measured in full by every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, TrainingArguments

from kbtrain.gates.encoder.gate import like_length
from kbtrain.kernels.exact_head import exact_head
from kbtrain.training.answer_trainer import AnswerTrainer
from kbtrain.training.base_trainer import Watch
from kbtrain.training.rows import IGNORE, Collator, Row, answer_loss

TOKENS_PER_BATCH = 4096


class DialogueTrainer(AnswerTrainer):
    """``dev``: rows; their mean loss a token is the figure ``loss``."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        args: TrainingArguments,
        rows: Sequence[Row],
        dev: Sequence[Row],
        watch: Watch = lambda step, steps, logs: None,
    ) -> None:
        super().__init__(model, tokenizer, args, rows, dev)
        self.dev = dev
        self.watched_by(watch)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Nats a response token, end token counted."""
        with self.accelerator.autocast():
            losses = row_losses(self.inner, self.dev)
        return self.told({"loss": mean_loss(losses, self.dev)}, metric_key_prefix)


def answer_tokens(row: Row) -> int:
    """Tokens of a row that have a label."""
    return sum(label != IGNORE for label in row.labels)


def mean_loss(losses: Sequence[float], rows: Sequence[Row]) -> float:
    """Over all tokens of all rows."""
    return sum(losses) / max(1, sum(map(answer_tokens, rows)))


def row_losses(model: Any, rows: Sequence[Row]) -> list[float]:
    """Each row's summed loss in nats, in their order."""
    losses, was_training = [0.0] * len(rows), model.training
    collator = Collator(0)  # padding is masked: any token will do
    model.train(False)
    with torch.no_grad(), exact_head(model):
        for batch in like_length([len(row.ids) for row in rows], TOKENS_PER_BATCH):
            inputs = {k: v.to(model.device) for k, v in collator([rows[i] for i in batch]).items()}
            labels, other, weight = (inputs.pop(name) for name in ("labels", "other", "weight"))
            logits = model(**inputs, logits_to_keep=labels.shape[1], use_cache=False).logits
            for i, *one in zip(batch, logits, labels, other, weight, strict=True):
                losses[i] = float(answer_loss(*one))
    model.train(was_training)
    return losses
