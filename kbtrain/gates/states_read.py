"""The states of an answering model that gate folders read: which model, and which layers."""

from __future__ import annotations

from pathlib import Path

from kbtrain.errors import UserError, at
from kbtrain.gates.probe.gate import WEIGHTS, ProbeCard, load_heads
from kbtrain.gates.registry import read_card
from kbtrain.gates.untrained.served import ServedDraft, ServedPYes


def model_asked(folder: Path) -> str | None:
    """The answering model of a gate that can be read from a server: its states, or its log-probabilities."""
    card = read_card(folder)
    for served in (ServedDraft, ServedPYes):
        if isinstance(card, served.card_type) and card.signal == served.signal:
            return card.base_model
    return model_read(folder)


def model_read(folder: Path) -> str | None:
    """The answering model whose states a gate, or a part of it, reads at its plain prompt; None without such a part."""
    return next((card.base_model for _, card in plain_probes(folder)), None)


def layers_read(folder: Path) -> list[int]:
    """Layers that a gate and its parts read, as ids of transformers' ``hidden_states``.

    Raises :class:`UserError` for a gate that reads no states of the plain prompt.
    """
    probes = plain_probes(folder)
    if not probes:
        raise UserError(f"{at(folder)}: this gate reads no states of the answering model's plain prompt; it needs none")
    heads = [head for path, card in probes for head in load_heads(path / WEIGHTS, card.keys).values()]
    return sorted({layer + 1 for head in heads for layer in head.layers})


def plain_probes(folder: Path) -> list[tuple[Path, ProbeCard]]:
    """Folders and cards of the probes of the plain prompt that a gate is made of."""
    card = read_card(folder)
    if isinstance(card, ProbeCard):
        return [(folder, card)] if card.answered_by is None and card.condition != "rag" else []
    return [probe for part in card.parts() for probe in plain_probes(folder / part)]
