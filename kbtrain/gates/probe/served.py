"""Probes of a served model: states come from the engine that answers, the model is not opened here.

vLLM returns them by :mod:`kbtrain.engine.vllm_connector`; the heads, their layers and their prompt are the gate
folder's. Reference states, noted when the probe was fitted, show that the engine has the same model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from kbtrain.arrays import States
from kbtrain.errors import UserError, at
from kbtrain.gate.card import CARD
from kbtrain.gates.handles import answering_model, layers_read, state_readers
from kbtrain.gates.probe.gate import WEIGHTS, DraftProbe, DraftProbeCard, Probe, ProbeCard, Reader, load_heads
from kbtrain.gates.probe.states import prompt_states
from kbtrain.gates.registry import QUESTION, Kind
from kbtrain.io.files import path_exists
from kbtrain.llm.served_states import (
    HOW,
    SHORT_PROMPT,
    TOLERANCE,
    ServedStates,
    StatesServer,
    check_width,
    largest_difference,
)
from kbtrain.prompts.own import asked_fingerprint, asked_ids
from kbtrain.records import GateExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from kbtrain.llm.dialect import Server
    from kbtrain.prompts.own import OwnPrompts

Reference = tuple[list[int], list[int], "States"]  # a prompt, layers (ids of hidden_states), states (layers, width)
REFERENCE = "reference_states.safetensors"
N_REFERENCE = 3  # prompts


class ServedReader(Reader):
    """Reads states through a server. ``draft_tokens``: longest draft; 0: the prompt's states alone."""

    def __init__(self, server: StatesServer, templates: OwnPrompts | None, draft_tokens: int, width: int) -> None:
        self.server: StatesServer = server
        self.tokenizer = server.tokenizer
        self.own = templates
        self.draft_tokens = draft_tokens
        self.spent = server.spent
        self._width = width

    @property
    def width(self) -> int:
        return self._width

    def states(self, examples: Sequence[GateExample], layers: Sequence[int]) -> States:
        """(examples, layers, width), from one request each."""
        return self.states_in(self.server.read(self.prompts(examples), self.draft_tokens), layers)

    def states_in(self, served: Sequence[ServedStates], layers: Sequence[int]) -> States:
        """The same of what was read already. Layer i is the state after i + 1 layers."""
        states = np.stack(
            [of_prompt.of_layers([layer + 1 for layer in layers], self.draft_tokens > 0) for of_prompt in served]
        )
        check_width(states, self.width)
        return states


def scores_of_one_request(
    probes: Sequence[Probe], examples: Sequence[GateExample]
) -> tuple[list[dict[str, list[float]]], Counter[str]]:
    """As :func:`kbtrain.gates.answering.scores_of_one_pass`: probes of one server from one request for each example.

    A probe whose draft is shorter than the longest asks by itself.
    """
    readers = [cast("ServedReader", probe.reader) for probe in probes]
    longest = max(readers, key=lambda reader: reader.draft_tokens)
    before = Counter(longest.spent)
    served = longest.server.read(longest.prompts(examples), longest.draft_tokens)
    scores = [
        probe.scores_of_states(reader.states_in(served, probe.layers))
        if reader.draft_tokens in (0, longest.draft_tokens)
        else probe.scores_by_name(examples)
        for probe, reader in zip(probes, readers, strict=True)
    ]
    return scores, longest.spent - before


def load_served(probe: type[Probe], folder: Path, server: StatesServer) -> Probe:
    """Open a probe's folder whose states come from a server.

    Raises :class:`UserError` for a probe with its own pass, for other prompts than it was fitted with, for a server
    with another chat template, and for states that differ from the folder's reference.
    """
    card = probe.card_type.read(folder)
    if not card.statistics:
        raise UserError(f"{at(folder)}: this probe has its own pass over '{card.base_model}'; open it without a server")
    heads = load_heads(folder / WEIGHTS, card.keys)
    templates = card.own_prompts()
    card.check_prompts(asked_fingerprint(server.tokenizer, templates), folder, model=card.base_model)
    server.check_prompts(templates)
    reader = ServedReader(server, templates, getattr(card, "tokens", 0), next(iter(heads.values())).weight.shape[1])
    check_reference(folder, server)
    return probe(reader, heads, card.method, card, card.best_key())


def write_reference(folder: Path, gate: Probe, examples: Sequence[GateExample]) -> None:
    """Note the states at the prompts of a few examples beside a probe, each read alone: for :func:`check_reference`."""
    layers = [layer + 1 for layer in gate.layers]
    tensors: dict[str, Any] = {"layers": np.asarray(layers, dtype=np.int32)}
    for number, (ids, _, states) in enumerate(
        reference_states(gate.reader.model, gate.reader.prompts(examples), layers)
    ):
        tensors[f"prompt_{number}"] = np.asarray(ids, dtype=np.int64)
        tensors[f"states_{number}"] = states
    save_file(tensors, str(folder / REFERENCE))


def read_reference_states(folder: Path) -> list[Reference]:
    """Reference states that a folder notes; empty where it notes none."""
    path = folder / REFERENCE
    if not path_exists(path):
        return []
    try:
        tensors = load_file(str(path))
        layers = [int(layer) for layer in tensors["layers"]]
        count = sum(name.startswith("prompt_") for name in tensors)
        return [([int(i) for i in tensors[f"prompt_{n}"]], layers, tensors[f"states_{n}"]) for n in range(count)]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{at(path)}: cannot be read ({error}); copy the whole folder") from None


def check_reference(folder: Path, server: StatesServer) -> StatesDifference:
    """The server's states compared with those that a folder notes.

    Raises :class:`UserError` above :data:`TOLERANCE`, and for a folder that notes none.
    """
    reference = read_reference_states(folder)
    if not reference:
        raise UserError(
            f"{at(folder)}: holds no {REFERENCE}, which is compared with an engine's states; fit the probe again "
            "(recipes/train_probe.py)"
        )
    difference = compare_states(server, reference)
    if max(difference) > TOLERANCE:
        raise UserError(
            f"{at(folder)}: the upstream's states differ from those that the gate was fitted to by "
            f"{max(difference):.3f} (tolerance {TOLERANCE}): it serves another model, other weights or another number "
            f"format; {HOW}"
        )
    return difference


class StatesDifference(NamedTuple):
    """Largest relative difference of states, of prompts that are read alone and of all prompts in one batch."""

    alone: float
    batch: float


def compare_states(server: StatesServer, reference: Sequence[Reference]) -> StatesDifference:
    """The server's states compared with a reference. Raises :class:`UserError` for a layer that it does not keep."""

    def difference(served: Sequence[ServedStates]) -> float:
        return max(
            largest_difference(served_states.of_layers(layers, draft=False), states)
            for served_states, (_, layers, states) in zip(served, reference, strict=True)
        )

    prompts = [ids for ids, _, _ in reference]
    return StatesDifference(difference([server.read([ids])[0] for ids in prompts]), difference(server.read(prompts)))


def reference_states(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], layers: Sequence[int]
) -> list[Reference]:
    """Reference states of prompts by transformers; ``layers`` as ids of ``hidden_states``, from 1."""
    rows = [layer - 1 for layer in layers]
    return [(list(ids), list(layers), prompt_states(model, [ids])[0, rows]) for ids in prompts]


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
    from kbtrain.models.load import load_tokenizer

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
    from kbtrain.models.load import load_model

    weights, tokenizer = load_model(model, card.dtype if card else "auto", "auto")
    prompts = [asked_ids(tokenizer, GateExample.ask(text), None, templates) for text in QUESTIONS]
    return reference_states(weights, prompts, layers)


PROBE = Kind(ProbeCard, Probe.load, QUESTION, "recipes/train_probe.py", open_served=partial(load_served, Probe))
DRAFT_PROBE = Kind(
    DraftProbeCard, DraftProbe.load, QUESTION, "recipes/train_probe.py", open_served=partial(load_served, DraftProbe)
)
