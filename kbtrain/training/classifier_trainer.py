"""transformers' Trainer for gates that classify: batches of like length, dev scored as the gate scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel, TrainingArguments

from kbtrain.training.base_trainer import Watch, WatchedTrainer
from kbtrain.training.classifier_rows import ClassifierCollator, ClassifierRow, classifier_loss
from kbtrain.training.layer_rates import Rates, parameter_groups


@dataclass(frozen=True)
class Objective:
    """``classes``: logits of the decision, 1 or 2; the model's further ones are for the auxiliary targets."""

    weights: tuple[float, float]
    classes: int = 1
    smoothing: float = 0.0
    auxiliary_weight: float = 0.0


class ClassifierTrainer(WatchedTrainer):
    """``measure`` gives the dev figures of the model being trained; every rank measures all of dev."""

    def __init__(
        self,
        model: Any,
        args: TrainingArguments,
        rows: Sequence[ClassifierRow],
        collator: ClassifierCollator,
        objective: Objective,
        measure: Callable[[], Mapping[str, float]],
        rates: Rates | None = None,
        watch: Watch = lambda step, steps, logs: None,
    ) -> None:
        self.rates = rates
        super().__init__(
            model=model,
            args=args,
            data_collator=collator,
            train_dataset=list(rows),
            eval_dataset=list(rows[:1]),  # transformers wants one; measure() knows dev
        )
        self.rows = rows
        self.objective: Objective = objective
        self.measure = measure
        self.model_accepts_loss_kwargs = False  # the loss is a batch's mean: Trainer divides by the batches of a step
        self.watched_by(watch)

    def create_optimizer(self, model: Any = None) -> Any:
        """AdamW with a rate for each layer, where ``rates`` say so."""
        if self.rates is None or self.optimizer is not None:
            return super().create_optimizer()
        groups = parameter_groups(cast("nn.Module", self.model), self.rates, self.args.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=self.args.learning_rate)
        return self.optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The batch's weighted mean; ``num_items_in_batch`` counts tokens, which are none of our business."""
        need, auxiliary, offset = inputs.pop("need"), inputs.pop("auxiliary"), inputs.pop("offset", 0.0)
        outputs = model(**inputs)
        o = self.objective
        loss = classifier_loss(
            outputs.logits, need, auxiliary, o.weights, o.classes, o.smoothing, o.auxiliary_weight, offset
        )
        return (loss, outputs) if return_outputs else loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Dev figures as the gate scores; all ranks know them."""
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.measure().items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def plain_model(self) -> PreTrainedModel:
        """The trained model without accelerate's wrappers."""
        model = self.accelerator.unwrap_model(self.model_wrapped, keep_fp32_wrapper=False)
        return cast("PreTrainedModel", model)
