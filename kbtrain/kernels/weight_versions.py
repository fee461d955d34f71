"""Whether weights are still those from which something was computed that is kept."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def weight_versions(weights: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Differs from an earlier result once any of the weights was replaced or written to.

    Weights made in inference mode count no writes: of those, replacing alone is seen.
    """
    return [(weight.data_ptr(), -1 if weight.is_inference() else weight._version) for weight in weights]
