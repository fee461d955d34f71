"""transformers' Trainer for a KBM: loss on the answer only, dev scored as the gate scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import TrainingArguments

from kbtrain.gates.kbm.dev_metrics import dev_metrics
from kbtrain.gates.kbm.gate import KBM
from kbtrain.records import GateExample
from kbtrain.training.answer_trainer import AnswerTrainer
from kbtrain.training.base_trainer import Watch
from kbtrain.training.data import Labels
from kbtrain.training.rows import Row
from kbtrain.training.zero3 import equal_turns


class KBMTrainer(AnswerTrainer):
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
        super().__init__(kbm.scorer.model, kbm.scorer.encoder.tokenizer, args, rows, dev)
        self.kbm = kbm
        self.dev = dev
        self.labels = labels
        self.watched_by(watch)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Dev metrics from the value positions: two logits a position are kept, never the vocabulary's."""
        return self.told(self.dev_figures(self._dev_probabilities()), metric_key_prefix)

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
