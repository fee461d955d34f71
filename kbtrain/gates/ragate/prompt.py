"""RAGate-Prompt (section 3.2): an untrained language model, prompted if knowledge would help the next turn.

The score comes from the probabilities of the two answers' tokens, so that it has an order and not two values only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbtrain.errors import UserError
from kbtrain.gate_folder import Gate, Reads
from kbtrain.gates.encoder.input import made
from kbtrain.gates.true_false.scorer import TOKENS_PER_BATCH, Scorer
from kbtrain.gates.true_false.template import Encoder, PromptTemplate
from kbtrain.prompts.kbm import encode
from kbtrain.prompts.ragate import Shots, context_text, first_kept, ragate_prompt, turn_text
from kbtrain.records import GateExample, TurnExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class RagatePrompt(Gate):
    """Score = p(True) against p(False) in [0, 1] at the answer's first differing token. ``cut`` counts turns left out.

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
        tokens_per_batch: int = TOKENS_PER_BATCH,
    ) -> None:
        self.shots: Shots = shots
        self.needs_evidence = with_knowledge
        self.cut = 0
        gap = "" if tokenizer.chat_template else " "  # plain text goes on after "Response:"
        template = PromptTemplate(
            ("need",),
            lambda example: ragate_prompt(example.question, shots, example.reference),
            lambda values: f"{gap}{values[0]}",
        )
        self.scorer = Scorer(model, Encoder(tokenizer, template, max_length), tokens_per_batch)
        self._lengths: dict[str, int] = {}

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
        """One score per turn, in their order."""
        return self.scorer.probabilities([self.asked(example) for example in examples])["need"]

    def asked(self, example: TurnExample) -> GateExample:
        """Content of the prompt: the context that fits and, if wanted, the snippets. Labels, the response and anything
        else in the future are not copied, so that no prompt can show them.
        """
        knowledge = None
        if self.needs_evidence:
            hits = example.knowledge
            text = None if hits is None else "\n".join(f"{hit.title} {hit.text}" for hit in hits)
            knowledge = made(text, example, "know")
        encoder = self.scorer.encoder
        empty = len(encode(encoder.tokenizer, ragate_prompt("", self.shots, knowledge)))
        room = encoder.max_length - empty - 12  # the answer and what closes it
        kept = first_kept([self._length(turn_text(utterance)) for utterance in example.context], room)
        if kept == len(example.context):
            raise UserError(f"example '{example.id}': its last turn does not fit into max_length {encoder.max_length}")
        self.cut += kept
        context = context_text(example.context[kept:])
        return GateExample(example.id, example.id, "test", context, "en", knowledge)

    def _length(self, text: str) -> int:
        """Tokens of a turn and the space before it."""
        if text not in self._lengths:
            ids = self.scorer.encoder.tokenizer(" " + text, add_special_tokens=False)["input_ids"]
            self._lengths[text] = len(ids)
        return self._lengths[text]
