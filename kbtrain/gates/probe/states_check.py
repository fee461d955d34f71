"""Comparison of a server's hidden states with a gate's reference states, or with transformers', for check-server."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from kbtrain.errors import UserError, at
from kbtrain.gate.card import CARD
from kbtrain.gates.handles import answering_model, layers_read, state_readers
from kbtrain.gates.probe.gate import ProbeCard
from kbtrain.gates.probe.served import (
    REFERENCE,
    Reference,
    compare_states,
    read_reference_states,
    reference_states,
)
from kbtrain.llm.dialect import Server
from kbtrain.llm.served_states import SHORT_PROMPT, TOLERANCE, StatesServer
from kbtrain.models.load import load_model, load_tokenizer
from kbtrain.prompts.own import OwnPrompts, asked_ids
from kbtrain.records import GateExample

QUESTIONS = (
    "What is the capital of France?",
    "Who wrote Middlemarch?",
    "In which year did the first person walk on the moon?",
)


def compare_server(server: Server, source: str) -> list[str]:
    """A line for each fact of a server's states.

    ``source``: a gate's folder, or a model (embedded name, folder or hub id) whose states transformers computes here.
    Raises :class:`UserError` for a server without states, one that lacks a layer of it, another chat template, and a
    difference above :data:`TOLERANCE`.
    """
    of_gate = layers_read(Path(source)) if (Path(source) / CARD).exists() else []
    probes = cast("list[tuple[Path, ProbeCard]]", state_readers(Path(source)) if of_gate else [])
    card = probes[0][1] if probes else None
    model = (answering_model(Path(source)) if of_gate else None) or source
    templates = None if card is None else card.own_prompts()
    client = StatesServer(server, load_tokenizer(model))
    (served,) = client.read([SHORT_PROMPT])
    layers = of_gate or list(served.layers)
    served.of_layers(layers, draft=False)
    same = client.check_prompts(templates)
    references = [
        (folder / REFERENCE, reference) for folder, _ in probes if (reference := read_reference_states(folder))
    ]
    where, reference = references[0] if references else (None, _transformers_reference(model, card, templates, layers))
    difference = compare_states(client, reference)
    if max(difference) > TOLERANCE:
        raise UserError(
            f"server {server.base}: its states differ from the reference by {difference.alone:.4f} alone and "
            f"{difference.batch:.4f} in a batch (tolerance {TOLERANCE}): it serves another model than '{model}', other "
            "weights or another number format"
        )
    return [
        f"compared  layers {', '.join(map(str, layers))}, {served.prompt.shape[-1]} numbers each",
        "tokens    "
        + ("equal to the local ones by the chat template" if same else "not compared: the server returns none"),
        f"reference {at(where) if where else f'transformers here, {model}'}: {len(reference)} prompts",
        f"equal     largest difference {difference.alone:.4f} alone, {difference.batch:.4f} in a batch "
        f"(tolerance {TOLERANCE})",
    ]


def _transformers_reference(
    model: str, card: ProbeCard | None, templates: OwnPrompts | None, layers: list[int]
) -> list[Reference]:
    weights, tokenizer = load_model(model, card.dtype if card else "auto", "auto")
    prompts = [asked_ids(tokenizer, GateExample.ask(text), None, templates) for text in QUESTIONS]
    return reference_states(weights, prompts, layers)
