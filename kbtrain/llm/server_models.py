"""A server's list of models: names, owner, files, context; and which of them a name means."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbtrain.errors import strike_all
from kbtrain.net.servers import whole_json

_CONTEXT = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")


@dataclass(frozen=True)
class ListedModel:
    """One model of a server. ``root``: the files it was loaded from (vLLM); ``context``: its tokens of prompt and
    answer together, where the server states them."""

    name: str
    owner: str = "unknown"
    root: str | None = None
    context: int | None = None


def read_models(text: str) -> list[ListedModel]:
    """The models of a reply to GET /models: OpenAI's ``data``, a bare list (Together) or Ollama's ``models``; empty
    without a list. Raises ``ValueError`` for text that is not JSON."""
    try:
        listed, _ = whole_json(strike_all(json.loads(text)))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if isinstance(listed, dict):
        listed = listed.get("data") or listed.get("models")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    return [_read_model(row) for row in rows if isinstance(row.get("id") or row.get("name"), str)]


def _read_model(row: Mapping[str, Any]) -> ListedModel:
    meta = row.get("meta")
    stated = {**row, **(meta if isinstance(meta, dict) else {})}
    context = next((stated[key] for key in _CONTEXT if isinstance(stated.get(key), int)), None)
    root = row.get("root")
    return ListedModel(
        name=str(row.get("id") or row.get("name")),
        owner=str(row.get("owned_by") or "unknown"),
        root=root if isinstance(root, str) else None,
        context=context if context is not None and context > 0 else None,
    )


def find_model(name: str, listed: Sequence[ListedModel]) -> ListedModel | None:
    """The listed model that ``name`` means, under the name to ask for; None where the list has none.

    ``NAME`` is also ``models/NAME`` (Gemini) and ``NAME:latest`` (Ollama). ``NAME:variant`` (OpenRouter) and a pattern
    such as ``*`` or ``openai/*`` (LiteLLM) leave the name as it is.
    """
    exact = next((model for model in listed if model.name == name), None)
    if exact is not None:
        return exact
    alike = next((model for model in listed if _bare_name(model.name) == _bare_name(name)), None)
    if alike is not None:
        return alike
    base = name.partition(":")[0]
    for model in listed:
        if model.name == base or (is_pattern(model.name) and fnmatch.fnmatchcase(name, model.name)):
            return ListedModel(name, model.owner, model.root, model.context)
    return None


def is_pattern(name: str) -> bool:
    """True for a name that stands for many models."""
    return "*" in name


def _bare_name(name: str) -> str:
    return re.sub(r":latest$", "", name.removeprefix("models/"))
