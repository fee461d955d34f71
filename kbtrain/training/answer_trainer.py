"""transformers' Trainer for a language model that learns answers: loss on their tokens only, in fp32.

Rows are padded on the left, with explicit positions, or lie end to end where that spares enough
(:mod:`kbtrain.training.answer_rows`); targets stand at the answer only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from kbtrain.errors import UserError
from kbtrain.kernels.fp32_output_layer import fp32_output_layer
from kbtrain.kernels.lean_training import lean_layers
from kbtrain.kernels.training_attention import Span, attention_for_training, packs
from kbtrain.training.answer_rows import IGNORE, Collator, TrainingRow
from kbtrain.training.base_trainer import BaseTrainer
from kbtrain.training.processes import gather_weights, is_zero3, load_weights_into

if TYPE_CHECKING:
    from torch import Tensor


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
        super().__init__(
            model=model,
            args=args,
            data_collator=Collator(cast("int", pad), packs(model, max((len(row.ids) for row in rows), default=0))),
            train_dataset=list(rows),
            eval_dataset=list(dev) or None,
        )
        self.inner, self.loss = model, loss
        self.split = is_zero3(self.accelerator)
        if self.split and getattr(model, "is_quantized", False):
            raise UserError("launcher: ZeRO-3 cannot split 4-bit weights; use ds_configs/zero2.json for method qlora")
        self.rows, self.dev = rows, dev
        self.model_accepts_loss_kwargs = True  # compute_loss divides by the step's tokens, for any model

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], torch.Tensor | int | None]:
        """The batches of a step, and the number of its labels over all ranks.

        transformers counts ``labels[..., 1:]`` for causal models, as if they were yet to be shifted: the collator's are
        aligned with the logits, so that every row would lose one.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not batches:
            return batches, None
        counts = [(batch["labels"] != IGNORE).sum() for batch in batches]
        total = torch.stack(counts).sum().to(device)
        return batches, self.accelerator.gather(total).sum() if self.args.world_size > 1 else total

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
        count = (labels != IGNORE).sum() if num_items_in_batch is None else num_items_in_batch
        loss = self.loss(outputs.logits, labels, other, weight) / count
        if num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # the ranks' gradients are averaged, the count is of all
        return (loss, outputs) if return_outputs else loss

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Weights that are stored once and used twice are not missing."""
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
        missing = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def plain_model(self, fresh: Callable[[], Any] | None = None) -> PreTrainedModel:
        """The trained model without accelerate's and the launcher's wrappers.

        With ``fresh``, which opens an untrained one, also under ZeRO-3: all ranks must call it then, and the first
        one gets the weights whole (the others their split model).
        """
        model = self.accelerator.unwrap_model(self.model_wrapped, keep_fp32_wrapper=False)
        if self.split and fresh is not None:
            whole = gather_weights(model)
            model = load_weights_into(fresh, whole) if self.args.process_index == 0 else model
        return cast("PreTrainedModel", model)
