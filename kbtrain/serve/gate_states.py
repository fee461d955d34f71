"""The upstream as the source of the states that a gate reads: one model in memory, one prefill for gate and answer."""

from __future__ import annotations

import asyncio
import logging

from kbtrain.errors import UserError
from kbtrain.gates.states_read import model_read
from kbtrain.llm.openai_llm import Server
from kbtrain.llm.served_states import StatesServer
from kbtrain.models.load import load_tokenizer
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.gate_model import is_same_model, served_models

logger = logging.getLogger("kbtrain.serve")


def states_server(config: ServeConfig) -> StatesServer | None:
    """A client of the upstream for the states of the plain prompt; None for a gate that reads no such states.

    Raises :class:`UserError` for an upstream without a model of the gate's name.
    """
    if config.upstream is None or config.states == "here":
        return None
    model = model_read(config.gate)
    if model is None:
        if config.states == "upstream":
            raise UserError(f"key 'states': gate '{config.gate}' reads no states of an answer's plain prompt")
        return None
    server = Server(
        url=config.upstream.rstrip("/"),
        model=served_name(config, model),
        key_env=config.upstream_key_env,
        timeout=config.gate_deadline_s,
    )
    return StatesServer(server, load_tokenizer(model))


def served_name(config: ServeConfig, model: str) -> str:
    """The upstream's name of a model. Raises :class:`UserError` where its list has none, or cannot be read."""
    names = asyncio.run(served_models(config))
    if names is None:
        raise UserError(
            f"key 'upstream': {config.upstream} cannot be reached, so it gives no states; to read them from a copy of "
            f"the model in this process: --states here"
        )
    same = [name for name in names if is_same_model(name, model)]
    if len(same) == 1 or (len(names) == 1 and config.any_model):
        return str((same or names)[0])
    listed = ", ".join(f"'{name:.60}'" for name in names[:5]) or "no model"
    raise UserError(
        f"key 'upstream': it serves {listed}, but this gate reads the states of '{model}'; name that model there "
        "(vllm serve --served-model-name), or, if it is the same model, add --any-model"
    )
