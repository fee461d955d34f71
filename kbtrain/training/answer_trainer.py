"""transformers' Trainer for a language model that learns answers: rows, batches, a loss on the answers' tokens in fp32.

Rows are padded on the left, with explicit positions, or lie end to end behind what all of them begin with. A KBM's
prompts begin alike up to the question (47 of 139 tokens without a reference). In a packed batch one sequence holds the
common beginning and then each row's own tokens, at the positions that they have in their row; each sees the beginning
and its own row (:mod:`kbtrain.kernels.training_attention`). Losses and gradients are those of the rows alone, to
rounding; neither the beginnings nor padding are computed again and again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase, TrainingArguments

from kbtrain.errors import UserError
from kbtrain.kernels.lean_training import lean_layers
from kbtrain.kernels.training_attention import Span, attention_for_training, packs
from kbtrain.models.adapters import compute_of, open_trainable
from kbtrain.models.batching import common_start, padded
from kbtrain.models.forward import fp32_output_layer
from kbtrain.training.base_trainer import BaseTrainer
from kbtrain.training.checks import check_fits, n_steps, states_bytes
from kbtrain.training.config import TrainingConfig

if TYPE_CHECKING:
    from torch import Tensor

    from kbtrain.training.recipe import Recipe

IGNORE = -100


@dataclass(frozen=True)
class TrainingRow:
    """``ids``: prompt and answer. ``labels``: the answer's tokens (-100: no loss). At a value position the loss is
    the cross-entropy against ``weight`` on the label and 1 - ``weight`` on ``other``; elsewhere ``weight`` is 1."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    other: tuple[int, ...]
    weight: tuple[float, ...]
    n_truncated: int = 0


def without_loss(rows: Sequence[TrainingRow]) -> TrainingRow:
    """The shortest row, without labels."""
    shortest = min(rows, key=lambda row: len(row.ids))
    return replace(shortest, labels=(IGNORE,) * len(shortest.labels))


class Collator:
    """Rows to tensors: inputs (rows, longest - 1), targets (rows, longest answer), both padded on the left.

    The last token predicts nothing and is not fed in; ``logits_to_keep`` = longest answer gives the predictions.
    ``packs``: rows that begin alike may lie end to end.
    """

    def __init__(self, pad_id: int, packs: bool = False) -> None:
        self.pad_id, self.packs = pad_id, packs

    def __call__(self, rows: Sequence[TrainingRow]) -> dict[str, torch.Tensor]:
        """A batch for :class:`~kbtrain.gates.kbm.train.KBMTrainer`."""
        if self.packs and pays(rows):
            return packed(rows)
        ids, mask = padded([row.ids[:-1] for row in rows], self.pad_id, "left")
        return {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
            "labels": padded([row.labels for row in rows], IGNORE, "left")[0],
            "other": padded([row.other for row in rows], 0, "left")[0],
            "weight": padded([row.weight for row in rows], 1.0, "left")[0],
        }


LEAST = 0.1  # of a batch's tokens must be spared: then it is worth another order of its sums


def n_common_start(rows: Sequence[TrainingRow]) -> int:
    """Tokens that all prompts begin with, but for the last ones, which predict the answers."""
    return len(common_start([row.ids[: len(row.ids) - len(row.labels)] for row in rows]))


def pays(rows: Sequence[TrainingRow]) -> bool:
    """True if at least :data:`LEAST` of the batch's tokens, padding counted, need not be computed."""
    whole, start = len(rows) * max(len(row.ids) - 1 for row in rows), n_common_start(rows)
    return whole - start - sum(len(row.ids) - 1 - start for row in rows) >= LEAST * whole


def packed(rows: Sequence[TrainingRow]) -> dict[str, torch.Tensor]:
    """Inputs (1, tokens), targets (1, all answers); ``kept``: where the targets are predicted; ``spans``: fields of
    :class:`~kbtrain.kernels.training_attention.Span`, one a line."""
    start = n_common_start(rows)
    own_tokens = [row.ids[start:-1] for row in rows]  # the last token predicts nothing
    ends = list(accumulate((len(ids) for ids in own_tokens), initial=start))
    predicted = [i for end, row in zip(ends[1:], rows, strict=True) for i in range(end - len(row.labels), end)]
    spans = [Span(0, 0, start), *(Span(0, first, end, start) for first, end in pairwise(ends))]
    places = [*range(start), *(start + i for ids in own_tokens for i in range(len(ids)))]
    ids = torch.tensor([[*rows[0].ids[:start], *(i for ids in own_tokens for i in ids)]])
    return {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": torch.tensor([places]),
        "labels": torch.tensor([[label for row in rows for label in row.labels]]),
        "other": torch.tensor([[other for row in rows for other in row.other]]),
        "weight": torch.tensor([[weight for row in rows for weight in row.weight]]), "kept": torch.tensor(predicted),
        "spans": torch.tensor(spans),
    }  # fmt: skip


def check_rows(rows: Sequence[TrainingRow], ids: Sequence[str]) -> None:
    """Every row must teach something. Raises :class:`UserError` naming the first example that does not."""
    for row, name in zip(rows, ids, strict=True):
        if all(label == IGNORE for label in row.labels):
            raise UserError(
                f"example '{name}': no token of its answer has a label, so there is nothing to learn from it"
            )


def dry_run(config: TrainingConfig, rows: Sequence[TrainingRow], rendered: str, counts: str, cut: str) -> str:
    """``rendered`` rows, then one line: ``counts``, lengths, what was ``cut``, steps, and the memory of weights and
    AdamW. No weights are loaded.

    A rank that the launcher starts says what all of them would do.
    """
    devices, lengths = int(os.environ.get("WORLD_SIZE", "1")), sorted(len(row.ids) for row in rows)
    a_step = config.device_batch_size * config.gradient_accumulation_steps * devices
    return (
        f"{rendered}\ndry run: {counts}, of {lengths[0]}-{lengths[-1]} tokens (median {lengths[len(lengths) // 2]}); "
        f"{cut}; {n_steps(config, len(rows), devices)} steps of {a_step} rows, "
        f"{round(sum(lengths) * config.epochs):,} tokens; parameters and optimizer "
        f"{states_bytes(config, devices) / 1e9:.1f} GB a device"
    )


def shown_row(tokenizer: Any, row: TrainingRow) -> str:
    """A row as the model reads it, the answer in double brackets."""
    n = len(row.labels)
    return f"{tokenizer.decode(list(row.ids[:-n]))}[[{tokenizer.decode(list(row.ids[-n:]))}]]"


class Opened(NamedTuple):
    """A model to train, and what it computes in."""

    model: Any
    tokenizer: PreTrainedTokenizerBase
    compute: str


def open_to_train(recipe: Recipe, config: TrainingConfig, rows: Sequence[TrainingRow], ids: Sequence[str]) -> Opened:
    """Open the model that learns these rows, of the examples ``ids``, with its adapters if the method has some.

    Raises :class:`UserError` before weights are loaded: for a row without a label, and for batches that cannot fit.
    """
    check_rows(rows, ids)
    compute = recipe.compute(lambda: compute_of(config.model, config.dtype, recipe.device))
    check_fits(config, recipe.device, max(len(row.ids) for row in rows), recipe.processes)
    model, tokenizer = open_trainable(
        config.model, config.trained_by(), recipe.device, compute, config.adapter(), config.gradient_checkpointing
    )
    return Opened(model, tokenizer, compute)


def answer_loss(logits: torch.Tensor, labels: torch.Tensor, other: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Sum over the answer tokens of the cross-entropy; logits (rows, answer, vocabulary), the rest (rows, answer)."""
    logits = logits.float()
    counted = labels != IGNORE
    chosen = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    against = logits.gather(-1, other[..., None])[..., 0]
    losses = logits.logsumexp(-1) - weight * chosen - (1 - weight) * against
    return losses[counted].sum()


AnswerLoss = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor"], "torch.Tensor"]


class AnswerTrainer(BaseTrainer):
    """``inner`` is the model itself, without wrappers. Losses are means over all answer tokens of a step."""

    def __init__(
        self,
        model: Any,
        tokenizer: PreTrainedTokenizerBase,
        args: TrainingArguments,
        rows: Sequence[TrainingRow],
        dev: Sequence[Any],
        loss: AnswerLoss = answer_loss,
    ) -> None:
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        self.fills = args.world_size > 1 and len(rows) > 0  # else accelerate repeats rows, which count twice
        super().__init__(
            model=model,
            args=args,
            data_collator=Collator(cast("int", pad), packs(model, max((len(row.ids) for row in rows), default=0))),
            train_dataset=[*rows, *([without_loss(rows)] if self.fills else [])],
            eval_dataset=list(dev) or None,
        )
        self.inner, self.loss = model, loss
        self.rows, self.dev = rows, dev

    def divisor_of(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The number of labels.

        transformers counts ``labels[..., 1:]`` for causal models, as if they were yet to be shifted: the collator's are
        aligned with the logits, so that every row would lose one.
        """
        return (batch["labels"] != IGNORE).sum()

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Logits at the answer's positions only, in fp32; the sum is divided by the answer tokens of the whole step."""
        labels, other, weight = inputs["labels"], inputs["other"], inputs["weight"]
        spans = [Span(*line) for line in inputs["spans"].tolist()] if "spans" in inputs else None
        attention = attention_for_training(self.inner, inputs["attention_mask"], self.args.bf16, spans)
        with fp32_output_layer(self.inner), attention, lean_layers(self.inner):
            outputs = model(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                position_ids=inputs["position_ids"],
                logits_to_keep=inputs.get("kept", labels.shape[1]),
                use_cache=False,
            )
        count = self.divisor_of(inputs) if num_items_in_batch is None else num_items_in_batch
        loss = self.of_all_ranks(self.loss(outputs.logits, labels, other, weight) / count, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Weights that are stored once and used twice are not missing."""
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
        missing = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))
