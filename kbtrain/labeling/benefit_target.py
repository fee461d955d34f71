"""Benefit as training targets: a hard one, and a soft one stretched over the range that benefits really have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from kbtrain.labeling.tau import quantile
from kbtrain.records import Label


@dataclass(frozen=True)
class BenefitTarget:
    """Hard: benefit > ``tau``. Soft: 0 at ``low`` and below, 1 at ``high`` and above, a straight line between.

    Most benefits lie in a narrow band of [-1, 1]. Unstretched, as (1 + benefit) / 2, their targets hardly differ and
    a gate learns little of their order.
    """

    tau: float = 0.0
    low: float = -1.0
    high: float = 1.0

    @classmethod
    def of(cls, labels: Iterable[Label], tau: float, tail: float) -> BenefitTarget:
        """``low`` and ``high`` are the quantiles ``tail`` and 1 - ``tail`` of the training questions' benefits.

        They stay -1 and 1 when ``tail`` is 0, no training question has a benefit, or the quantiles fall together.
        """
        found = Counter(made.benefit for made in labels if made.split == "train" and made.benefit is not None)
        if not tail or not found:
            return cls(tau)
        low, high = quantile(found, tail), quantile(found, 1 - tail)
        return cls(tau, low, high) if low < high else cls(tau)

    def hard(self, benefit: float) -> bool:
        return benefit > self.tau

    def soft(self, benefit: float) -> float:
        return min(max((benefit - self.low) / (self.high - self.low), 0.0), 1.0)


PLAIN = BenefitTarget()  # (1 + benefit) / 2
