"""The bills of all gates of a finished evaluation, at the thresholds it used."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kbtrain.errors import UserError
from kbtrain.evaluation import outcomes as oc
from kbtrain.evaluation.cost import Floats, GateBill, Prices, gate_bill, usage
from kbtrain.evaluation.results import GateResult
from kbtrain.evaluation.run_folder import RunFolder, gate_input

_FIXED = {"llm_only": 0.0, "all_rag": 1.0}


def bills(run: RunFolder, gates: Sequence[GateResult], prices: Prices) -> list[GateBill]:
    """In the order of ``gates``; one with no stored scores (the relation-only gate) is billed by its own ratio.

    Raises :class:`UserError` if the results are of other questions than the run's.
    """
    n = len(run.test.outcomes)
    other = next((gate for gate in gates if gate.n != n), None)
    if other is not None:
        raise UserError(f"{run.path}: results of {other.n} questions, but {n} have stored answers; evaluate again")
    used = usage(run.test.graded["llm"], run.test.graded["rag"])
    return [
        gate_bill(gate.gate, used, _retrieve(run, gate), gate.accuracy, gate.cost.gate_seconds / n, prices)
        for gate in gates
    ]


def _retrieve(run: RunFolder, gate: GateResult) -> Floats:
    """The gate's decisions; as probabilities where they are not stored."""
    n = len(run.test.outcomes)
    if gate.gate == "oracle":
        return oc.needed(run.test.outcomes).astype(np.float64)
    if gate.gate in run.scores and gate.threshold is not None:
        return (gate_input([run], gate.gate).test > gate.threshold).astype(np.float64)
    return np.full(n, _FIXED.get(gate.gate, gate.retrieval_ratio))
