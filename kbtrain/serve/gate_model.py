"""The model that a gate belongs to, compared with the models that an upstream serves."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard
from kbtrain.gates.registry import read_card
from kbtrain.io.provenance import meta_of, short_name
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
    elif not any(is_same_model(one, name) for one in served for name in names):
        listed = ", ".join(f"'{one:.60}'" for one in served[:_SHOWN]) or "no model"
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


def is_same_model(one: str, other: str) -> bool:
    """True for two names of one model: without owner or folder, case, tag and form of the weights."""
    return _plain(one) == _plain(other)


def _plain(name: str) -> str:
    plain = short_name(name).lower().removesuffix(":latest").removesuffix(".gguf").removesuffix(".safetensors")
    return _FORM.sub("", plain)


async def served_models(config: ServeConfig) -> list[str] | None:
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
        noted = meta_of(folder.resolve().parent / "questions.jsonl").get("config", {})
    except UserError:
        return False
    return isinstance(noted, dict) and noted.get("dataset") == "atlas"
