"""RAGate-PEFT (section 3.2): a language model with a low-rank adapter, trained to say whether a turn needs knowledge.

The score is p(True) against p(False) where the answer says it: one forward pass, nothing generated or parsed.

``gate.json`` of RAGate-PEFT: which base and adapter, which features it reads, and what it was trained from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.gate_folder import ADAPTER, CARD, Threshold, read_json
from kbtrain.gates.encoder.input import made
from kbtrain.gates.true_false.scorer import TOKENS_PER_BATCH, Scorer
from kbtrain.gates.true_false.template import Encoded, Encoder, PromptTemplate
from kbtrain.jsonl import one_line
from kbtrain.models.adapters import check_base_of_adapter
from kbtrain.prompts.kbm import encode
from kbtrain.prompts.ragate import (
    PeftFeature,
    context_text,
    first_kept,
    ragate_peft_answer,
    ragate_peft_fingerprint,
    ragate_peft_prompt,
    turn_text,
)
from kbtrain.provenance import write_atomically
from kbtrain.records import GateExample, TurnExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class RagatePeftCard(BaseModel):
    """The content of ``gate.json``. ``dtype``: what is computed in; ``method`` qlora: the base is opened in NF4."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
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
    thresholds: dict[str, Threshold] = {}
    label_rule: dict[str, Any] = {}
    run: dict[str, Any] = {}
    versions: dict[str, str] = {}


def write_peft_card(folder: Path, card: RagatePeftCard) -> None:
    """Write ``gate.json`` atomically."""
    write_atomically(folder / CARD, json.dumps(card.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")


def read_peft_card(folder: Path | str) -> RagatePeftCard:
    """Raises :class:`UserError` for a folder that holds no such gate, or a broken one."""
    data, path = read_json(folder), Path(folder) / CARD
    if data["kind"] != "ragate_peft":
        raise UserError(f"{at(path)}: a gate of kind '{data['kind']}', expected 'ragate_peft'")
    try:
        return RagatePeftCard.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{at(path)}: {one_line(error)}") from None


NAME = "ragate_peft"
MERGED = "merged"  # folder of the 16-bit weights, where they were asked for
_VALUES: dict[PeftFeature, Callable[[TurnExample], str | None]] = {
    "resp": lambda turn: turn.response,
    "syn-resp": lambda turn: turn.synthetic_response,
    "ner": lambda turn: None if turn.entities is None else ", ".join(e.text for e in turn.entities) or "none",
    "know": lambda turn: None if turn.knowledge is None else " ".join(f"{h.title} {h.text}" for h in turn.knowledge),
    "source": lambda turn: turn.source,
}


class TurnPrompts:
    """Turns as prompts of at most ``max_length`` tokens, answer included; the oldest turns are left out (``cut``)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, features: Sequence[PeftFeature], max_length: int) -> None:
        self.features = tuple(features)
        self.cut = 0
        self._lengths: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        chat = bool(tokenizer.chat_template)
        template = PromptTemplate(
            ("need",), lambda example: example.question, lambda values: ragate_peft_answer(values[0], chat)
        )
        self.encoder = Encoder(tokenizer, template, max_length)

    def encode(self, turn: TurnExample) -> Encoded:
        """Prompt and answers as tokens. Raises :class:`UserError` if a feature is missing or nothing fits."""
        return self.encoder.encode(self.asked(turn))

    def asked(self, turn: TurnExample) -> GateExample:
        """The whole prompt's text and nothing else of the turn: no label, and of the future what ``resp`` asks for."""
        features = {name: made(_VALUES[name](turn), turn, name) for name in self.features}
        empty = len(encode(self.encoder.tokenizer, ragate_peft_prompt("", features)))
        room = self.encoder.max_length - empty - 12  # the answer and what closes it
        kept = first_kept([self._length(turn_text(utterance)) for utterance in turn.context], room)
        if kept == len(turn.context):
            raise UserError(
                f"example '{turn.id}': its last turn and the features do not fit into max_length "
                f"{self.encoder.max_length}; raise max_length"
            )
        self.cut += kept
        prompt = ragate_peft_prompt(context_text(turn.context[kept:]), features)
        return GateExample(turn.id, turn.id, turn.split, prompt, "en", None)

    def _length(self, text: str) -> int:
        """Tokens of a turn and the space before it."""
        if text not in self._lengths:
            ids = self.encoder.tokenizer(" " + text, add_special_tokens=False)["input_ids"]
            self._lengths[text] = len(ids)
        return self._lengths[text]


class TurnScorer(Scorer):
    """A :class:`~kbtrain.gates.true_false.scorer.Scorer` that is asked about turns."""

    def __init__(self, model: PreTrainedModel, prompts: TurnPrompts, tokens_per_batch: int) -> None:
        super().__init__(model, prompts.encoder, tokens_per_batch)
        self.prompts = prompts

    def probabilities(self, examples: Sequence[Any]) -> dict[str, list[float]]:
        """p(True) of each turn, under the key ``need``."""
        return super().probabilities([self.prompts.asked(turn) for turn in examples])

    def n_batches(self, examples: Sequence[Any]) -> int:
        """Forward passes that these turns take."""
        return super().n_batches([self.prompts.asked(turn) for turn in examples])


class RagatePeft:
    """Score = p(retrieval needed) in [0, 1]. ``needs_evidence``: it reads retrieved knowledge."""

    needs_samples = False
    name = NAME
    keys = ("need",)

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        features: Sequence[PeftFeature],
        max_length: int,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        card: RagatePeftCard | None = None,
    ) -> None:
        self.prompts = TurnPrompts(tokenizer, features, max_length)
        self.scorer = TurnScorer(model, self.prompts, tokens_per_batch)
        self.card = card

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> RagatePeft:
        """Open a gate's folder: its base as it was trained beside (NF4 or not), and the adapter.

        Raises :class:`UserError` before any weights are loaded if prompts or base are others than in training.
        """
        card, path = read_peft_card(folder), Path(folder)
        found = ragate_peft_fingerprint(card.features)
        if found != card.prompt_fingerprint:
            raise UserError(
                f"{path / CARD}: prompt fingerprint {card.prompt_fingerprint} is not this version's {found}: "
                "the gate was trained with other prompts; train it again"
            )
        check_base_of_adapter(card.base_model, card.base_fingerprint, str(path / CARD))
        model, tokenizer = _open(path, card, card.dtype if dtype == "auto" else dtype, device)
        return cls(model, tokenizer, card.features, card.max_length, card=card)

    @property
    def needs_evidence(self) -> bool:
        """Whether turns must carry retrieved knowledge."""
        return "know" in self.prompts.features

    def probabilities(self, examples: Sequence[TurnExample]) -> dict[str, list[float]]:
        """p(True) of each turn, under the key ``need``."""
        return self.scorer.probabilities(examples)

    def score(self, examples: Sequence[TurnExample]) -> list[float]:
        """One score per turn, in their order; higher = retrieval more needed."""
        return self.probabilities(examples)["need"]


def _open(
    folder: Path, card: RagatePeftCard, dtype: str, device: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from peft import PeftModel
    from transformers import AutoTokenizer

    from kbtrain.models.adapters import compute_of, open_base
    from kbtrain.models.load import choose_device

    place = choose_device(device)
    base, _ = open_base(card.base_model, card.method, place, compute_of(card.base_model, dtype, place))
    model: Any = PeftModel.from_pretrained(base, str(folder / ADAPTER)).eval()
    return model, AutoTokenizer.from_pretrained(folder)
