"""The gate ``draft``: the first tokens of the greedy answer to the very prompt that is answered, and their uncertainty.

After TARG (arXiv 2511.09803). ``draft_margin``: mean over the draft's tokens of the second highest probability divided
by the highest, exp(-gap of their logits), in [0, 1]; ``draft_entropy``: mean entropy of the next-token distribution, in
nats; ``first_token_entropy``: that of the first token, which is known after the prefill. Where retrieval is not needed
the draft is the answer's beginning.

The gate of a model behind an API is read from the log-probabilities of its ``top`` most probable tokens. The rest of
the vocabulary counts as one token in the entropies, which are then lower bounds.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import Field

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard, Stage
from kbtrain.gate.gate import Gate
from kbtrain.gates.answering import OTHER_PROMPTS, first_rows, open_answering
from kbtrain.gates.registry import QUESTION, Kind
from kbtrain.gates.server_gate import AskedServer, ServerGate
from kbtrain.llm.dialect import Dialect, Server
from kbtrain.net import LONGEST_ASKED, Retry
from kbtrain.prompts.kbm import chat_messages, encode
from kbtrain.prompts.own import asked_fingerprint, asked_ids, asked_text
from kbtrain.records import GREEDY, Example, GateExample, Statistic

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.llm.openai_llm import OpenAILLM
    from kbtrain.llm.sampler.observer import Observer, PromptRows, Row, Uncertainties
    from kbtrain.llm.sampler.sampler import LockstepSampler

Signal = Literal["draft_margin", "draft_entropy", "first_token_entropy"]
Top = Sequence[tuple[str, float]]  # the most probable tokens at one place, with their log-probabilities
SIGNALS: tuple[Signal, ...] = ("draft_margin", "draft_entropy", "first_token_entropy")
TOKENS = 16
MAX_PROMPT = 2048
TOP = 20  # the most that OpenAI's API and vLLM's defaults give


class DraftServer(AskedServer):
    """The server that drafts, its endpoint, and ``patience`` in seconds.

    ``dialect``: fields that it takes, as ``kbtrain check-server`` finds them. ``top``: number of log-probabilities
    asked for at each token. ``alias``: ``name`` is another name of the card's base model, which has the tokenizer.
    """

    chat: bool = True
    alias: bool = False
    patience: float = Field(LONGEST_ASKED, ge=0)
    top: int = Field(TOP, ge=2, le=1000)
    dialect: Dialect = Dialect()


class DraftCard(GateCard):
    """The content of ``gate.json``. ``signal``: the one that decides; all others come from the same draft.

    ``tokens``: length of a draft. ``server``: the one that drafts, in place of the model opened here; ``dtype`` is then
    its own.
    """

    OTHER_PROMPTS = OTHER_PROMPTS
    ABSENT = frozenset({"label_rule", "server"})
    kind: Literal["draft"] = "draft"
    base_model: str
    dtype: str
    prompt_fingerprint: str
    signal: Signal
    tokens: int = Field(TOKENS, ge=1, le=64)
    server: DraftServer | None = None

    def names(self) -> tuple[str, ...]:
        return SIGNALS

    def answering_models(self) -> tuple[str, ...]:
        return (self.base_model, *([self.server.name] if self.server else []))

    @property
    def statistics(self) -> frozenset[Statistic]:
        """Entropies, of a model that is opened here."""
        return frozenset({"entropies"} if self.server is None else ())

    @property
    def stage(self) -> Stage:
        return self.stage_of(self.signal)

    def stage_of(self, score: str) -> Stage:
        """After the draft; for the first token's entropy alone after the prefill."""
        return "prefill" if score == "first_token_entropy" else "draft"

    @property
    def within_answer(self) -> bool:
        """True for a model that is opened here: the answer continues the draft."""
        return self.server is None


class SignalGate(Gate):
    """A gate whose card names the signal that decides."""

    card: DraftCard

    @property
    def name(self) -> str:
        return self.card.signal

    @abstractmethod
    def _scores(self, examples: Sequence[GateExample], tokens: int) -> dict[str, list[float]]:
        """Every signal's scores, from drafts of at most ``tokens`` tokens."""

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example; of the first token's entropy no other token is generated."""
        return self._scores(examples, 1 if self.name == "first_token_entropy" else self.card.tokens)[self.name]

    def score_all(self, inputs: Sequence[str | Example]) -> dict[str, list[float]]:
        return self._scores(cast("list[GateExample]", self.examples(inputs)), self.card.tokens)


class Draft(SignalGate):
    """Score by :attr:`card`'s signal; see :data:`SIGNALS`. ``spent`` counts requests and generated tokens."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, card: DraftCard) -> None:
        from kbtrain.llm.base import Sampling
        from kbtrain.llm.sampler.sampler import LockstepSampler

        self.model = model
        self.tokenizer = tokenizer
        self.card: DraftCard = card
        self.own = card.own_prompts()
        self._samplers = {
            tokens: LockstepSampler(model, tokenizer, Sampling(max_new_tokens=tokens)) for tokens in {1, card.tokens}
        }

    def _scores(self, examples: Sequence[GateExample], tokens: int) -> dict[str, list[float]]:
        """Raises :class:`UserError` for a model whose logits are NaN."""
        observer = self.observer()
        drafts = first_rows(self._samplers[tokens].observed(observer), self.rows_to_draw(examples))
        self.spent.update(requests=len(drafts), tokens=sum(len(draft.tokens) for draft in drafts))
        return self.scores_of_rows(drafts, observer)

    @property
    def one_pass(self) -> Any:
        return id(self.model), self.own

    @property
    def draft_tokens(self) -> int:
        return self.card.tokens

    def drafter(self) -> LockstepSampler:
        return self._samplers[self.card.tokens]

    def observer(self) -> Observer:
        from kbtrain.llm.sampler.observer import TokenUncertainty

        return TokenUncertainty()

    def scores_of_rows(self, rows: Sequence[Row], observer: Observer) -> dict[str, list[float]]:
        by_draft = [signals(row.notes[observer], self.card.tokens) for row in rows]
        return {name: [scores[name] for scores in by_draft] for name in SIGNALS}

    def rows_to_draw(self, examples: Sequence[GateExample]) -> list[PromptRows]:
        """Raises :class:`UserError` for a prompt that is too long."""
        from kbtrain.llm.sampler.observer import PromptRows

        prompts = ((e.id, asked_ids(self.tokenizer, e, e.reference, self.own)) for e in examples)
        rows = [PromptRows(name, "llm", tuple(ids), (GREEDY,)) for name, ids in prompts]
        long = next((row for row in rows if len(row.ids) > MAX_PROMPT), None)
        if long is not None:
            raise UserError(f"'{long.question_id}': prompt of {len(long.ids)} tokens; room for {MAX_PROMPT}")
        return rows


def signals(draft: Uncertainties, tokens: int | None = None) -> dict[str, float]:
    """The scores of a draft by name; ``tokens``: as many of it are read (None: all)."""
    ratios, entropies = draft.ratios[:tokens], draft.entropies[:tokens]
    values = sum(ratios) / len(ratios), sum(entropies) / len(entropies), entropies[0]
    return dict(zip(SIGNALS, values, strict=True))


class DraftOfServer(SignalGate, ServerGate):
    """Score by :attr:`card`'s signal. ``spent`` counts requests and tokens."""

    def __init__(self, llm: OpenAILLM, card: DraftCard) -> None:
        self.server, self.tokenizer = llm.server, llm.tokenizer
        self.asked = cast(DraftServer, card.server)
        self.card: DraftCard = card
        self.own = card.own_prompts()

    @classmethod
    def connected(cls, card: DraftCard) -> Self:
        """The gate of a card that names a server. Raises :class:`UserError` without an answer from there."""
        from kbtrain.llm.base import Sampling
        from kbtrain.llm.openai_llm import OpenAILLM

        asked = cast(DraftServer, card.server)
        server = Server(
            url=asked.url, model=asked.name, chat=asked.chat, key_env=asked.key_env, alias=asked.alias,
            timeout=asked.timeout, retry=Retry(tries=asked.tries, patience=asked.patience), dialect=asked.dialect,
        )  # fmt: skip
        return cls(OpenAILLM.connect(card.base_model or asked.name, Sampling(max_new_tokens=card.tokens), server), card)

    def fingerprint(self) -> str:
        """Of the prompts; without a tokenizer (the chat endpoint) of their words alone."""
        return asked_fingerprint(self.tokenizer, self.own)

    def _scores(self, examples: Sequence[GateExample], tokens: int) -> dict[str, list[float]]:
        from kbtrain.llm.replies import token_count, top_logprobs

        bodies = [self._body(example, tokens) for example in examples]
        replies = self.replies(bodies)
        tops = [top_logprobs(reply) if reply else () for reply in replies]
        told = [token_count(reply or {}, "completion_tokens") for reply in replies]
        self.spent.update(tokens=sum(len(top) for top, n in zip(tops, told, strict=True) if not n))
        drafts = [draft_signals(top, self.asked.top) for top in tops]
        return {name: [signals[i] for signals in drafts] for i, name in enumerate(SIGNALS)}

    def _body(self, example: GateExample, tokens: int) -> dict[str, Any]:
        """Fields of a greedy request whose reply names the most probable tokens."""
        prompt, system = asked_text(example, example.reference, self.own), self.own.system if self.own else None
        body: dict[str, Any] = {"model": self.asked.name, "max_tokens": tokens}
        if self.asked.dialect.greedy:
            body["temperature"] = 0.0
        if self.tokenizer is None:
            return {**body, "messages": chat_messages(prompt, system), "logprobs": True, "top_logprobs": self.asked.top}
        return {**body, "prompt": encode(self.tokenizer, prompt, system), "logprobs": self.asked.top}


def draft_signals(tops: Sequence[Top], top: int) -> tuple[float, float, float]:
    """Margin, entropy, and the first token's entropy, in the order of :data:`SIGNALS`.

    A reply without a token says nothing about what the model knows: the largest values, which mean to search.
    """
    usable = [sorted((value for _, value in top_tokens), reverse=True) for top_tokens in tops if top_tokens]
    if not usable:
        return 1.0, math.log(top + 1), math.log(top + 1)
    ratios = [math.exp(values[1] - values[0]) if len(values) > 1 else 0.0 for values in usable]
    entropies = [_entropy(values) for values in usable]
    return math.fsum(ratios) / len(usable), math.fsum(entropies) / len(usable), entropies[0]


def _entropy(values: Sequence[float]) -> float:
    """In nats, of the probabilities and of what they leave over."""
    probabilities = [math.exp(value) for value in values]
    rest = 1 - math.fsum(probabilities)
    return math.fsum(-p * math.log(p) for p in (*probabilities, rest) if p > 0)


def load_draft(folder: Path | str, dtype: str = "auto", device: str = "auto") -> SignalGate:
    """Open a folder with the model that it names, or connect to its server, whose own ``dtype`` and ``device`` are.

    Raises :class:`UserError` without an answer from there, and for other prompts.
    """
    card = DraftCard.read(folder)
    if card.server is None:
        return Draft(*open_answering(card, folder, dtype, device), card)
    gate = DraftOfServer.connected(card)
    card.check_prompts(gate.fingerprint(), folder)
    return gate


KIND = Kind(DraftCard, load_draft, QUESTION, "recipes/make_draft.py")
