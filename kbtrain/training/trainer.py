"""transformers' Trainer for a KBM: loss on the answer only, dev scored as the gate scores, checkpoints that hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel, TrainingArguments

from kbtrain.errors import UserError
from kbtrain.gates.exact_head import exact_head
from kbtrain.gates.kbm import KBM
from kbtrain.records import GateExample
from kbtrain.training.attention import attention_for_training
from kbtrain.training.data import Labels
from kbtrain.training.dev_metrics import dev_metrics
from kbtrain.training.rows import Collator, Row, answer_loss
from kbtrain.training.watched_trainer import Watch, WatchedTrainer
from kbtrain.training.zero3 import equal_turns, gathered, is_zero3, put_into


class KBMTrainer(WatchedTrainer):
    """``kbm`` scores with the very model that is trained; ``watch`` is told every step's loss.

    Losses are means over all answer tokens of a step.
    """

    def __init__(
        self,
        kbm: KBM,
        args: TrainingArguments,
        rows: Sequence[Row],
        dev: Sequence[GateExample],
        labels: Labels,
        watch: Watch = lambda step, steps, logs: None,
    ) -> None:
        tokenizer = kbm.scorer.encoder.tokenizer
        pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
        super().__init__(
            model=kbm.scorer.model,
            args=args,
            data_collator=Collator(cast("int", pad)),
            train_dataset=list(rows),
            eval_dataset=list(dev) or None,
        )
        self.split = is_zero3(self.accelerator)
        if self.split and getattr(kbm.scorer.model, "is_quantized", False):
            raise UserError("launcher: ZeRO-3 cannot split 4-bit weights; use ds_configs/zero2.json for method qlora")
        self.kbm = kbm
        self.rows = rows
        self.dev = dev
        self.labels = labels
        self.model_accepts_loss_kwargs = True  # compute_loss divides by the step's tokens, whatever the model does
        self.watched_by(watch)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """Logits at the answer's positions only, in fp32; the sum is divided by the answer tokens of the whole step."""
        labels, other, weight = inputs["labels"], inputs["other"], inputs["weight"]
        inner = self.kbm.scorer.model
        with exact_head(inner), attention_for_training(inner, inputs["input_ids"].shape, self.args.bf16):
            outputs = model(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                position_ids=inputs["position_ids"],
                logits_to_keep=labels.shape[1],
                use_cache=False,
            )
        count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        loss = answer_loss(outputs.logits, labels, other, weight) / count
        if num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes  # the ranks' gradients are averaged, the count is of all
        return (loss, outputs) if return_outputs else loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Dev metrics from the value positions: two logits a position are kept, never the vocabulary's."""
        found = self.dev_figures(self._dev_probabilities())
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def dev_figures(self, probabilities: Mapping[Any, Sequence[float]]) -> dict[str, float]:
        """Figures of the dev examples; ``loss`` and ``auroc`` choose the checkpoint."""
        return dev_metrics(self.dev, probabilities, self.labels)

    def _dev_probabilities(self) -> dict[Any, list[float]]:
        """Every rank scores its share. Shares are of equal number (some examples twice), so that ranks keep step."""
        world, rank = self.args.world_size, self.args.process_index
        share = math.ceil(len(self.dev) / world)
        mine = [self.dev[(rank * share + i) % len(self.dev)] for i in range(share)]
        missing = equal_turns(self.kbm.scorer.turns(mine)) if self.split else 0
        local = self.kbm.probabilities(mine)
        for _ in range(missing):
            self.kbm.probabilities(mine[:1])
        if world == 1:
            return dict(local)
        gathered: list[Any] = [None] * world
        torch.distributed.all_gather_object(gathered, local)
        return {key: [p for part in gathered for p in part[key]][: len(self.dev)] for key in self.kbm.keys}

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
            whole = gathered(model)
            model = put_into(fresh, whole) if self.args.process_index == 0 else model
        return cast("PreTrainedModel", model)
