"""Examples as training rows, and rows as batches: left padding, explicit positions, targets at the answer only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from kbtrain.gates.true_false.form import Encoded

IGNORE = -100
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """``ids``: prompt and answer. ``labels``: the answer's tokens (-100: no loss). At a value position the loss is
    the cross-entropy against ``weight`` on the label and 1 - ``weight`` on ``other``; elsewhere ``weight`` is 1."""

    ids: tuple[int, ...]
    labels: tuple[int, ...]
    other: tuple[int, ...]
    weight: tuple[float, ...]
    cut: int = 0


def make_row(encoded: Encoded, targets: Sequence[float | None]) -> Row:
    """``targets``: for each key the probability of True to teach; 0 or 1 is the paper's hard label, None no loss.

    The answer's text follows the more probable value, an unknown one reads False.
    """
    values = tuple(t is not None and t > 0.5 for t in targets)
    answer = encoded.answer(values)
    labels, other, weight = list(answer), [0] * len(answer), [1.0] * len(answer)
    for i, t in enumerate(targets):
        place = encoded.tree.places[values[:i]]
        if t is None:
            labels[place.position] = IGNORE
        else:
            other[place.position] = place.false_id if values[i] else place.true_id
            weight[place.position] = t if values[i] else 1 - t
    return Row((*encoded.prompt, *answer), tuple(labels), tuple(other), tuple(weight), encoded.cut)


class Collator:
    """Rows to tensors: inputs (rows, longest - 1), targets (rows, longest answer), both padded on the left.

    The last token predicts nothing and is not fed in; ``logits_to_keep`` = longest answer gives the predictions.
    """

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
        """A batch for :class:`~kbtrain.gates.kbm.train.KBMTrainer`."""
        width = max(len(row.ids) for row in rows) - 1
        answer = max(len(row.labels) for row in rows)
        lengths = torch.tensor([len(row.ids) - 1 for row in rows])[:, None]
        positions = torch.arange(width)[None] - (width - lengths)
        return {
            "input_ids": torch.tensor([_left(row.ids[:-1], width, self.pad_id) for row in rows]),
            "attention_mask": (positions >= 0).long(),
            "position_ids": positions.clamp(min=0),
            "labels": torch.tensor([_left(row.labels, answer, IGNORE) for row in rows]),
            "other": torch.tensor([_left(row.other, answer, 0) for row in rows]),
            "weight": torch.tensor([_left(row.weight, answer, 1.0) for row in rows]),
        }


def _left(items: Sequence[T], width: int, pad: T) -> list[T]:
    return [pad] * (width - len(items)) + list(items)


def answer_loss(logits: torch.Tensor, labels: torch.Tensor, other: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Sum over the answer tokens of the cross-entropy; logits (rows, answer, vocabulary), the rest (rows, answer)."""
    logits = logits.float()
    counted = labels != IGNORE
    chosen = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    against = logits.gather(-1, other[..., None])[..., 0]
    losses = logits.logsumexp(-1) - weight * chosen - (1 - weight) * against
    return losses[counted].sum()
