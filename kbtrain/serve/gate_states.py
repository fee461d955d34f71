"""The upstream as the source of the states that a gate reads: one model in memory, one prefill for gate and answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from kbtrain.errors import UserError
from kbtrain.gates.registry import load_gate
from kbtrain.gates.states_read import answering_model, model_read
from kbtrain.llm.dialect import Dialect, Server
from kbtrain.llm.served_states import StatesServer
from kbtrain.models.load import load_tokenizer
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.gate_model import is_same_model, served_models

logger = logging.getLogger("kbtrain.serve")


def states_server(config: ServeConfig) -> StatesServer | None:
    """A client of the upstream for the states, or log-probabilities, that the gate reads; None where they come from a
    copy of the model here.

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
    """The one of an upstream's ``names`` that means a model; None without one."""
    same = [name for name in names if is_same_model(name, model)]
    if len(same) == 1:
        return same[0]
    return names[0] if any_model and len(names) == 1 else None
