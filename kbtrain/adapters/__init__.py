"""A gate inside other frameworks: one file each, which needs that framework's extra (``pip install "kbtrain[dspy]"``).

Each takes an open gate, or a gate's folder, and searches only where the gate says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbtrain.gate.gate import Gate


def as_gate(gate: Gate | Path | str) -> Gate:
    """The gate of a folder; an open gate as it is. Raises :class:`~kbtrain.errors.UserError` for no gate's folder."""
    if isinstance(gate, Path | str):
        from kbtrain.gates.registry import load_gate

        return load_gate(gate)
    return gate
