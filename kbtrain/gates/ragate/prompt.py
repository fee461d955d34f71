"""RAGate-Prompt (section 3.2): an untrained language model, prompted if knowledge would help the next turn.

The score comes from the probabilities of the two answers' tokens, so that it has an order and not two values only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbtrain.errors import UserError
from kbtrain.gate.gate import Gate, Reads
from kbtrain.gates.encoder.input import knowledge_text
from kbtrain.gates.true_false.scorer import Scorer
from kbtrain.gates.true_false.template import Encoded, Encoder, PromptTemplate
from kbtrain.prompts.kbm import encode
from kbtrain.prompts.ragate import Shots, context_text, first_kept, ragate_prompt, turn_text
from kbtrain.records import GateExample, TurnExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


_ANSWER = 12  # tokens kept free for the answer and what closes it


class TurnPrompts:
    """Turns as prompts of at most ``max_length`` tokens, answer included; the oldest turns are skipped.

    ``render(turn, context)`` gives all that the prompt is made of, with as much of the context as fits: no label, and
    of the future only what a feature asks for, so that no prompt can show more. ``n_truncated`` counts turns skipped.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        template: PromptTemplate,
        max_length: int,
        render: Callable[[TurnExample, str], GateExample],
    ) -> None:
        self.encoder = Encoder(tokenizer, template, max_length)
        self.render = render
        self.n_truncated = 0
        self._lengths: dict[str, int] = {}

    def encode(self, turn: TurnExample) -> Encoded:
        """Prompt and answers as tokens. Raises :class:`UserError` if a feature is missing or nothing fits."""
        return self.encoder.encode(self.prompt_example(turn))

    def prompt_example(self, turn: TurnExample) -> GateExample:
        """The turn as the template renders it. Raises :class:`UserError` if its last utterance does not fit."""
        empty = self.encoder.template.render(self.render(turn, ""))
        room = self.encoder.max_length - len(encode(self.encoder.tokenizer, empty)) - _ANSWER
        start = first_kept([self._length(turn_text(utterance)) for utterance in turn.context], room)
        if start == len(turn.context):
            raise UserError(
                f"example '{turn.id}': its last turn does not fit into max_length {self.encoder.max_length} beside "
                "instruction and features; raise max_length"
            )
        self.n_truncated += start
        return self.render(turn, context_text(turn.context[start:]))

    def _length(self, text: str) -> int:
        """Tokens of an utterance and the space before it."""
        if text not in self._lengths:
            ids = self.encoder.tokenizer(" " + text, add_special_tokens=False)["input_ids"]
            self._lengths[text] = len(ids)
        return self._lengths[text]


class RagatePrompt(Gate):
    """Score = p(True) against p(False) in [0, 1] at the answer's first differing token. ``cut`` counts turns skipped.

    A prompt longer than ``max_length`` tokens loses its oldest turns.
    """

    reads: frozenset[Reads] = frozenset({"turn"})
    unit = "probability"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        shots: Shots = "zero_shot",
        with_knowledge: bool = False,
        max_length: int = 2048,
    ) -> None:
        self.shots: Shots = shots
        self.needs_evidence = with_knowledge
        gap = "" if tokenizer.chat_template else " "  # plain text follows "Response:"
        template = PromptTemplate(
            ("need",),
            lambda example: ragate_prompt(example.question, shots, example.reference),
            lambda values: f"{gap}{values[0]}",
        )
        self.prompts = TurnPrompts(tokenizer, template, max_length, self._render)
        self.scorer = Scorer(model, self.prompts.encoder)

    @property
    def cut(self) -> int:
        """Turns skipped so far."""
        return self.prompts.n_truncated

    @classmethod
    def load(cls, model: str, shots: Shots = "zero_shot", dtype: str = "auto", device: str = "auto") -> RagatePrompt:
        """Open a model by embedded name, folder or hub id. Raises :class:`UserError`."""
        from kbtrain.models.load import load_model

        return cls(*load_model(model, dtype, device), shots)

    @property
    def name(self) -> str:
        """``ragate_prompt_zero_shot`` or ``ragate_prompt_in_context``."""
        return f"ragate_prompt_{self.shots}"

    def score_examples(self, examples: Sequence[TurnExample]) -> list[float]:
        return self.scorer.probabilities([self.prompts.prompt_example(example) for example in examples])["need"]

    def _render(self, turn: TurnExample, context: str) -> GateExample:
        knowledge = knowledge_text(turn, "\n") if self.needs_evidence else None
        return GateExample(turn.id, turn.id, "test", context, "en", knowledge)
