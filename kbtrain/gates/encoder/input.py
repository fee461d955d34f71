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
from kbtrain.prompts.ragate import first_kept, turn_text
from kbtrain.records import Example, GateExample, TurnExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Feature = Literal["structure", "acts", "resp", "syn-resp", "ner", "know", "source"]


@dataclass(frozen=True)
class InputTokens:
    """Token ids of one example as a classifier reads them; ``segments``: 0 or 1 each; ``other``: those of a text that
    is read on its own; ``cut``: turns or tokens lost."""

    ids: tuple[int, ...]
    segments: tuple[int, ...] = ()
    other: tuple[int, ...] = ()
    cut: int = 0


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
        """Settings to store with a gate, so that it reads examples the same way."""
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


def knowledge_text(example: TurnExample, between: str = " ") -> str:
    """The snippets, best first. Raises :class:`UserError` if none were looked for."""
    feature_value(example, "know")
    return between.join(f"{hit.title} {hit.text}" for hit in example.knowledge or ())


def _structure(example: TurnExample) -> str:
    """Progress of the dialogue, and its domains so far, the latest first."""
    domains = dict.fromkeys(domain_of(service) for service in reversed(example.services))
    return f"turn {example.turn} {' '.join(domains)}"


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
