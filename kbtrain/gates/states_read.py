"""The states of an answering model that gate folders read: which model, and which layers."""

from __future__ import annotations

from pathlib import Path

from kbtrain.errors import UserError, at
from kbtrain.gate.card import GateCard
from kbtrain.gates.registry import read_card
from kbtrain.records import Statistic

STATES: frozenset[Statistic] = frozenset({"prompt_states", "draft_states"})
SERVED = STATES | {"logprobs", "end_states"}  # statistics that an engine behind a server gives


def answering_model(folder: Path) -> str | None:
    """The answering model of a gate that can be read from a server: its states, or its log-probabilities."""
    card = read_card(folder)
    return card.base_model if card.statistics and card.statistics <= SERVED else model_read(folder)


def model_read(folder: Path) -> str | None:
    """The answering model whose states a gate, or a part of it, reads at its plain prompt; None without such a part."""
    return next((card.base_model for _, card in state_readers(folder)), None)


def layers_read(folder: Path) -> list[int]:
    """Layers that a gate and its parts read, as ids of transformers' ``hidden_states``.

    Raises :class:`UserError` for a gate that reads no states that an engine gives.
    """
    readers = state_readers(folder, STATES | {"end_states"})
    layers = sorted({layer + 1 for path, card in readers for layer in card.layers_read(path)})
    if not layers:
        raise UserError(
            f"{at(folder)}: this gate reads no states of the answering model that an engine gives; it needs no flags"
        )
    return layers


def end_token_read(folder: Path) -> int | None:
    """The end token at which a gate reads states of drawn answers; None for a gate that reads none."""
    from kbtrain.llm.served_states import own_end_token
    from kbtrain.models.load import load_tokenizer

    card = read_card(folder)
    if card.statistics != {"end_states"} or not card.layers_read(folder) or card.base_model is None:
        return None
    return own_end_token(load_tokenizer(card.base_model))


def state_readers(folder: Path, statistics: frozenset[Statistic] = STATES) -> list[tuple[Path, GateCard]]:
    """Folders and cards of the gates that read states, of those that a gate is made of."""
    card = read_card(folder)
    if card.statistics & statistics:
        return [(folder, card)]
    return [reader for part in card.parts() for reader in state_readers(folder / part, statistics)]
