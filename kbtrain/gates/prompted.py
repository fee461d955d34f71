"""Gates that ask an untrained language model, opened by its name without a folder. A new one is a line below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbtrain.gate.card import Pass, text_of
from kbtrain.gate.gate import Gate, Reads
from kbtrain.gates.kind import QUESTION, TURN
from kbtrain.prompts.kbm import need_fingerprint, need_prompt
from kbtrain.prompts.ragate import Shots, ragate_fingerprint
from kbtrain.records import GateExample


@dataclass(frozen=True)
class Prompted:
    """A gate that asks an untrained language model: it has no folder, but is opened by the model's name.

    ``wording``: a fingerprint of its prompt's text. ``passes``: of the score of an example.
    """

    open: Callable[[str, str, str], Gate]
    reads: frozenset[Reads]
    wording: Callable[[], str]
    passes: Callable[[Any], list[Pass]] = lambda example: [Pass(text_of(example))]


def _prompt(model: str, dtype: str, device: str) -> Gate:
    from kbtrain.gates.kbm.prompt import PromptGate

    return PromptGate.load(model, dtype, device)


def _ragate(shots: Shots, know: bool) -> Callable[[str, str, str], Gate]:
    def open_prompt_gate(model: str, dtype: str, device: str) -> Gate:
        from kbtrain.gates.ragate.prompt_and_peft import RagatePrompt
        from kbtrain.models.load import load_model

        return RagatePrompt(*load_model(model, dtype, device), shots, know)

    return open_prompt_gate


def _ragate_kind(shots: Shots, know: bool = False) -> Prompted:
    return Prompted(_ragate(shots, know), TURN, lambda: ragate_fingerprint(shots))


def need_passes(example: GateExample) -> list[Pass]:
    """One over the prompt that asks if more information is needed; its answers are read, not generated."""
    return [Pass(need_prompt(example.question, example.language))]


PROMPTED: dict[str, Prompted] = {
    "prompt": Prompted(_prompt, QUESTION, need_fingerprint, need_passes),
    "ragate_prompt_zero_shot": _ragate_kind("zero_shot"),
    "ragate_prompt_in_context": _ragate_kind("in_context"),
    "ragate_prompt_zero_shot_know": _ragate_kind("zero_shot", know=True),
    "ragate_prompt_in_context_know": _ragate_kind("in_context", know=True),
}
