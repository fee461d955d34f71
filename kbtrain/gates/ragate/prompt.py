"""RAGate-Prompt (section 3.2): an untrained language model is asked about the dialogue. It has no folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbtrain.gates.encoder.gate import feature_value
from kbtrain.gates.ragate.peft import TurnGate, TurnPrompts
from kbtrain.gates.true_false import PromptTemplate
from kbtrain.prompts.ragate import Shots, ragate_peft_answer, ragate_prompt
from kbtrain.records import GateExample, TurnExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class RagatePrompt(TurnGate):
    """The paper's prompt, zero shot or with its two examples. One longer than ``max_length`` tokens loses its oldest
    turns."""

    name = ""  # one of kbtrain.prompts.ragate.RAGATE_PROMPTS

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        shots: Shots = "zero_shot",
        with_knowledge: bool = False,
        max_length: int = 2048,
    ) -> None:
        self.name = f"ragate_prompt_{shots}{'_know' if with_knowledge else ''}"
        chat = bool(tokenizer.chat_template)
        template = PromptTemplate(
            ("need",),
            lambda example: ragate_prompt(example.question, shots, example.reference),
            lambda values: ragate_peft_answer(values[0], chat),
        )

        def render(turn: TurnExample, context: str) -> GateExample:
            knowledge = feature_value(turn, "know") if with_knowledge else None
            return GateExample(turn.id, turn.id, "test", context, "en", knowledge)

        super().__init__(model, TurnPrompts(tokenizer, template, max_length, render), with_knowledge)
