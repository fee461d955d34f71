"""Rows, batches and losses of gates that classify: right padding, masked, weighed by class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import binary_cross_entropy_with_logits


@dataclass(frozen=True)
class ClassifierRow:
    """``ids``: tokens; ``segments``: 0 or 1 each; ``other``: tokens of the knowledge, where it is read on its own.

    ``need``: probability to be taught; ``auxiliary``: further yes/no targets, None where they are not known;
    ``offset``: log odds that another model gives, to which the network's are added.
    """

    ids: tuple[int, ...]
    segments: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    need: float = 0.0
    auxiliary: tuple[float, ...] | None = None
    offset: float = 0.0


class ClassifierCollator:
    """Rows to tensors (rows, longest), padded on the right; the mask says what is real."""

    def __init__(self, pad_id: int, with_segments: bool = False, n_auxiliary: int = 0) -> None:
        self.pad_id = pad_id
        self.with_segments = with_segments
        self.n_auxiliary = n_auxiliary

    def inputs(self, rows: Sequence[ClassifierRow]) -> dict[str, torch.Tensor]:
        """What the model reads."""
        ids, mask = padded([row.ids for row in rows], self.pad_id)
        batch = {"input_ids": ids, "attention_mask": mask}
        if self.with_segments:
            batch["token_type_ids"] = padded([row.segments for row in rows], 0)[0]
        if any(row.other for row in rows):
            other, other_mask = padded([row.other or (self.pad_id,) for row in rows], self.pad_id)
            batch |= {"knowledge_ids": other, "knowledge_mask": other_mask}
        return batch

    def __call__(self, rows: Sequence[ClassifierRow]) -> dict[str, torch.Tensor]:
        """Inputs, ``need`` (rows), ``auxiliary`` (rows, targets; -1: not known), and ``offset`` (rows) if any."""
        unknown = (-1.0,) * self.n_auxiliary
        targets = {
            "need": torch.tensor([row.need for row in rows]),
            "auxiliary": torch.tensor([row.auxiliary or unknown for row in rows]).reshape(len(rows), self.n_auxiliary),
        }
        if any(row.offset for row in rows):
            targets["offset"] = torch.tensor([row.offset for row in rows])
        return self.inputs(rows) | targets


def padded(rows: Sequence[Sequence[int]], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows, longest) and its mask of 1 and 0."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    return ids, mask


def need_logit(logits: torch.Tensor, classes: int) -> torch.Tensor:
    """(rows,): the log-odds that retrieval is needed, from one logit a row or from those of two classes (no, yes)."""
    return logits[:, 0] if classes == 1 else logits[:, 1] - logits[:, 0]


def classifier_loss(
    logits: torch.Tensor,
    need: torch.Tensor,
    auxiliary: torch.Tensor,
    weights: tuple[float, float],
    classes: int = 1,
    smoothing: float = 0.0,
    auxiliary_weight: float = 0.0,
    offset: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """Weighted mean cross-entropy in nats; of a soft target both classes count by their share.

    ``logits``: (rows, classes + auxiliary targets). The auxiliary targets' own mean, over what is known, is added
    with ``auxiliary_weight``. ``offset`` (rows) is added to the decision's log odds.
    """
    logits = logits.float()
    taught = need * (1 - smoothing) + smoothing / 2
    weight = need * weights[1] + (1 - need) * weights[0]
    each = binary_cross_entropy_with_logits(need_logit(logits, classes) + offset, taught, reduction="none")
    loss = (each * weight).sum() / weight.sum()
    known = auxiliary >= 0
    if auxiliary_weight and bool(known.any()):
        rest = binary_cross_entropy_with_logits(logits[:, classes:], auxiliary.clamp(min=0), reduction="none")
        loss = loss + auxiliary_weight * (rest * known).sum() / known.sum()
    return loss
