"""The answering model of a gate that asks it, opened as the gate's card says, and answers that come with scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.prompts.own import OwnPrompts
    from kbtrain.records import SampleSet


class AnsweringCard(Protocol):
    """A card's facts about the model: its name, its number format, and the prompts that it was asked with."""

    @property
    def base_model(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    def own_prompts(self) -> OwnPrompts | None: ...
    def check_prompts(self, found: str, folder: Path | str, instead: str = ...) -> None: ...


def open_answering(
    card: AnsweringCard,
    folder: Path | str,
    fingerprint: Callable[[PreTrainedTokenizerBase, OwnPrompts | None], str],
    dtype: str,
    device: str,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer; ``dtype`` auto: the card's. Raises :class:`UserError` for prompts of another fingerprint."""
    from kbtrain.models.load import load_readable

    model, tokenizer = load_readable(card.base_model, card.dtype if dtype == "auto" else dtype, device)
    found = fingerprint(tokenizer, card.own_prompts())
    card.check_prompts(found, folder, "its threshold was chosen with other prompts; make and calibrate it again")
    return model, tokenizer


@dataclass(frozen=True)
class PlainAnswers:
    """Every question's score; the greedy answers of those that are not searched for; the tokens of the others' drafts.

    The last two by question id.
    """

    scores: list[float]
    said: dict[str, SampleSet]
    drafted: dict[str, int]
