"""The gate ``server``: what an API shows of a model that cannot be opened, read from its top log-probabilities.

Two requests at most. The model is asked if it can answer: ``server_p_yes`` is 1 - p(Yes) among the spellings of Yes and
No. And its greedy answer is begun: ``server_draft_margin``, ``server_draft_entropy`` and ``server_first_token_entropy``
are those of the gate ``draft`` (arXiv 2511.09803), from the ``top`` most probable tokens. The rest of the vocabulary
counts as one token in the entropies, which are then lower bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import Field

from kbtrain.errors import UserError
from kbtrain.gate.card import Pass, Stage
from kbtrain.gates.untrained.card import UntrainedCard, UntrainedGate
from kbtrain.gates.untrained.draft import TOKENS, mean_ratio
from kbtrain.llm.dialect import Dialect
from kbtrain.net import LONGEST_ASKED
from kbtrain.prompts.kbm import chat_messages, encode
from kbtrain.prompts.own import OwnPrompts, asked_fingerprint, asked_text, asked_whole
from kbtrain.prompts.yes_no import NO, YES, can_you_answer, yes_no_fingerprint
from kbtrain.records import Example, GateExample
from kbtrain.runtime.event_loop import run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kbtrain.llm.openai_llm import OpenAILLM

SAID = "server_p_yes"
DRAFTED = ("server_draft_margin", "server_draft_entropy", "server_first_token_entropy")
SIGNALS = (SAID, *DRAFTED)
Top = Sequence[tuple[str, float]]  # the most probable tokens at one place, with their log-probabilities
TOP = 20  # the most that OpenAI's API and vLLM's defaults give


class ServerCard(UntrainedCard):
    """The content of ``gate.json``; ``base_model`` is the model's name, ``served`` what the server calls it.

    ``dialect``: fields that the server takes, as ``kbtrain check-server`` finds them.

    ``tokens``: length of a draft; ``top``: number of log-probabilities asked for at each of its tokens. The server may
    move (``url``), take another key (``key_env``) and be waited for longer (``tries``, ``timeout`` and ``patience`` in
    seconds): no score depends on them.
    """

    SIGNALS = SIGNALS
    NO_SCORE = UntrainedCard.NO_SCORE | {"url", "key_env", "tries", "timeout", "patience"}
    kind: Literal["server"] = "server"
    dtype: str = "auto"
    url: str
    served: str
    chat: bool = True
    key_env: str = "OPENAI_API_KEY"
    tries: int = Field(8, ge=1)
    timeout: float = Field(600.0, gt=0)
    patience: float = Field(LONGEST_ASKED, ge=0)
    tokens: int = Field(TOKENS, ge=1, le=64)
    top: int = Field(TOP, ge=2, le=1000)
    dialect: Dialect = Dialect()

    def answering_models(self) -> tuple[str, ...]:
        """The model's name, and the server's name of it."""
        return (self.base_model, self.served)

    @property
    def stage(self) -> Stage:
        """That of the signal that decides."""
        return self.stage_of(self.signal)

    def stage_of(self, score: str) -> Stage:
        """After the draft, after its first token, or, for the question put to the model, before anything."""
        return {SAID: "question", DRAFTED[2]: "prefill"}.get(score, "draft")  # type: ignore[return-value]

    def passes(self, example: Any) -> list[Pass]:
        """Two requests: the question whether the model can answer, and a draft."""
        draft = asked_whole(example, example.reference, self.own_prompts())
        return [Pass(can_you_answer(example.question, example.language), 1), Pass(draft, self.tokens)]


class ServerGate(UntrainedGate):
    """Score by :attr:`card`'s signal; see :data:`SIGNALS`. ``spent`` counts requests and tokens."""

    def __init__(self, llm: OpenAILLM, card: ServerCard) -> None:
        self.llm = llm
        self.card: ServerCard = card
        self.own = card.own_prompts()

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> ServerGate:
        """Connect to the server that the folder names; ``dtype`` and ``device`` are the server's own.

        Raises :class:`UserError` without an answer from there, and for other prompts.
        """
        card = ServerCard.read(folder)
        llm = connect(card)
        current = server_fingerprint(llm.tokenizer, card.own_prompts())
        card.check_prompts(current, folder)
        return cls(llm, card)

    def answer_within(self, seconds: float) -> None:
        """Try a request twice at once instead of as often and as patiently as the card says, each within the time."""
        self.llm.server = self.llm.server.within(seconds)

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example; only what the signal needs is asked for."""
        tokens = 1 if self.name == DRAFTED[2] else self.card.tokens
        return self._ask(examples, self.name == SAID, self.name != SAID, tokens)[self.name]

    def score_all(self, inputs: Sequence[str | Example]) -> dict[str, list[float]]:
        return self._ask(cast("list[GateExample]", self.examples(inputs)), True, True, self.card.tokens)

    def _ask(self, examples: Sequence[GateExample], say: bool, draft: bool, tokens: int) -> dict[str, list[float]]:
        bodies = []
        if say:
            bodies += [self._body(can_you_answer(e.question, e.language), 1) for e in examples]
        if draft:
            system = None if self.own is None else self.own.system
            bodies += [self._body(asked_text(e, e.reference, self.own), tokens, system) for e in examples]
        replies = run(self._replies(bodies))
        by_signal: dict[str, list[float]] = {}
        if say:
            by_signal[SAID] = [p_no(tops[0] if tops else ()) for tops in replies[: len(examples)]]
        if draft:
            drafts = [draft_signals(tops, self.card.top) for tops in replies[-len(examples) :]] if examples else []
            by_signal |= {name: [tops[i] for tops in drafts] for i, name in enumerate(DRAFTED)}
        return by_signal

    def _body(self, prompt: str, tokens: int, system: str | None = None) -> dict[str, Any]:
        """Fields of a greedy request whose reply names the most probable tokens."""
        body: dict[str, Any] = {"model": self.card.served, "max_tokens": tokens}
        if self.card.dialect.greedy:
            body["temperature"] = 0.0
        if self.llm.tokenizer is None:
            return {**body, "messages": chat_messages(prompt, system), "logprobs": True, "top_logprobs": self.card.top}
        return {**body, "prompt": encode(self.llm.tokenizer, prompt, system), "logprobs": self.card.top}

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


def connect(card: ServerCard) -> OpenAILLM:
    """The card's server. Raises :class:`UserError` without an answer from there."""
    from kbtrain.llm.base import Sampling
    from kbtrain.llm.dialect import Server
    from kbtrain.llm.openai_llm import OpenAILLM
    from kbtrain.net import Retry

    retry = Retry(tries=card.tries, patience=card.patience)
    server = Server(
        url=card.url, model=card.served, chat=card.chat, key_env=card.key_env, timeout=card.timeout, retry=retry,
        dialect=card.dialect,
    )  # fmt: skip
    return OpenAILLM.connect(card.base_model or card.served, Sampling(max_new_tokens=card.tokens), server)


def server_fingerprint(tokenizer: PreTrainedTokenizerBase | None, templates: OwnPrompts | None) -> str:
    """Fingerprint of both prompts; without a tokenizer (the chat endpoint) of their words alone."""
    return f"{yes_no_fingerprint(tokenizer)}-{asked_fingerprint(tokenizer, templates)}"


def p_no(top: Top) -> float:
    """1 - p(Yes) among the spellings of Yes and No; 0.5 where neither is among the most probable tokens."""
    yes, no = (
        math.fsum(math.exp(value) for token, value in top if token.strip() in {text.strip() for text in words})
        for words in (YES, NO)
    )
    return no / (yes + no) if yes + no > 0 else 0.5


def draft_signals(tops: Sequence[Top], top: int) -> tuple[float, float, float]:
    """Margin, entropy, and the first token's entropy, in the order of :data:`DRAFTED`.

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
