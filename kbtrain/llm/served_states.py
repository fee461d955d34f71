"""Client of a vLLM server that returns hidden states (:mod:`kbtrain.engine.vllm_connector`).

A prompt is sent as token ids, and the reply counts them. The server's chat template is compared with the tokenizer's
(:meth:`StatesServer.check_template`), and states with reference states (:func:`largest_difference`).
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kbtrain.arrays import States
from kbtrain.errors import UserError
from kbtrain.llm.replies import protocol
from kbtrain.models.batching import n_alike
from kbtrain.prompts.kbm import TEMPLATE_OPTIONS, chat_messages, encode
from kbtrain.prompts.own import OwnPrompts, asked_text
from kbtrain.records import GateExample
from kbtrain.runtime.event_loop import run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kbtrain.llm.dialect import Server

FIELD = "kbtrain_states"  # as in kbtrain.engine.vllm_connector, which imports nothing from here
TOLERANCE = 0.06  # relative difference of a state in bf16 between two implementations; 0.01 to 0.04 were seen
HOW = "start it with the flags of `kbtrain vllm-args FOLDER`"
_KEPT_DRAFTS = 256  # newest drafts, for the answers that follow their decisions
LONGEST_GROUP = 64  # answers of a request whose end states the connector returns
SHORT_PROMPT = [1, 2, 3, 4]  # token ids that every vocabulary has


@dataclass(frozen=True)
class ServedStates:
    """States of one prompt and of its greedy draft, each (layers, width) in fp32. ``layers`` as in transformers'
    ``hidden_states``: id l is the residual stream after l layers. ``draft_tokens``: how many generated tokens
    ``draft_mean`` and ``draft_last`` are of; 0: both equal ``prompt``."""

    layers: tuple[int, ...]
    prompt: States
    draft_mean: States
    draft_last: States
    draft_tokens: int
    generated: tuple[int, ...]  # token ids, the last of which was not fed

    def of_layers(self, layers: Sequence[int], draft: bool) -> States:
        """(layers, width), with ``draft`` (layers, 3 width): prompt, mean and last of the draft side by side. Raises
        :class:`UserError` for a layer that the engine does not keep."""
        places = [place_of(layer, self.layers) for layer in layers]
        parts = (self.prompt, self.draft_mean, self.draft_last) if draft else (self.prompt,)
        return np.concatenate([part[places] for part in parts], axis=-1)


def place_of(layer: int, kept: Sequence[int]) -> int:
    """The place of a layer among those that the engine keeps. Raises :class:`UserError` for one that it does not."""
    if layer not in kept:
        raise UserError(f"the upstream keeps states of layers {', '.join(map(str, kept))}, not of {layer}; {HOW}")
    return kept.index(layer)


def read_reply(reply: Mapping[str, Any], prompt: Sequence[int]) -> ServedStates:
    """States in a completion's reply. Raises :class:`UserError` for a reply without them, or of another prompt."""
    return read_states(reply.get("kv_transfer_params"), prompt, _generated_tokens(reply))


def _generated_tokens(reply: Mapping[str, Any]) -> list[int]:
    """Token ids of a completion; empty where the reply has none."""
    choices = reply.get("choices") or [{}]
    ids = choices[0].get("token_ids") if isinstance(choices[0], Mapping) else None
    return [int(i) for i in ids] if isinstance(ids, list) else []


def read_states(field: Any, prompt: Sequence[int], generated: Sequence[int]) -> ServedStates:
    """States in vLLM's ``kv_transfer_params`` of a prompt and its ``generated`` tokens. Raises :class:`UserError`."""
    field = _states_field(field)
    with _readable("hidden states"):
        if field["prompt_tokens"] != len(prompt):
            raise UserError(f"the upstream read {field['prompt_tokens']} prompt tokens, {len(prompt)} were sent")
        layers = tuple(map(int, field["layers"]))
        parts = ("prompt", "draft_mean", "draft_last") if "draft_mean" in field else ("prompt",) * 3
        prompt_states, *drafts = (_floats(field[part]).reshape(len(layers), int(field["width"])) for part in parts)
        if not np.isfinite([prompt_states, *drafts]).all():
            raise ValueError("states are NaN or infinite")
        n_tokens = int(field["draft_tokens"])
        return ServedStates(layers, prompt_states, drafts[0], drafts[1], n_tokens, tuple(map(int, generated)))


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:  # also what base64 cannot read
        raise UserError(f"the upstream's {what} cannot be read ({error!s:.80}); are the versions equal?") from None


def _floats(text: str) -> States:
    floats: States = np.frombuffer(base64.b64decode(text, validate=True), "<f4")
    return floats


def _states_field(transfer: Any) -> Mapping[str, Any]:
    """Our field of ``kv_transfer_params``. Raises :class:`UserError` for a reply without states."""
    field = transfer.get(FIELD) if isinstance(transfer, Mapping) else None
    if not isinstance(field, Mapping):
        raise UserError(f"the upstream returns no hidden states; {HOW}")
    if "error" in field:
        raise UserError(f"the upstream returns no hidden states: {field['error']!s:.100}")
    return field


@dataclass(frozen=True)
class ServedAnswer:
    """A drawn answer: token ids without its last one, whether a limit ended it, and the state (layers, width) of the
    end token behind these tokens (``end``); None where none was asked for, or none is known."""

    tokens: tuple[int, ...]
    cut: bool
    end: States | None
    layers: tuple[int, ...]


def read_answers(reply: Mapping[str, Any], end_token: int | None) -> list[ServedAnswer]:
    """Answers of a completion's reply; with ``end_token`` their states at it. Raises :class:`UserError`."""
    choices = sorted(reply["choices"], key=lambda choice: int(choice["index"]))
    ends: list[States | None] = [None] * len(choices)
    layers: tuple[int, ...] = ()
    if end_token is not None:
        field = _states_field(reply.get("kv_transfer_params"))
        if field.get("end_token") != end_token:
            raise UserError(f"the upstream reads end states at token {field.get('end_token')}, not {end_token}; {HOW}")
        with _readable("end states"):
            layers = tuple(map(int, field["layers"]))
            rows = _floats(field["ends"]).reshape(len(choices), len(layers), int(field["width"]))
            ends = [row if np.isfinite(row).all() else None for row in rows]
    return [
        ServedAnswer(tuple(choice["token_ids"][:-1]), choice["finish_reason"] == "length", end, layers)
        for choice, end in zip(choices, ends, strict=True)
    ]


class StatesServer:
    """A vLLM server that returns states. ``tokenizer``: of the served model, by which drafts end at a line break."""

    def __init__(self, server: Server, tokenizer: PreTrainedTokenizerBase) -> None:
        self.server = server
        self.tokenizer = tokenizer
        self.spent: Counter[str] = Counter()
        self._lock = threading.Lock()  # several threads of a server ask
        self.drafts: OrderedDict[tuple[int, ...], list[int]] = OrderedDict()  # by prompt, without the end token

    def answer_within(self, seconds: float) -> None:
        """Wait for a reply at most this long, and try a failed request once more at once."""
        self.server = self.server.within(seconds)

    def chat_tokens(self, text: str, system: str | None = None, **options: Any) -> list[int] | None:
        """Token ids of a user's message as the server's chat template renders it; None where it returns none.
        ``options``: variables of the template."""
        from kbtrain.llm.openai_llm import post_all
        from kbtrain.llm.server_requests import PromptRefusal

        body = {"model": self.server.model, "messages": chat_messages(text, system), "max_tokens": 1}
        more = {"return_token_ids": True, **({"chat_template_kwargs": options} if options else {})}
        (reply,) = run(post_all(replace(self.server, chat=True), [body | more]))
        ids = None if isinstance(reply, PromptRefusal) else reply.get("prompt_token_ids")
        return [int(i) for i in ids] if isinstance(ids, list) and all(isinstance(i, int) for i in ids) else None

    def check_prompts(self, templates: OwnPrompts | None) -> bool:
        """:meth:`check_template` of the plain prompt; ``templates``: the product's templates."""
        example = GateExample.ask("What is the capital of France?")
        return self.check_template(asked_text(example, None, templates), templates.system if templates else None)

    def check_template(self, text: str, system: str | None = None) -> bool:
        """True if the server's chat template gives the local tokens for a message; False where it returns no tokens.
        Raises :class:`UserError` where they differ: states and labels are then of another prompt than the answer's."""
        ids, served = encode(self.tokenizer, text, system), self.chat_tokens(text, system)
        if served is None or served == ids:
            return served is not None
        place = n_alike(ids, served)
        local_text, served_text = (self.tokenizer.decode(tokens[place : place + 8]) for tokens in (ids, served))
        options = {name: value for name, value in TEMPLATE_OPTIONS.items() if name != "add_generation_prompt"}
        how = f"start it with the chat template and the tokenizer of '{self.tokenizer.name_or_path}'"
        if self.chat_tokens(text, system, **options) == ids:
            how = f"start it with --default-chat-template-kwargs '{json.dumps(options)}'"
        raise UserError(
            f"server {self.server.base}: its chat template gives other tokens than the local one from token {place} on "
            f"({local_text!r:.60} here, {served_text!r:.60} there); {how}"
        )

    def read(self, prompts: Sequence[Sequence[int]], draft_tokens: int = 0) -> list[ServedStates]:
        """States of prompts (token ids), in their order, from one greedy request each. Raises :class:`UserError`."""
        more = {"kv_transfer_params": state_request(draft_tokens)}
        replies = self._replies(prompts, draft_tokens + 1, more)  # the state of a token exists once it is fed
        served = [read_reply(reply, ids) for reply, ids in zip(replies, prompts, strict=True)]
        if draft_tokens:
            for states, ids in zip(served, prompts, strict=True):
                self._keep_draft(ids, states.generated)
        return served

    def sample(
        self, prompts: Sequence[Sequence[int]], n: int, tokens: int, drawn: Mapping[str, Any], end_token: int | None
    ) -> list[list[ServedAnswer]]:
        """``n`` answers of at most ``tokens`` tokens to each prompt, from one request each. ``drawn``: temperature and
        filters. ``end_token``: asks for the states at it. An answer ends at a line break. Raises :class:`UserError`."""
        more: dict[str, Any] = {"n": n, **drawn}
        if end_token is not None:
            more["kv_transfer_params"] = {FIELD: {"samples": n}}
        with protocol():
            replies = self._replies(prompts, tokens + 1, more)  # an answer's last token is not fed
            return [read_answers(reply, end_token) for reply in replies]

    def _replies(self, prompts: Sequence[Sequence[int]], tokens: int, more: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Replies to completions of at most ``tokens`` tokens, greedy ones unless ``more`` says otherwise. Drafts end
        at a line break."""
        from kbtrain.llm.openai_llm import post_all
        from kbtrain.llm.server_requests import PromptRefusal

        fields = {"model": self.server.model, "temperature": 0.0, "max_tokens": tokens, **more}
        if tokens > 1:
            fields |= {"stop_token_ids": line_break_tokens(self.tokenizer), "return_token_ids": True}
        replies = []
        for reply in run(post_all(self.server, [fields | {"prompt": list(ids)} for ids in prompts])):
            if isinstance(reply, PromptRefusal):
                raise UserError(f"server {self.server.base}: {reply.message}")
            replies.append(reply)
        with self._lock:
            self.spent.update(
                requests=len(replies),
                prompt_tokens=sum(map(len, prompts)),
                tokens=sum(max(1, len(_generated_tokens(reply))) for reply in replies),
            )
        return replies

    def _keep_draft(self, prompt: Sequence[int], tokens: Sequence[int]) -> None:
        ended = bool(tokens) and tokens[-1] in self.tokenizer.all_special_ids
        with self._lock:
            self.drafts[tuple(prompt)] = list(tokens[:-1] if ended else tokens)
            while len(self.drafts) > _KEPT_DRAFTS:
                self.drafts.popitem(last=False)


def state_request(draft_tokens: int) -> dict[str, Any]:
    """``kv_transfer_params`` of a request for the states of its prompt, and of generated tokens."""
    return {FIELD: {"draft_tokens": draft_tokens}}


def own_end_token(tokenizer: PreTrainedTokenizerBase) -> int:
    """A tokenizer's end token. Raises :class:`UserError` for a tokenizer without one."""
    if tokenizer.eos_token_id is None:
        raise UserError(f"model '{tokenizer.name_or_path}': its tokenizer has no end token, where states are read")
    return int(tokenizer.eos_token_id)


@functools.lru_cache(maxsize=4)
def line_break_tokens(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of all tokens whose text holds a line break: one of them ends a draft, as the stop string of answers does.
    The engine itself must end a draft: it sees a stop string only after the states were returned."""
    ids = range(len(tokenizer))
    return [i for i, text in zip(ids, tokenizer.batch_decode([[i] for i in ids]), strict=True) if "\n" in text]


def check_width(states: States, width: int) -> None:
    """Raise :class:`UserError` for states (..., width) of another width."""
    if states.shape[-1] != width:
        raise UserError(
            f"the upstream's states have {states.shape[-1]} numbers, {width} are expected: it serves another model"
        )


def largest_difference(states: States, reference: States) -> float:
    """Largest relative difference, in Euclidean norm, over the layers of two arrays (layers, width). Raises
    :class:`UserError` for states of another width."""
    check_width(states, reference.shape[-1])
    norms = np.maximum(np.linalg.norm(reference, axis=-1), 1e-12)
    return float((np.linalg.norm(states - reference, axis=-1) / norms).max())
