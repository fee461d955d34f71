"""The KBM's trainer for turns: same loss and checkpoints, dev measured as RAGate's table 2 measures it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from kbtrain.gates.kbm.train import KBMTrainer
from kbtrain.metrics.dev import classifier_metrics
from kbtrain.training.processes import under_deepspeed


def peft_arguments(arguments: TrainingArguments, select: str, device: str) -> TrainingArguments:
    """As every recipe's; on a GPU AdamW in pages, which wait in the machine's memory when the GPU's is short."""
    if device.startswith("cuda") and not under_deepspeed():
        arguments.optim = OptimizerNames.PAGED_ADAMW
    arguments.greater_is_better = select != "loss"
    return arguments


class RagatePeftTrainer(KBMTrainer):
    """``labels`` is not used: a turn's label is True or False. ``turns_cut``: old turns that did not fit."""

    turns_cut = 0

    def dev_figures(self, probabilities: Mapping[Any, Sequence[float]]) -> dict[str, float]:
        """``loss``, ``auroc``, ``average_precision`` and the best ``f1`` of dev."""
        need: list[float] = [float(bool(turn.label)) for turn in self.dev]  # type: ignore[attr-defined]
        return classifier_metrics(need, probabilities["need"])
