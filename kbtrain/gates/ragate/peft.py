"""RAGate-PEFT and RAGate-Prompt (section 3.2): a language model that reads the dialogue, with an adapter and without.

The score is p(True) against p(False) at the answer's position, so that it has an order and not two values only: one
forward pass, nothing generated or parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kbtrain.errors import UserError
from kbtrain.gate.card import ADAPTER, CARD, GateCard
from kbtrain.gate.gate import Gate, Reads
from kbtrain.gates.encoder.gate import feature_value
from kbtrain.gates.registry import TURN, Kind
from kbtrain.gates.tree_scorer import Scorer
from kbtrain.gates.true_false import Encoded, Encoder, PromptTemplate
from kbtrain.models.adapters import check_base_of_adapter, open_beside
from kbtrain.prompts.kbm import encode, fingerprint
from kbtrain.prompts.ragate import (
    PeftFeature,
    Shots,
    context_text,
    first_kept,
    ragate_peft_answer,
    ragate_peft_fingerprint,
    ragate_peft_prompt,
    ragate_prompt,
    turn_text,
)
from kbtrain.records import GateExample, TurnExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_ANSWER = 12  # tokens kept free for the answer and what closes it


class TurnPrompts(Encoder):
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
        super().__init__(tokenizer, template, max_length)
        self.render = render
        self.n_truncated = 0
        self._lengths: dict[str, int] = {}

    def encode(self, example: Any) -> Encoded:
        """Prompt and answers as tokens. Raises :class:`UserError` if a feature is missing or nothing fits."""
        return super().encode(self.prompt_example(example) if isinstance(example, TurnExample) else example)

    def prompt_example(self, turn: TurnExample) -> GateExample:
        """The turn as the template renders it. Raises :class:`UserError` if its last utterance does not fit."""
        empty = self.template.render(self.render(turn, ""))
        room = self.max_length - len(encode(self.tokenizer, empty)) - _ANSWER
        start = first_kept([self._length(turn_text(utterance)) for utterance in turn.context], room)
        if start == len(turn.context):
            raise UserError(
                f"example '{turn.id}': its last turn does not fit into max_length {self.max_length} beside "
                "instruction and features; raise max_length"
            )
        self.n_truncated += start
        return self.render(turn, context_text(turn.context[start:]))

    def _length(self, text: str) -> int:
        """Tokens of an utterance and the space before it."""
        if text not in self._lengths:
            self._lengths[text] = len(self.tokenizer(" " + text, add_special_tokens=False)["input_ids"])
        return self._lengths[text]


class TurnGate(Gate):
    """Score = p(retrieval needed) in [0, 1]: p(True) against p(False) at the first token in which the answers differ.

    ``needs_evidence``: it reads knowledge.
    """

    reads: frozenset[Reads] = frozenset({"turn"})
    unit = "probability"
    keys = ("need",)

    def __init__(self, model: PreTrainedModel, prompts: TurnPrompts, needs_evidence: bool) -> None:
        self.prompts = prompts
        self.scorer = Scorer(model, prompts)
        self.needs_evidence = needs_evidence

    @property
    def cut(self) -> int:
        return self.prompts.n_truncated

    def probabilities(self, examples: Sequence[TurnExample]) -> dict[str, list[float]]:
        """p(True) of each turn, under the key ``need``."""
        return self.scorer.probabilities(examples)

    def score_examples(self, examples: Sequence[TurnExample]) -> list[float]:
        return self.probabilities(examples)["need"]


class RagatePeftCard(GateCard):
    """The content of ``gate.json``. ``dtype``: what is computed in; ``method`` qlora: the base is opened in NF4."""

    kind: Literal["ragate_peft"] = "ragate_peft"
    base_model: str
    base_fingerprint: str
    method: Literal["lora", "qlora"]
    features: tuple[PeftFeature, ...]
    prompt_fingerprint: str
    max_length: int
    dtype: str
    seed: int
    merged: bool = False  # the folder also holds the 16-bit weights with the adapter in them

    def check_base(self, folder: Path | str) -> None:
        check_base_of_adapter(self.base_model, self.base_fingerprint, str(Path(folder) / CARD))


def peft_prompts(tokenizer: PreTrainedTokenizerBase, features: Sequence[PeftFeature], max_length: int) -> TurnPrompts:
    """Prompts of context and features; the answer is True or False."""

    def render(turn: TurnExample, context: str) -> GateExample:
        values = {name: feature_value(turn, name) or ("none" if name == "ner" else "") for name in features}
        return GateExample(turn.id, turn.id, turn.split, ragate_peft_prompt(context, values), "en", None)

    chat = bool(tokenizer.chat_template)
    template = PromptTemplate(
        ("need",), lambda example: example.question, lambda values: ragate_peft_answer(values[0], chat)
    )
    return TurnPrompts(tokenizer, template, max_length, render)


def peft_fingerprint(tokenizer: PreTrainedTokenizerBase, features: Sequence[PeftFeature]) -> str:
    """``text-rendered``: 16 hex digits of the prompt's text, and 16 of it and an answer in the chat template."""
    prompt = ragate_peft_prompt("probe", dict.fromkeys(features, "probe"))
    answer = ragate_peft_answer(True, bool(tokenizer.chat_template))
    return f"{ragate_peft_fingerprint(features)}-{fingerprint(tokenizer, prompt, answer)}"


class RagatePrompt(TurnGate):
    """An untrained model and the paper's prompt, zero shot or with its two examples; it has no folder. A prompt longer
    than ``max_length`` tokens loses its oldest turns."""

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


class RagatePeft(TurnGate):
    """Score = p(retrieval needed) in [0, 1], of a language model with an adapter that reads context and features."""

    name = "ragate_peft"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        features: Sequence[PeftFeature],
        max_length: int,
        card: RagatePeftCard | None = None,
    ) -> None:
        super().__init__(model, peft_prompts(tokenizer, features, max_length), "know" in features)
        self.card: RagatePeftCard | None = card

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> RagatePeft:
        """Open a gate's folder: its base as it was trained beside (NF4 or not), and the adapter.

        Raises :class:`UserError` before any weights are loaded if prompts or base are others than in training.
        """
        from kbtrain.models.load import load_tokenizer

        card, path = RagatePeftCard.read(folder), Path(folder)
        tokenizer = load_tokenizer(str(path))
        card.check_prompts(peft_fingerprint(tokenizer, card.features), folder)
        card.check_base(folder)
        compute = card.dtype if dtype == "auto" else dtype
        model = open_beside(card.base_model, path / ADAPTER, card.method, device, compute)
        return cls(model, tokenizer, card.features, card.max_length, card)


KIND = Kind(RagatePeftCard, RagatePeft.load, TURN, "recipes/train_ragate_peft.py")
