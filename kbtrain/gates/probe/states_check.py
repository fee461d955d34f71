"""Comparison of a server's hidden states with a gate's reference states, or with transformers', for check-server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from kbtrain.arrays import States
from kbtrain.errors import UserError, at
from kbtrain.gate.card import CARD
from kbtrain.gates.handles import answering_model, layers_read, state_readers
from kbtrain.gates.probe.gate import ProbeCard
from kbtrain.gates.probe.served import (
    REFERENCE,
    Reference,
    StatesDifference,
    compare_states,
    read_reference_states,
    reference_states,
)
from kbtrain.llm.dialect import Server
from kbtrain.llm.served_states import SHORT_PROMPT, TOLERANCE, StatesServer, largest_difference
from kbtrain.models.load import load_model, load_tokenizer
from kbtrain.prompts.own import OwnPrompts, asked_ids
from kbtrain.records import GateExample

QUESTIONS = (
    "What is the capital of France?",
    "Who wrote Middlemarch?",
    "In which year did the first person walk on the moon?",
)


def compare_server(server: Server, source: str, owner: str = "vllm") -> list[str]:
    """A line for each fact of a server's states.

    ``source``: a gate's folder, or a model (embedded name, folder or hub id) whose states transformers computes here.
    ``owner``: vllm or sglang. Raises :class:`UserError` for a server without states, one that lacks a layer of it,
    another chat template, and a difference above :data:`TOLERANCE`.
    """
    if owner == "sglang":
        return _compare_last(server, source)
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
    _check(difference, server, model)
    return [
        f"compared  layers {', '.join(map(str, layers))}, {served.prompt.shape[-1]} numbers each",
        "tokens    "
        + ("equal to the local ones by the chat template" if same else "not compared: the server returns none"),
        f"reference {at(where) if where else f'transformers here, {model}'}: {len(reference)} prompts",
        _equal(difference),
    ]


def _compare_last(server: Server, source: str) -> list[str]:
    """The same of SGLang, which returns the state after the final norm alone: no gate reads it."""
    import torch

    if (Path(source) / CARD).exists():
        raise UserError(
            f"server {server.base}: SGLang returns the last layer's state after the final norm, and no gate reads it; "
            f"serve '{source}' with vLLM, or open the model here (--states here)"
        )
    weights, tokenizer = load_model(source, "auto", "auto")
    client = StatesServer(server, tokenizer)
    prompts = [asked_ids(tokenizer, GateExample.ask(text), None, None) for text in QUESTIONS]
    with torch.inference_mode():
        passes = [weights(torch.tensor([ids], device=weights.device), output_hidden_states=True) for ids in prompts]
    reference = [read.hidden_states[-1][0, -1:].float().cpu().numpy() for read in passes]

    def difference(states: Sequence[States]) -> float:
        return max(largest_difference(row[None], other) for row, other in zip(states, reference, strict=True))

    alone = difference([client.read_last([ids])[0] for ids in prompts])
    both = StatesDifference(alone, difference(client.read_last(prompts)))
    _check(both, server, source)
    return [f"reference transformers here, {source}: {len(prompts)} prompts, the last layer", _equal(both)]


def _check(difference: StatesDifference, server: Server, model: str) -> None:
    if max(difference) > TOLERANCE:
        raise UserError(
            f"server {server.base}: its states differ from the reference by {difference.alone:.4f} alone and "
            f"{difference.batch:.4f} in a batch (tolerance {TOLERANCE}): it serves another model than '{model}', other "
            "weights or another number format"
        )


def _equal(difference: StatesDifference) -> str:
    values = f"{difference.alone:.4f} alone, {difference.batch:.4f} in a batch"
    return f"equal     largest difference {values} (tolerance {TOLERANCE})"


def _transformers_reference(
    model: str, card: ProbeCard | None, templates: OwnPrompts | None, layers: list[int]
) -> list[Reference]:
    weights, tokenizer = load_model(model, card.dtype if card else "auto", "auto")
    prompts = [asked_ids(tokenizer, GateExample.ask(text), None, templates) for text in QUESTIONS]
    return reference_states(weights, prompts, layers)
