"""The answering model of a gate that asks it, opened as the gate's card says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kbtrain.errors import UserError, at
from kbtrain.gate.card import CARD
from kbtrain.models.batching import BatchLimits, batches
from kbtrain.prompts.own import asked_fingerprint
from kbtrain.records import GateExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.llm.sampler.observer import Observer, PromptRows, Row
    from kbtrain.llm.sampler.sampler import LockstepSampler

OTHER_PROMPTS = "its threshold was chosen with other prompts; make and calibrate it again"


def open_base_model(
    card: Any, folder: Path | str, dtype: str, device: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The card's ``base_model``; ``dtype`` auto: the card's. Raises :class:`UserError`, which names the card, too."""
    from kbtrain.models.load import load_readable

    try:
        return load_readable(card.base_model, card.dtype if dtype == "auto" else dtype, device)
    except UserError as error:
        if not str(error).startswith("model '"):  # of the device or the number format
            raise
        raise UserError(f"{at(Path(folder) / CARD, field='base_model')}: {error}") from None


def open_answering(
    card: Any, folder: Path | str, dtype: str, device: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Model and tokenizer; ``dtype`` auto: the card's. Raises :class:`UserError` for prompts of another fingerprint."""
    model, tokenizer = open_base_model(card, folder, dtype, device)
    card.check_prompts(asked_fingerprint(tokenizer, card.own_prompts()), folder, card.base_model)
    return model, tokenizer


class PassReader(Protocol):
    """A gate that reads the answering model's own passes over the plain prompt and a draft of ``draft_tokens`` tokens
    (0: the prompt alone)."""

    draft_tokens: int

    def drafter(self) -> LockstepSampler:
        """The sampler that draws its draft."""

    def rows_to_draw(self, examples: Sequence[GateExample]) -> list[PromptRows]:
        """The prompts. Raises :class:`UserError` for one without room for a draft."""

    def observer(self) -> Observer:
        """Notes what the gate reads of the passes."""

    def scores_of_rows(self, rows: Sequence[Row], observer: Observer) -> dict[str, list[float]]:
        """Its scores by name, from drafts of as many tokens or more."""


def scores_of_one_pass(
    gates: Sequence[PassReader], examples: Sequence[GateExample]
) -> tuple[list[dict[str, list[float]]], Counter[str]]:
    """Scores of gates of one model at one prompt, each gate's by name, from one prefill and one draft; what was spent.

    In 16 bits each example has its own pass, as where a probe reads it.
    """
    longest, observers = max(gates, key=lambda gate: gate.draft_tokens), [gate.observer() for gate in gates]
    sampler, to_draw = longest.drafter().observed(*observers), longest.rows_to_draw(examples)
    parts = [to_draw] if sampler.model.dtype.itemsize >= 4 else [[row] for row in to_draw]
    rows = [row for part in parts for row in first_rows(sampler, part)]
    spent = Counter(requests=len(rows), tokens=sum(len(row.tokens) for row in rows))
    return [gate.scores_of_rows(rows, observer) for gate, observer in zip(gates, observers, strict=True)], spent


def first_rows(sampler: LockstepSampler, prompts: Sequence[PromptRows]) -> list[Row]:
    """The first answer to each prompt with what is noted of it, in their order, drawn in batches of like length."""
    place, rows = {id(prompt): i for i, prompt in enumerate(prompts)}, {}
    for batch in batches(list(prompts), BatchLimits()):
        for prompt, answers in zip(batch, sampler.draw(batch), strict=True):
            rows[place[id(prompt)]] = answers[0]
    return [rows[i] for i in range(len(prompts))]
