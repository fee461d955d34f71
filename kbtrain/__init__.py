"""kbtrain: train and use gates that know when a language model needs retrieval.

Importing the package is light: a name's module is imported when the name is first read. Names that are not listed in
``__all__`` may change.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbtrain.answers.grading import is_correct
    from kbtrain.errors import UserError
    from kbtrain.fit_questions import Fitted, fit
    from kbtrain.gate.card import GateCard, KeyedCard, Threshold, set_threshold
    from kbtrain.gate.gate import Gate, KeyedGate
    from kbtrain.gates.registry import Kind, load_gate
    from kbtrain.llm.backends import LLMConfig, open_llm
    from kbtrain.rag.use import answer
    from kbtrain.records import (
        Decision,
        GateExample,
        Hit,
        Label,
        Passage,
        Question,
        Sample,
        SampleSet,
        TurnExample,
        Utterance,
    )

__version__ = "0.1.0"
__all__ = [
    "Decision",
    "Fitted",
    "Gate",
    "GateCard",
    "GateExample",
    "Hit",
    "KeyedCard",
    "KeyedGate",
    "Kind",
    "LLMConfig",
    "Label",
    "Passage",
    "Question",
    "Sample",
    "SampleSet",
    "Threshold",
    "TurnExample",
    "UserError",
    "Utterance",
    "__version__",
    "answer",
    "fit",
    "is_correct",
    "load_gate",
    "open_llm",
    "set_threshold",
]

_MODULE_OF = {
    "is_correct": "answers.grading",
    "UserError": "errors",
    **dict.fromkeys(("Fitted", "fit"), "fit_questions"),
    **dict.fromkeys(("GateCard", "KeyedCard", "Threshold", "set_threshold"), "gate.card"),
    **dict.fromkeys(("Gate", "KeyedGate"), "gate.gate"),
    "Kind": "gates.registry",
    "load_gate": "gates.registry",
    **dict.fromkeys(("LLMConfig", "open_llm"), "llm.backends"),
    "answer": "rag.use",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kbtrain' has no attribute '{name}'")
    return getattr(importlib.import_module(f"kbtrain.{_MODULE_OF.get(name, 'records')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
