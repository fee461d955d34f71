"""Encoder gate: a pretrained encoder (BERT, DeBERTa, MiniLM, ...) fine-tuned to classify turns or questions.

Its logits are the decision's, then those of auxiliary targets (acts of the turn to come), used in training only.

It reads two segments of tokens, first the current question or turn, then its context. Turns: a line of structure and
the user's last utterance; then the earlier turns, the oldest cut away whole. Questions: the question; then the
reference, its tail cut away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from kbtrain.dialogue.base import domain_of
from kbtrain.errors import UserError
from kbtrain.gate.card import ClassifierCard
from kbtrain.gate.gate import Gate, Reads
from kbtrain.gates.registry import QUESTION, TURN, Kind
from kbtrain.models.adapters import has_segments, open_encoder, pad_id
from kbtrain.models.batching import like_length
from kbtrain.models.weights import check_scores
from kbtrain.prompts.ragate import first_kept, turn_text
from kbtrain.records import Example, GateExample, TurnExample
from kbtrain.training.data import InputTokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Feature = Literal["structure", "acts", "resp", "syn-resp", "ner", "know", "source"]


class TextReader:
    """Reads texts for one tokenizer, at most ``max_length`` tokens of an example."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self._turns: dict[str, list[int]] = {}

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return ids

    def turn_ids(self, text: str) -> list[int]:
        """As :meth:`ids`, cached: a turn is in the context of all later ones."""
        if text not in self._turns:
            self._turns[text] = self.ids(text)
        return self._turns[text]


class EncoderInput(TextReader):
    """Encodes examples for one tokenizer, at most ``max_length`` tokens, with these features of turns."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, features: Sequence[Feature] = ()) -> None:
        super().__init__(tokenizer, max_length)
        self.features = tuple(features)
        self._separators = len(self._assembled([], []).ids)

    @property
    def settings(self) -> dict[str, object]:
        return {"max_length": self.max_length, "features": list(self.features)}

    def encode(self, example: Example) -> InputTokens:
        """Token ids and segments of an example. Raises :class:`UserError` if it lacks a feature of the settings."""
        if isinstance(example, GateExample):
            return self._question(example)
        return self._turn(example)

    def _question(self, example: GateExample) -> InputTokens:
        question = self.ids(example.question)[: self.max_length - self._separators]
        reference = self.ids(example.reference or "")
        room = self.max_length - self._separators - len(question)
        return self._assembled(question, reference[:room], max(0, len(reference) - room))

    def _turn(self, example: TurnExample) -> InputTokens:
        limit = self.max_length - self._separators
        last = self.ids(example.context[-1].text)
        extra = self.ids(feature_text(example, self.features))
        newest = [*extra[: limit // 2], *last[-(limit - min(len(extra), limit // 2)) :]]
        earlier = [self.turn_ids(turn_text(utterance)) for utterance in example.context[:-1]]
        start = first_kept([len(ids) for ids in earlier], limit - len(newest))
        return self._assembled(newest, [token for ids in earlier[start:] for token in ids], start)

    def _assembled(self, first: list[int], second: list[int], cut: int = 0) -> InputTokens:
        """``[CLS] first [SEP] second [SEP]`` with the tokenizer's own special tokens."""
        cls, sep = self._special("cls", "bos"), self._special("sep", "eos")
        ids = (cls, *first, sep, *second, sep)
        return InputTokens(ids, (0,) * (len(first) + 2) + (1,) * (len(second) + 1), cut=cut)

    def _special(self, name: str, other: str) -> int:
        for token_id in (getattr(self.tokenizer, f"{name}_token_id"), getattr(self.tokenizer, f"{other}_token_id")):
            if token_id is not None:
                return int(token_id)
        named = f"tokenizer '{self.tokenizer.name_or_path}'"
        raise UserError(f"{named}: neither a {name} nor a {other} token; it is not an encoder's")


def feature_text(example: TurnExample, features: Sequence[Feature]) -> str:
    """The features as one line before the last utterance, in the order of the settings."""
    marks: dict[Feature, str] = {"resp": "SYSTEM: ", "syn-resp": "SYSTEM: "}
    return " ".join(f"{marks.get(name, '')}{feature_value(example, name)} ." for name in features)


def feature_value(example: TurnExample, feature: Feature) -> str:
    """The text of one feature. Raises :class:`UserError` if the example has none."""
    value = _VALUES[feature](example)
    if value is None:
        raise UserError(f"example '{example.id}' has no '{feature}'; make it first (data_gen/turn_features.py)")
    return value


def _structure(example: TurnExample) -> str:
    """Progress of the dialogue, and its domains so far, the latest first."""
    domains = dict.fromkeys(domain_of(service) for service in reversed(example.services))
    return f"turn {len(example.context)} {' '.join(domains)}"


def _acts(example: TurnExample) -> str:
    """Acts of the last two turns, as the data set annotates them; "inform intent" for INFORM_INTENT."""
    latest = [act for utterance in example.context[-2:] for act in utterance.acts]
    return " , ".join(act.lower().replace("_", " ") for act in latest)


_VALUES: dict[Feature, Callable[[TurnExample], str | None]] = {
    "structure": _structure,
    "acts": _acts,
    "resp": lambda turn: turn.response,
    "syn-resp": lambda turn: turn.synthetic_response,
    "ner": lambda turn: None if turn.entities is None else ", ".join(entity.text for entity in turn.entities),
    "know": lambda turn: None if turn.knowledge is None else " ".join(f"{h.title} {h.text}" for h in turn.knowledge),
    "source": lambda turn: turn.source,
}


class ClassifierGate(Gate):
    """Score = p(retrieval needed) in [0, 1] by a network with a classifying head: one pass, in batches of like length.

    ``reader`` turns an example into :class:`InputTokens`; ``cut`` counts turns or tokens skipped so far.
    """

    CLASSES: ClassVar[int] = 1  # logits of the decision: one, or those of no and yes
    TOKENS_PER_BATCH: ClassVar[int] = 8192  # rows x longest: bounds memory
    reads: frozenset[Reads] = frozenset({"question", "turn"})
    unit = "probability"

    def __init__(self, model: PreTrainedModel, reader: Any, card: ClassifierCard | None = None) -> None:
        self.model = model
        self.reader = reader
        self.card: ClassifierCard | None = card
        self.cut = 0

    def score_examples(self, examples: Sequence[Example]) -> list[float]:
        """One score per example, in their order. Raises :class:`UserError` if one is not a number."""
        rows = [self.reader.encode(example) for example in examples]
        self.cut += sum(row.cut for row in rows)
        scores = [0.0] * len(rows)
        was_training = self.model.training
        self.model.train(False)
        for batch in like_length([max(len(row.ids), len(row.other)) for row in rows], self.TOKENS_PER_BATCH):
            for i, p in zip(batch, self._probabilities([rows[i] for i in batch]), strict=True):
                scores[i] = p
        self.model.train(was_training)
        check_scores(self.model, examples, scores)
        return scores

    def save_beside(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.reader.tokenizer.save_pretrained(folder)

    def _probabilities(self, rows: Sequence[InputTokens]) -> list[float]:
        import torch

        from kbtrain.training.classifier_trainer import ClassifierCollator, need_logit

        batch = ClassifierCollator(pad_id(self.reader.tokenizer), has_segments(self.model)).inputs(rows)
        with torch.no_grad():
            logits: torch.Tensor = self.model(**{k: v.to(self.model.device) for k, v in batch.items()}).logits
        return [float(p) for p in torch.sigmoid(need_logit(logits.double(), self.CLASSES)).cpu()]


class EncoderGate(ClassifierGate):
    """Score = p(retrieval needed) in [0, 1]; one forward pass. ``cut`` counts turns or tokens skipped so far."""

    name = "encoder"

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> EncoderGate:
        card = ClassifierCard.read(folder, "encoder")
        model, tokenizer = open_encoder(str(folder), dtype, device)
        return cls(model, card.reader(EncoderInput, tokenizer, folder), card)


def turns_only(examples: Sequence[Example]) -> list[TurnExample]:
    """The examples, all of them dialogue turns. Raises :class:`UserError` otherwise."""
    turns = [example for example in examples if isinstance(example, TurnExample)]
    if len(turns) < len(examples):
        other = next(example for example in examples if not isinstance(example, TurnExample))
        raise UserError(f"example '{other.id}': base 'dialogue_state' reads dialogue turns; remove the key 'base'")
    return turns


KIND = Kind(ClassifierCard, EncoderGate.load, QUESTION | TURN, "recipes/train_encoder.py")
