"""Where to cut: tau as a number or as a quantile of the training questions, and the refusal of a useless cut."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from kbtrain.errors import UserError


class Quantile(BaseModel):
    """tau as a share: ``{quantile: 0.5}`` puts half of the training questions at or below it (ties permitting)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    quantile: Annotated[float, Field(gt=0, lt=1)]


Tau = Annotated[float, Field(ge=0, le=1)] | Quantile


def quantile(values: Counter[float], share: float) -> float:
    """The smallest value with at least this share of all values at or below it; ``values`` maps value to count."""
    total, below = values.total(), 0
    for value in sorted(values):
        below += values[value]
        if below >= share * total * (1 - 1e-12):  # 0.3 * 10 is a little more than 3
            return value
    raise ValueError("no values")


def choose_tau(key: str, setting: float | Quantile, values: Counter[float]) -> float:
    """tau from its setting and the training questions' values; both sides (> tau and not) must be filled.

    ``key`` names the setting in the error, e.g. ``tau_mastery``. Without training questions only a number will do.
    """
    if not values:
        if isinstance(setting, Quantile):
            raise UserError(f"{key}: a quantile needs labelled training questions, there are none; give a number")
        return setting
    tau = quantile(values, setting.quantile) if isinstance(setting, Quantile) else setting
    above, total = sum(n for value, n in values.items() if value > tau), values.total()
    if 0 < above < total:
        return tau
    raise UserError(
        f"{key}: {'all' if above else 'none'} of {total} training questions lie above {tau:g}; "
        f"{_distribution(values)}; {_advice(key, values)}"
    )


def _distribution(values: Counter[float]) -> str:
    quarters = ", ".join(f"{quantile(values, share):.3g}" for share in (0.25, 0.5, 0.75))
    return f"they range from {min(values):.3g} to {max(values):.3g} (quartiles {quarters})"


def _advice(key: str, values: Counter[float]) -> str:
    """The cut that comes nearest to halves; every value but the largest leaves both sides filled."""
    ordered = sorted(values)
    if len(ordered) == 1:
        return "no tau can separate them"
    shares = [sum(values[value] for value in ordered[i + 1 :]) / values.total() for i in range(len(ordered) - 1)]
    best = min(range(len(shares)), key=lambda i: abs(shares[i] - 0.5))
    rounded = (float(f"{ordered[best]:.{digits}g}") for digits in range(2, 18))
    shown = next(tau for tau in rounded if ordered[best] <= tau < ordered[best + 1])
    return f"{key}: {shown} would put {shares[best]:.0%} above"
