"""Epochs of training, timed, for benchmarks/mha.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from mha_reference import ReferenceMHA

from kbtrain.gates.ragate.mha_model import RagateMHAModel
from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierRow, classifier_loss

Logits = Callable[[dict[str, torch.Tensor]], torch.Tensor]


def difference(ours: RagateMHAModel, reference: ReferenceMHA, batch: dict[str, torch.Tensor]) -> float:
    ours.eval(), reference.eval()
    with torch.no_grad():
        return float((ours(**batch).logits - reference(**batch)).abs().max())


def epoch(model: Any, logits: Logits, batches: Sequence[list[ClassifierRow]], collator: ClassifierCollator) -> float:
    """Seconds of one pass, optimiser included; the first batch is run once before, uncounted."""
    model.train()
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-4)
    step(optimiser, logits, batches[0], collator)
    start = time.perf_counter()
    for rows in batches:
        step(optimiser, logits, rows, collator)
    return time.perf_counter() - start


def step(optimiser: Any, logits: Logits, rows: list[ClassifierRow], collator: ClassifierCollator) -> None:
    batch = collator(rows)
    need, auxiliary = batch.pop("need"), batch.pop("auxiliary")
    loss = classifier_loss(logits(batch), need, auxiliary, (0.13, 0.87), classes=2)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
