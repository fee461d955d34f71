"""kbtrain: train and use gates that know when a language model needs retrieval.

Importing the package is light: nothing that needs torch is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbtrain.gates.registry import load_gate

__version__ = "0.1.0"
__all__ = ["__version__", "load_gate"]


def __getattr__(name: str) -> Any:
    if name == "load_gate":
        from kbtrain.gates.registry import load_gate

        return load_gate
    raise AttributeError(f"module 'kbtrain' has no attribute '{name}'")
