"""The gate ``draft`` of a model behind an API, and the openers of its folders.

The API's gate is read from the log-probabilities of its ``top`` most probable tokens. The rest of the vocabulary counts
as one token in the entropies, which are then lower bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from kbtrain.errors import UserError, at
from kbtrain.gates.answering import check_served_prompts
from kbtrain.gates.draft.gate import SIGNALS, Draft, DraftCard, DraftServer, ServedDraft, SignalGate, mean_ratio
from kbtrain.prompts.kbm import chat_messages, encode
from kbtrain.prompts.own import asked_fingerprint, asked_text
from kbtrain.records import Example, GateExample
from kbtrain.runtime.event_loop import run

if TYPE_CHECKING:
    from kbtrain.llm.openai_llm import OpenAILLM
    from kbtrain.llm.served_states import StatesServer

Top = Sequence[tuple[str, float]]  # the most probable tokens at one place, with their log-probabilities


class DraftOfServer(SignalGate):
    """Score by :attr:`card`'s signal. ``spent`` counts requests and tokens."""

    def __init__(self, llm: OpenAILLM, card: DraftCard, server: DraftServer) -> None:
        self.llm, self.asked = llm, server
        self.card: DraftCard = card
        self.own = card.own_prompts()

    @classmethod
    def connected(cls, card: DraftCard) -> Self:
        """The gate of a card that names a server. Raises :class:`UserError` without an answer from there."""
        server = cast(DraftServer, card.server)
        return cls(connect(card.base_model, server, card.tokens), card, server)

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> Self:
        """Connect to the server that the folder names; ``dtype`` and ``device`` are the server's own.

        Raises :class:`UserError` without an answer from there, and for other prompts.
        """
        gate = cls.connected(DraftCard.read(folder))
        gate.card.check_prompts(gate.fingerprint(), folder)
        return gate

    def fingerprint(self) -> str:
        """Of the prompts; without a tokenizer (the chat endpoint) of their words alone."""
        return asked_fingerprint(self.llm.tokenizer, self.own)

    def answer_within(self, seconds: float) -> None:
        """Try a request twice at once instead of as often and as patiently as the card says, each within the time."""
        self.llm.server = self.llm.server.within(seconds)

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example; of the first token's entropy no other token is generated."""
        tokens = 1 if self.name == "first_token_entropy" else self.card.tokens
        return self._ask(examples, tokens)[self.name]

    def score_all(self, inputs: Sequence[str | Example]) -> dict[str, list[float]]:
        return self._ask(cast("list[GateExample]", self.examples(inputs)), self.card.tokens)

    def _ask(self, examples: Sequence[GateExample], tokens: int) -> dict[str, list[float]]:
        replies = run(self._replies([self._body(example, tokens) for example in examples]))
        drafts = [draft_signals(tops, self.asked.top) for tops in replies]
        return {name: [signals[i] for signals in drafts] for i, name in enumerate(SIGNALS)}

    def _body(self, example: GateExample, tokens: int) -> dict[str, Any]:
        """Fields of a greedy request whose reply names the most probable tokens."""
        prompt, system = asked_text(example, example.reference, self.own), self.own.system if self.own else None
        body: dict[str, Any] = {"model": self.asked.name, "max_tokens": tokens}
        if self.asked.dialect.greedy:
            body["temperature"] = 0.0
        if self.llm.tokenizer is None:
            return {**body, "messages": chat_messages(prompt, system), "logprobs": True, "top_logprobs": self.asked.top}
        return {**body, "prompt": encode(self.llm.tokenizer, prompt, system), "logprobs": self.asked.top}

    async def _replies(self, bodies: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[Top]]:
        """Top log-probabilities of each reply's tokens, in the order of the requests; many under way at once."""
        from kbtrain.llm.openai_llm import post_all
        from kbtrain.llm.replies import token_count, top_logprobs
        from kbtrain.llm.server_requests import PromptRefusal

        replies = await post_all(self.llm.server, bodies)
        refusals = [reply for reply in replies if isinstance(reply, PromptRefusal)]
        if refusals and len(refusals) == len(replies) and not self.spent["tokens"]:
            raise UserError(f"server {self.llm.server.base}: {refusals[0].message}")
        tops = [() if isinstance(reply, PromptRefusal) else top_logprobs(reply) for reply in replies]
        prompt_tokens = sum(
            token_count(reply, "prompt_tokens") or len(body.get("prompt", ()))
            for reply, body in zip(replies, bodies, strict=True)
            if not isinstance(reply, PromptRefusal)
        )
        self.spent.update(
            requests=len(bodies), refused=len(refusals), prompt_tokens=prompt_tokens, tokens=sum(map(len, tops))
        )
        return tops


def connect(model: str, asked: DraftServer, tokens: int) -> OpenAILLM:
    """The server, with the tokenizer of ``model``. Raises :class:`UserError` without an answer from there."""
    from kbtrain.llm.base import Sampling
    from kbtrain.llm.dialect import Server
    from kbtrain.llm.openai_llm import OpenAILLM
    from kbtrain.net import Retry

    server = Server(
        url=asked.url, model=asked.name, chat=asked.chat, key_env=asked.key_env, timeout=asked.timeout,
        retry=Retry(tries=asked.tries, patience=asked.patience), dialect=asked.dialect,
    )  # fmt: skip
    return OpenAILLM.connect(model or asked.name, Sampling(max_new_tokens=tokens), server)


def draft_signals(tops: Sequence[Top], top: int) -> tuple[float, float, float]:
    """Margin, entropy, and the first token's entropy, in the order of :data:`~kbtrain.gates.draft.gate.SIGNALS`.

    A reply without a token says nothing about what the model knows: the largest values, which mean to search.
    """
    usable = [sorted((value for _, value in top_tokens), reverse=True) for top_tokens in tops if top_tokens]
    if not usable:
        return 1.0, math.log(top + 1), math.log(top + 1)
    entropies = [_entropy(values) for values in usable]
    return mean_ratio(usable), math.fsum(entropies) / len(usable), entropies[0]


def _entropy(values: Sequence[float]) -> float:
    """In nats, of the probabilities and of what they leave over."""
    probabilities = [math.exp(value) for value in values]
    rest = 1 - math.fsum(probabilities)
    return math.fsum(-p * math.log(p) for p in (*probabilities, rest) if p > 0)


def load_draft(folder: Path | str, dtype: str = "auto", device: str = "auto") -> SignalGate:
    """Open a folder with the model, or the server, that it names. Raises :class:`UserError` for other prompts."""
    return (DraftOfServer if DraftCard.read(folder).server else Draft).load(folder, dtype, device)


def load_served(folder: Path, server: StatesServer) -> SignalGate:
    """Open a folder whose model is served.

    Raises :class:`UserError` for a signal that cannot be read so, other prompts than its threshold was chosen with, and
    a server with another chat template.
    """
    card = DraftCard.read(folder)
    if card.server is not None:
        return load_draft(folder)
    if card.signal != "draft_margin":
        raise UserError(
            f"{at(folder)}: signal '{card.signal}' cannot be read from a server; make the gate with signal "
            "'draft_margin', or open the model here"
        )
    check_served_prompts(card, folder, server)
    return ServedDraft(server, card)
