"""A gate's model: compared with an upstream's models, and the upstream as the source of its states."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard
from kbtrain.gates.handles import answering_model, model_read
from kbtrain.gates.registry import load_gate, read_card
from kbtrain.io.provenance import meta_of, short_name
from kbtrain.llm.dialect import Dialect, Server
from kbtrain.llm.served_states import SHORT_PROMPT, StatesServer
from kbtrain.prompts.kbm import TEMPLATE_OPTIONS, apply_template, encode
from kbtrain.prompts.template_marks import break_special_tokens
from kbtrain.serve.config import ServeConfig
from kbtrain.serve.problem import Refused

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHOWN = 5  # models of an upstream in a message
_FORM = re.compile(r"([-._](gguf|awq|gptq|fp8|bf16|fp16|f16|int[48]|[48]bit|i?q\d[\w]*))+$")
logger = logging.getLogger("kbtrain.serve")


@dataclass(frozen=True)
class GateModel:
    """Names of the models whose states or answers a gate reads; empty for a gate that reads the question alone.

    ``served``: names in the upstream's list of models; None where it cannot be read at the start.
    """

    names: tuple[str, ...] = ()
    served: Sequence[str] | None = None

    def serves(self, requested: str | None) -> bool:
        """True if the model that answers a request is the gate's, as far as names show it.

        A server of one model often ignores the name in a request, so its list decides there.
        """
        if not self.names or requested is None or (self.served is not None and len(self.served) == 1):
            return True
        return any(is_same_model(requested, name) for name in self.names)


def gate_model(config: ServeConfig, card: GateCard | None) -> GateModel:
    """The gate's model beside the upstream's list. Raises :class:`UserError` where the list has no such model."""
    names = () if card is None or config.states == "any" or config.upstream is None else models_read(config.gate, card)
    if not names:
        return GateModel()
    served = asyncio.run(served_models(config))
    if served is None:
        logger.warning(
            "upstream: its list of models cannot be read; requests for another model than '%s' pass ungated", names[0]
        )
    elif not any(is_same_model(model, name) for model in served for name in names):
        listed = ", ".join(f"'{model:.60}'" for model in served[:_SHOWN]) or "no model"
        raise UserError(
            f"key 'upstream': it serves {listed}, but this gate reads states or answers of '{short_name(names[0])}' "
            "and is not valid for another model. Serve a gate that reads the question alone (features, kbm, encoder) "
            "of a run with that model, or add --states any if it is the same model"
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
    # of the extra serve, which kbtrain mcp does without
    from kbtrain.serve.decision_log import Metrics
    from kbtrain.serve.upstream import HttpUpstream

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
    return isinstance(settings, dict) and settings.get("dataset") in ("atlas", "atlas_known")


def states_server(config: ServeConfig) -> StatesServer | None:
    """A client of the upstream for the states that the gate reads; None where a copy of the model here gives them.

    Raises :class:`UserError` where ``states: upstream`` asks for the upstream's and it gives none.
    """
    model = None if config.upstream is None or config.states == "here" else answering_model(config.gate)
    if config.upstream is None or model is None:
        if config.states == "upstream":
            raise UserError(f"key 'states': no upstream, or gate '{config.gate}' reads nothing that it gives")
        return None
    served = asyncio.run(served_models(config))
    same = [name for name in served or () if is_same_model(name, model)]
    if not same and config.states == "any" and served is not None:
        same = served
    problem = "it does not answer" if served is None else "its list of models has no model of that name"
    if len(same) == 1:
        from kbtrain.models.load import load_tokenizer

        server = Server(
            url=config.upstream.rstrip("/"),
            dialect=Dialect(key_header=config.upstream_key_header),
            model=same[0],
            key_env=config.upstream_key_env,
            timeout=config.gate_deadline_s,
        )
        states = StatesServer(server, load_tokenizer(model))
        try:
            if model_read(config.gate) is None:
                load_gate(config.gate, states=states)
            else:
                states.read([SHORT_PROMPT])
            return states
        except UserError as error:
            problem = str(error)
    if config.states == "upstream":
        raise UserError(f"key 'states': the upstream gives no states of '{model}': {problem}")
    logger.warning("the upstream gives no states (%s); the gate reads those of a copy of '%s' here", problem, model)
    return None


Body = dict[str, Any]
# Any other field can change a greedy answer, or what a reply says about its tokens.
FIELDS = {"model", "messages", "temperature", "max_tokens", "max_completion_tokens", "stream", "stream_options", "stop",
          "seed", "top_p", "n", "user"}  # fmt: skip
LIMITS = ("max_tokens", "max_completion_tokens")
MOST_DROPPED = 3  # tokens at a draft's end that the template, or the tokenizer behind text, writes otherwise


def continue_draft(body: Body, states: StatesServer) -> Body:
    """A chat request that continues the draft of its prompt; the same object without a draft, or where the answer could
    differ.

    For a draft probe, and for the gate ``draft``, the upstream drafts the greedy answer to the plain prompt. A greedy
    chat request of the same tokens continues that draft (vLLM's ``continue_final_message`` and ``echo``).
    """
    prompt = _prompt(body, states.tokenizer)
    fields = {name for name, value in body.items() if value is not None}
    is_greedy = fields <= FIELDS and body.get("temperature") == 0 and body.get("n") in (None, 1)
    if prompt is None or not is_greedy or body.get("model") != states.server.model:
        return body
    draft = states.drafts.get(tuple(prompt), [])
    limits = {name: body[name] for name in LIMITS if isinstance(body.get(name), int)}
    for n in range(len(draft), max(0, len(draft) - MOST_DROPPED), -1):
        messages = [*body["messages"], {"role": "assistant", "content": states.tokenizer.decode(draft[:n])}]
        if _tokens(states.tokenizer, messages) == [*prompt, *draft[:n]]:
            break
    else:
        return body
    if any(limit <= n for limit in limits.values()) or _may_stop(messages[-1]["content"], body.get("stop")):
        return body
    more = {"messages": messages, "add_generation_prompt": False, "continue_final_message": True, "echo": True}
    return {**body, **more, **{name: limit - n for name, limit in limits.items()}}


def _prompt(body: Body, tokenizer: PreTrainedTokenizerBase) -> list[int] | None:
    """Token ids of a chat of one question and perhaps a system message; None for any other."""
    messages = body.get("messages") or []
    roles = [message.get("role") for message in messages]
    texts = [message.get("content") for message in messages]
    plain = bool(tokenizer.chat_template) and all(set(message) == {"role", "content"} for message in messages)
    one = roles in (["user"], ["system", "user"]) and all(isinstance(text, str) for text in texts)
    if not plain or not one or any(break_special_tokens(tokenizer, text) != text for text in texts):
        return None
    return encode(tokenizer, texts[-1], texts[0] if len(texts) > 1 else None)


def _may_stop(text: str, stop: object) -> bool:
    """True if a stop string is in the draft, or may begin in it: the upstream does not look for it there."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or not all(isinstance(end, str) and end for end in stops):
        return True
    return any(end in text or any(text.endswith(end[:i]) for i in range(1, len(end))) for end in stops)


def _tokens(tokenizer: PreTrainedTokenizerBase, messages: Sequence[dict[str, str]]) -> list[int]:
    options = {**TEMPLATE_OPTIONS, "add_generation_prompt": False, "continue_final_message": True}
    try:
        text = apply_template(tokenizer, messages, **options)
    except UserError:  # a template that cannot continue a message
        return []
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
