"""Rows of prompt and answer, and the batches that they make: padded, or end to end behind what all of them begin with.

A KBM's prompts begin alike up to the question (47 of 139 tokens without a reference). In a packed batch one sequence
holds the common beginning and then each row's own tokens, at the positions that they have in their row; each sees the
beginning and its own row (:mod:`kbtrain.kernels.training_attention`). Losses and gradients are those of the rows alone,
to rounding; neither the beginnings nor padding are computed again and again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch

from kbtrain.kernels.training_attention import Span
from kbtrain.models.batching import common_start, padded

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
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "position_ids": torch.tensor([places]),
        "labels": torch.tensor([[label for row in rows for label in row.labels]]),
        "other": torch.tensor([[other for row in rows for other in row.other]]),
        "weight": torch.tensor([[weight for row in rows for weight in row.weight]]),
        "kept": torch.tensor(predicted),
        "spans": torch.tensor(spans),
    }
