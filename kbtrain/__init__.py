"""kbtrain: train and use gates that know when a language model needs retrieval.

Importing the package is light: a name's module is imported when the name is first read. Names that are not listed in
``__all__`` may change.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kbtrain.answers.grading import is_correct as is_correct
    from kbtrain.errors import UserError as UserError
    from kbtrain.fit_questions import Fitted as Fitted
    from kbtrain.fit_questions import fit as fit
    from kbtrain.gate.card import GateCard as GateCard
    from kbtrain.gate.card import KeyedCard as KeyedCard
    from kbtrain.gate.card import Threshold as Threshold
    from kbtrain.gate.card import set_threshold as set_threshold
    from kbtrain.gate.gate import Gate as Gate
    from kbtrain.gate.gate import KeyedGate as KeyedGate
    from kbtrain.gates.registry import Kind as Kind
    from kbtrain.gates.registry import load_gate as load_gate
    from kbtrain.llm.backends import LLMConfig as LLMConfig
    from kbtrain.llm.backends import open_llm as open_llm
    from kbtrain.rag.use import answer as answer
    from kbtrain.records import Decision as Decision
    from kbtrain.records import GateExample as GateExample
    from kbtrain.records import Hit as Hit
    from kbtrain.records import Label as Label
    from kbtrain.records import Passage as Passage
    from kbtrain.records import Question as Question
    from kbtrain.records import Sample as Sample
    from kbtrain.records import SampleSet as SampleSet
    from kbtrain.records import TurnExample as TurnExample
    from kbtrain.records import Utterance as Utterance

__version__ = "0.1.0"
_MODULE_OF = {
    "is_correct": "answers.grading",
    "UserError": "errors",
    **dict.fromkeys(("Fitted", "fit"), "fit_questions"),
    **dict.fromkeys(("GateCard", "KeyedCard", "Threshold", "set_threshold"), "gate.card"),
    **dict.fromkeys(("Gate", "KeyedGate"), "gate.gate"),
    **dict.fromkeys(("Kind", "load_gate"), "gates.registry"),
    **dict.fromkeys(("LLMConfig", "open_llm"), "llm.backends"),
    "answer": "rag.use",
    **dict.fromkeys(("Decision", "GateExample", "Hit", "Label", "Passage", "Question"), "records"),
    **dict.fromkeys(("Sample", "SampleSet", "TurnExample", "Utterance"), "records"),
}
__all__ = ["__version__", *_MODULE_OF]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'kbtrain' has no attribute '{name}'")
    return getattr(importlib.import_module(f"kbtrain.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
