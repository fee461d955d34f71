"""The states of an answering model that gate folders read: which model, and which layers."""

from __future__ import annotations

from pathlib import Path

from kbtrain.errors import UserError, at
from kbtrain.gate.card import GateCard
from kbtrain.gates.registry import read_card

STATES = frozenset({"prompt_states", "draft_states"})
SERVED = STATES | {"logprobs"}  # statistics that an engine behind a server gives


def answering_model(folder: Path) -> str | None:
    """The answering model of a gate that can be read from a server: its states, or its log-probabilities."""
    card = read_card(folder)
    return card.base_model if card.statistics and card.statistics <= SERVED else model_read(folder)


def model_read(folder: Path) -> str | None:
    """The answering model whose states a gate, or a part of it, reads at its plain prompt; None without such a part."""
    return next((card.base_model for _, card in state_readers(folder)), None)


def layers_read(folder: Path) -> list[int]:
    """Layers that a gate and its parts read, as ids of transformers' ``hidden_states``.

    Raises :class:`UserError` for a gate that reads no states of the plain prompt.
    """
    readers = state_readers(folder)
    if not readers:
        raise UserError(f"{at(folder)}: this gate reads no states of the answering model's plain prompt; it needs none")
    return sorted({layer + 1 for path, card in readers for layer in card.layers_read(path)})


def state_readers(folder: Path) -> list[tuple[Path, GateCard]]:
    """Folders and cards of the gates that read states, of those that a gate is made of."""
    card = read_card(folder)
    if card.statistics & STATES:
        return [(folder, card)]
    return [reader for part in card.parts() for reader in state_readers(folder / part)]
