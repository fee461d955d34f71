"""transformers' Trainer for gates that classify: rows, batches, a loss weighed by class, a learning rate a layer.

The nearer a layer is to the input, the slower it learns; new layers have their own rate.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from transformers import TrainingArguments

from kbtrain.errors import UserError
from kbtrain.models.batching import padded
from kbtrain.training.base_trainer import BaseTrainer, names_optimizer
from kbtrain.training.data import ClassifierData, InputTokens, act_targets


@dataclass(frozen=True)
class ClassifierRow(InputTokens):
    """``need``: probability to be taught, -1 of a row without a loss; ``auxiliary``: further yes/no targets, None where
    they are not known."""

    need: float = 0.0
    auxiliary: tuple[float, ...] | None = None


def classifier_rows(reader: Any, data: ClassifierData, acts: Sequence[str] = ()) -> list[ClassifierRow]:
    """Training rows as the gate's ``reader`` encodes them; ``acts`` are the auxiliary targets' names."""
    rows = []
    for row in data.train:
        read, targets = reader.encode(row.example), act_targets(row.example, acts)
        rows.append(ClassifierRow(**vars(read), need=row.need, auxiliary=targets))
    return rows


@dataclass(frozen=True)
class ClassifierCollator:
    """Rows to tensors (rows, longest), padded on the right, with a mask of the real tokens."""

    pad_id: int
    with_segments: bool = False
    n_auxiliary: int = 0

    def inputs(self, rows: Sequence[InputTokens]) -> dict[str, torch.Tensor]:
        """The model's inputs, without targets."""
        ids, mask = padded([row.ids for row in rows], self.pad_id)
        batch = {"input_ids": ids, "attention_mask": mask}
        if self.with_segments:
            batch["token_type_ids"] = padded([row.segments for row in rows], 0)[0]
        if any(row.other for row in rows):
            other, other_mask = padded([row.other or (self.pad_id,) for row in rows], self.pad_id)
            batch |= {"knowledge_ids": other, "knowledge_mask": other_mask}
        return batch

    def __call__(self, rows: Sequence[ClassifierRow]) -> dict[str, torch.Tensor]:
        """Inputs, ``need`` (rows) and ``auxiliary`` (rows, targets; -1: not known)."""
        unknown = (-1.0,) * self.n_auxiliary
        targets = {
            "need": torch.tensor([row.need for row in rows]),
            "auxiliary": torch.tensor([row.auxiliary or unknown for row in rows]).reshape(len(rows), self.n_auxiliary),
        }
        return self.inputs(rows) | targets


def need_logit(logits: torch.Tensor, classes: int) -> torch.Tensor:
    """(rows,): the log-odds that retrieval is needed, from one logit a row or from those of two classes (no, yes)."""
    return logits[:, 0] if classes == 1 else logits[:, 1] - logits[:, 0]


def loss_totals(need: torch.Tensor, auxiliary: torch.Tensor, objective: Objective) -> torch.Tensor:
    """(2,): the rows' weight and the number of known auxiliary targets, by which :func:`classifier_loss` divides."""
    return torch.stack([_row_weights(need, objective).sum(), (auxiliary >= 0).sum().float()])


def _row_weights(need: torch.Tensor, objective: Objective) -> torch.Tensor:
    return (need * objective.weights[1] + (1 - need) * objective.weights[0]) * (need >= 0)


def classifier_loss(
    logits: torch.Tensor,
    need: torch.Tensor,
    auxiliary: torch.Tensor,
    objective: Objective,
    totals: torch.Tensor | None = None,
) -> torch.Tensor:
    """Weighted mean cross-entropy in nats; of a soft target both classes count by their share.

    ``logits``: (rows, classes + auxiliary targets). The auxiliary targets' own mean, over what is known, is added
    with its weight. ``totals``: :func:`loss_totals` of all that one step reads; None: of these rows.
    """
    totals = loss_totals(need, auxiliary, objective) if totals is None else totals
    logits = logits.float()
    each = binary_cross_entropy_with_logits(need_logit(logits, objective.classes), need.clamp(min=0), reduction="none")
    loss = (each * _row_weights(need, objective)).sum() / totals[0]
    is_known = auxiliary >= 0
    if objective.auxiliary_weight and bool(is_known.any()):
        rest = binary_cross_entropy_with_logits(
            logits[:, objective.classes :], auxiliary.clamp(min=0), reduction="none"
        )
        loss = loss + objective.auxiliary_weight * (rest * is_known).sum() / totals[1]
    return loss


_HEAD = re.compile(r"\b(?:classifier|score|pooler|pre_classifier)\b")


def parameter_groups(model: nn.Module, rate: float, head_rate: float, weight_decay: float) -> list[dict[str, Any]]:
    """Groups for an optimiser, of like rate and decay; biases and norms do not decay."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            decay = weight_decay if parameter.dim() > 1 else 0.0
            groups.setdefault((head_rate if _HEAD.search(name) else rate, decay), []).append(parameter)
    return [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay), group in groups.items()]


@dataclass(frozen=True)
class Objective:
    """``classes``: logits of the decision, 1 or 2; the model's further ones are for the auxiliary targets.

    ``head_rate``: peak learning rate of pooler and classifier; None: that of all.
    """

    weights: tuple[float, float]
    classes: int = 1
    auxiliary_weight: float = 0.0
    head_rate: float | None = None


class ClassifierTrainer(BaseTrainer):
    """``measure`` gives the dev figures of the model being trained; every rank measures all of dev.

    Raises :class:`UserError` where an optimizer of DeepSpeed's own would ignore the head's rate.
    """

    def __init__(
        self,
        model: Any,
        args: TrainingArguments,
        rows: Sequence[ClassifierRow],
        collator: ClassifierCollator,
        objective: Objective,
        measure: Callable[[], Mapping[str, float]],
    ) -> None:
        self.fills = args.world_size > 1  # else accelerate repeats rows, which count twice
        without_loss = [replace(row, need=-1.0, auxiliary=None) for row in rows[:1]] * self.fills
        super().__init__(
            model=model,
            args=args,
            data_collator=collator,
            train_dataset=[*rows, *without_loss],
            eval_dataset=list(rows[:1]),  # transformers wants one; measure() knows dev
        )
        if objective.head_rate and names_optimizer(self.accelerator):
            raise UserError("launcher: offload is not for a classifier; use the launch file zero2_4gpu or none")
        self.rows = rows
        self.objective: Objective = objective
        self.measure = measure

    def divisor_of(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return loss_totals(batch["need"], batch["auxiliary"], self.objective)

    def create_optimizer(self, model: Any = None) -> Any:
        """AdamW, with its own rate for the head where the objective has one."""
        head_rate = self.objective.head_rate
        if head_rate is None or self.optimizer is not None:
            return super().create_optimizer()
        inner = cast("nn.Module", self.model)
        groups = parameter_groups(inner, self.args.learning_rate, head_rate, self.args.weight_decay)
        self.optimizer = torch.optim.AdamW(groups, lr=self.args.learning_rate)
        return self.optimizer

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, torch.Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> Any:
        """The rows' part of the step's weighted mean; ``num_items_in_batch``: see :meth:`divisor_of`."""
        need, auxiliary = inputs.pop("need"), inputs.pop("auxiliary")
        outputs = model(**inputs)
        totals = cast("torch.Tensor | None", num_items_in_batch)
        loss = classifier_loss(outputs.logits, need, auxiliary, self.objective, totals)
        loss = self.of_all_ranks(loss, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Dev figures as the gate scores; all ranks know them."""
        return self.log_dev_metrics(self.measure(), metric_key_prefix)
