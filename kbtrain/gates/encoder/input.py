"""Encoder input of an example: two segments of tokens, first the current question or turn, then its context.

Turns: a line of structure and the user's last utterance; then the earlier turns, the oldest cut away whole. Questions:
the question; then the reference, its tail cut away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kbtrain.dialogue.base import domain_of
from kbtrain.errors import UserError
from kbtrain.models.encoders import pad_id
from kbtrain.prompts.ragate import first_kept, turn_text
from kbtrain.records import Example, GateExample, TurnExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Feature = Literal["structure", "acts", "resp", "syn-resp", "ner", "know", "source"]


@dataclass(frozen=True)
class Segments:
    """Token ids of one example, special tokens among them; ``segments``: 0 or 1 each; ``cut``: turns or tokens lost."""

    ids: tuple[int, ...]
    segments: tuple[int, ...]
    cut: int


class EncoderInput:
    """Encodes examples for one tokenizer, at most ``max_length`` tokens, with these features of turns."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, features: Sequence[Feature] = ()) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.features = tuple(features)
        self._separators = len(self._assembled([], []).ids)
        self._turns: dict[str, list[int]] = {}

    @property
    def pad_id(self) -> int:
        """Token id that fills a batch's shorter rows."""
        return pad_id(self.tokenizer)

    @property
    def settings(self) -> dict[str, object]:
        """Settings to store with a gate, so that it reads examples the same way."""
        return {"max_length": self.max_length, "features": list(self.features)}

    def encode(self, example: Example) -> Segments:
        """Token ids and segments of an example. Raises :class:`UserError` if it lacks a feature of the settings."""
        if isinstance(example, GateExample):
            return self._question(example)
        return self._turn(example)

    def _question(self, example: GateExample) -> Segments:
        question = self._ids(example.question)[: self.max_length - self._separators]
        reference = self._ids(example.reference or "")
        room = self.max_length - self._separators - len(question)
        return self._assembled(question, reference[:room], max(0, len(reference) - room))

    def _turn(self, example: TurnExample) -> Segments:
        limit = self.max_length - self._separators
        last = self._ids(example.context[-1].text)
        extra = self._ids(feature_text(example, self.features))
        newest = [*extra[: limit // 2], *last[-(limit - min(len(extra), limit // 2)) :]]
        earlier = [self._cached_ids(turn_text(utterance)) for utterance in example.context[:-1]]
        start = first_kept([len(ids) for ids in earlier], limit - len(newest))
        return self._assembled(newest, [token for ids in earlier[start:] for token in ids], start)

    def _cached_ids(self, text: str) -> list[int]:
        """Token ids of a text, cached: a turn is in the context of all later ones."""
        if text not in self._turns:
            self._turns[text] = self._ids(text)
        return self._turns[text]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        return ids

    def _assembled(self, first: list[int], second: list[int], cut: int = 0) -> Segments:
        """``[CLS] first [SEP] second [SEP]`` with the tokenizer's own special tokens."""
        cls, sep = self._special("cls", "bos"), self._special("sep", "eos")
        ids = (cls, *first, sep, *second, sep)
        return Segments(ids, (0,) * (len(first) + 2) + (1,) * (len(second) + 1), cut)

    def _special(self, name: str, other: str) -> int:
        for token_id in (getattr(self.tokenizer, f"{name}_token_id"), getattr(self.tokenizer, f"{other}_token_id")):
            if token_id is not None:
                return int(token_id)
        named = f"tokenizer '{self.tokenizer.name_or_path}'"
        raise UserError(f"{named}: neither a {name} nor a {other} token; it is not an encoder's")


def feature_text(example: TurnExample, features: Sequence[Feature]) -> str:
    """The features as one line before the last utterance, in the order of the settings."""
    return " ".join(f"{_TEXTS[feature](example)} ." for feature in features)


def _structure(example: TurnExample) -> str:
    """Progress of the dialogue, and its domains so far, the latest first."""
    domains = dict.fromkeys(domain_of(service) for service in reversed(example.services))
    return f"turn {example.turn} {' '.join(domains)}"


def _acts(example: TurnExample) -> str:
    """Acts of the last two turns, as the data set annotates them; "inform intent" for INFORM_INTENT."""
    latest = [act for utterance in example.context[-2:] for act in utterance.acts]
    return " , ".join(act.lower().replace("_", " ") for act in latest)


def require_feature(value: str | None, example: TurnExample, feature: Feature) -> str:
    """A feature's text. Raises :class:`UserError` if the example has none."""
    if value is None:
        raise UserError(f"example '{example.id}': no '{feature}' there; make it first (data_gen/turn_features.py)")
    return value


def _entities(example: TurnExample) -> str:
    text = None if example.entities is None else ", ".join(entity.text for entity in example.entities)
    return require_feature(text, example, "ner")


def knowledge_text(example: TurnExample, between: str = " ") -> str:
    """The snippets, best first. Raises :class:`UserError` if none were looked for."""
    hits = example.knowledge
    text = None if hits is None else between.join(f"{hit.title} {hit.text}" for hit in hits)
    return require_feature(text, example, "know")


_TEXTS: dict[Feature, Callable[[TurnExample], str]] = {
    "structure": _structure,
    "acts": _acts,
    "resp": lambda example: f"SYSTEM: {require_feature(example.response, example, 'resp')}",
    "syn-resp": lambda example: f"SYSTEM: {require_feature(example.synthetic_response, example, 'syn-resp')}",
    "ner": _entities,
    "know": knowledge_text,
    "source": lambda example: require_feature(example.source, example, "source"),
}
