"""RAGate-PEFT (section 3.2): a language model with a low-rank adapter, trained to classify turns; and its card.

The score is p(True) against p(False) at the answer's position: one forward pass, nothing generated or parsed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kbtrain.gate.card import ADAPTER, CARD, GateCard
from kbtrain.gate.gate import Gate, Reads
from kbtrain.gates.encoder.input import require_feature
from kbtrain.gates.ragate.prompt import TurnPrompts
from kbtrain.gates.true_false.scorer import Scorer
from kbtrain.gates.true_false.template import PromptTemplate
from kbtrain.models.adapters import check_base_of_adapter, open_beside
from kbtrain.prompts.kbm import fingerprint
from kbtrain.prompts.ragate import PeftFeature, ragate_peft_answer, ragate_peft_fingerprint, ragate_peft_prompt
from kbtrain.records import GateExample, TurnExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


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
        """Raise :class:`UserError` if the adapter was trained beside another base."""
        check_base_of_adapter(self.base_model, self.base_fingerprint, str(Path(folder) / CARD))


NAME = "ragate_peft"
MERGED = "merged"  # folder of the 16-bit weights, where they were asked for
_VALUES: dict[PeftFeature, Callable[[TurnExample], str | None]] = {
    "resp": lambda turn: turn.response,
    "syn-resp": lambda turn: turn.synthetic_response,
    "ner": lambda turn: None if turn.entities is None else ", ".join(e.text for e in turn.entities) or "none",
    "know": lambda turn: None if turn.knowledge is None else " ".join(f"{h.title} {h.text}" for h in turn.knowledge),
    "source": lambda turn: turn.source,
}


def peft_prompts(tokenizer: PreTrainedTokenizerBase, features: Sequence[PeftFeature], max_length: int) -> TurnPrompts:
    """Prompts of context and features; the answer is True or False."""

    def render(turn: TurnExample, context: str) -> GateExample:
        values = {name: require_feature(_VALUES[name](turn), turn, name) for name in features}
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


class TurnScorer(Scorer):
    """A :class:`~kbtrain.gates.true_false.scorer.Scorer` of turns."""

    def __init__(self, model: PreTrainedModel, prompts: TurnPrompts) -> None:
        super().__init__(model, prompts.encoder)
        self.prompts = prompts

    def probabilities(self, examples: Sequence[Any]) -> dict[str, list[float]]:
        """p(True) of each turn, under the key ``need``."""
        return super().probabilities([self.prompts.prompt_example(turn) for turn in examples])

    def n_batches(self, examples: Sequence[Any]) -> int:
        """Forward passes that these turns take."""
        return super().n_batches([self.prompts.prompt_example(turn) for turn in examples])


class RagatePeft(Gate):
    """Score = p(retrieval needed) in [0, 1]. ``needs_evidence``: it reads retrieved knowledge."""

    name = NAME
    reads: frozenset[Reads] = frozenset({"turn"})
    unit = "probability"
    keys = ("need",)

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        features: Sequence[PeftFeature],
        max_length: int,
        card: RagatePeftCard | None = None,
    ) -> None:
        self.prompts = peft_prompts(tokenizer, features, max_length)
        self.scorer = TurnScorer(model, self.prompts)
        self.card: RagatePeftCard | None = card
        self.needs_evidence = "know" in features

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> RagatePeft:
        """Open a gate's folder: its base as it was trained beside (NF4 or not), and the adapter.

        Raises :class:`UserError` before any weights are loaded if prompts or base are others than in training.
        """
        from kbtrain.models.load import load_tokenizer

        card, path = RagatePeftCard.read(folder), Path(folder)
        tokenizer = load_tokenizer(str(path))
        current = peft_fingerprint(tokenizer, card.features)
        if "-" not in card.prompt_fingerprint:  # noted before the chat template was: of the text alone
            current = current.partition("-")[0]
        card.check_prompts(current, folder)
        card.check_base(folder)
        model = open_beside(
            card.base_model, path / ADAPTER, card.method, device, card.dtype if dtype == "auto" else dtype
        )
        return cls(model, tokenizer, card.features, card.max_length, card=card)

    def probabilities(self, examples: Sequence[TurnExample]) -> dict[str, list[float]]:
        """p(True) of each turn, under the key ``need``."""
        return self.scorer.probabilities(examples)

    def score_examples(self, examples: Sequence[TurnExample]) -> list[float]:
        """One score per turn, in their order; higher = retrieval more needed."""
        return self.probabilities(examples)["need"]
