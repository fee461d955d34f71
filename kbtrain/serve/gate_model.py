"""A gate's model: compared with an upstream's models, and the upstream as the source of its states."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard
from kbtrain.gates.registry import load_gate, read_card
from kbtrain.gates.states_read import answering_model, model_read
from kbtrain.io.provenance import meta_of, short_name
from kbtrain.llm.dialect import Dialect, Server
from kbtrain.llm.served_states import StatesServer
from kbtrain.models.load import load_tokenizer
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.metrics import Metrics
from kbtrain.serve.problem import Refused
from kbtrain.serve.upstream import HttpUpstream

_SHOWN = 5  # models of an upstream in a message
_FORM = re.compile(r"([-._](gguf|awq|gptq|fp8|bf16|fp16|f16|int[48]|[48]bit|i?q\d[\w]*))+$")
logger = logging.getLogger("kbtrain.serve")


class GateModel:
    """Names of the models whose states or answers a gate reads; empty for a gate that reads the question alone.

    ``served``: names in the upstream's list of models; None where it cannot be read at the start.
    """

    def __init__(self, names: Sequence[str], served: Sequence[str] | None) -> None:
        self.names = tuple(names)
        self.served = served

    def serves(self, requested: str | None) -> bool:
        """True if the model that answers a request is the gate's, as far as names show it.

        A server of one model often ignores the name in a request, so its list decides there.
        """
        if not self.names or requested is None or (self.served is not None and len(self.served) == 1):
            return True
        return any(is_same_model(requested, name) for name in self.names)


def gate_model(config: ServeConfig, card: GateCard | None) -> GateModel:
    """The gate's model beside the upstream's list. Raises :class:`UserError` where the list has no such model."""
    names = () if card is None or config.any_model or config.upstream is None else models_read(config.gate, card)
    if not names:
        return GateModel((), None)
    served = asyncio.run(served_models(config))
    if served is None:
        logger.warning(
            "upstream: its list of models cannot be read; requests for another model than '%s' pass ungated", names[0]
        )
    elif not any(is_same_model(model, name) for model in served for name in names):
        listed = ", ".join(f"'{model:.60}'" for model in served[:_SHOWN]) or "no model"
        raise UserError(
            f"key 'upstream': it serves {listed}, but this gate reads states or answers of '{short_name(names[0])}' "
            "and says nothing about another model. Serve a gate that reads the question alone (features, kbm, encoder) "
            "of a run with that model, or add --any-model if it is the same model"
        )
    return GateModel(names, served)


def models_read(folder: Path, card: GateCard) -> tuple[str, ...]:
    """Names of the answering models whose states or answers a gate, or a part of it, reads."""
    of_parts = [models_read(folder / part, read_card(folder / part)) for part in card.parts()]
    return (*card.answering_models(), *(name for names in of_parts for name in names))


def is_same_model(first: str, second: str) -> bool:
    """True for two names of one model: without owner or folder, case, tag and form of the weights."""
    return _plain(first) == _plain(second)


def _plain(name: str) -> str:
    plain = short_name(name).lower().removesuffix(":latest").removesuffix(".gguf").removesuffix(".safetensors")
    return _FORM.sub("", plain)


async def served_models(config: ServeConfig) -> list[str] | None:
    """Names in the upstream's list of models; None where it cannot be read."""
    upstream = HttpUpstream(config, Metrics())
    try:
        models: list[dict[str, Any]] = await upstream.models()
    except Refused:
        return None
    finally:
        await upstream.close()
    return [str(model["id"]) for model in models if isinstance(model.get("id"), str)]


def is_of_demo(folder: Path) -> bool:
    """True for a gate in a run folder of the demo's questions."""
    try:
        settings = meta_of(folder.resolve().parent / "questions.jsonl").get("config", {})
    except UserError:
        return False
    return isinstance(settings, dict) and settings.get("dataset") == "atlas"


def states_server(config: ServeConfig) -> StatesServer | None:
    """A client of the upstream for the states, or log-probabilities, that the gate reads; None where a copy of the
    model here gives them.

    Raises :class:`UserError` where ``states: upstream`` asks for the upstream's and it gives none.
    """
    model = None if config.upstream is None or config.states == "here" else answering_model(config.gate)
    if config.upstream is None or model is None:
        if config.states == "upstream":
            raise UserError(f"key 'states': no upstream, or gate '{config.gate}' reads nothing that it gives")
        return None
    served = asyncio.run(served_models(config))
    name = served_name(served or (), model, config.any_model)
    problem = "it does not answer" if served is None else "its list of models has no model of that name"
    if name is not None:
        server = Server(
            url=config.upstream.rstrip("/"),
            dialect=Dialect(key_header=config.upstream_key_header),
            model=name,
            key_env=config.upstream_key_env,
            timeout=config.gate_deadline_s,
        )
        states = StatesServer(server, load_tokenizer(model))
        problem = _problem(states, config.gate)
        if not problem:
            return states
    if config.states == "upstream":
        raise UserError(f"key 'states': the upstream gives no states of '{model}': {problem}")
    logger.warning("the upstream gives no states (%s); the gate reads those of a copy of '%s' here", problem, model)
    return None


def _problem(states: StatesServer, gate: Path) -> str:
    """A short reason why the gate cannot be read from the server; empty where it can."""
    if model_read(gate) is not None:
        return states.problem() or ""
    try:
        load_gate(gate, states=states)
    except UserError as error:
        return str(error)
    return ""


def served_name(names: Sequence[str], model: str, any_model: bool) -> str | None:
    """The upstream's name of a model; None without one."""
    same = [name for name in names if is_same_model(name, model)]
    if len(same) == 1:
        return same[0]
    return names[0] if any_model and len(names) == 1 else None
