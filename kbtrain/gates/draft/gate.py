"""The gate ``draft``: the first tokens of the greedy answer to the very prompt that is answered, and their uncertainty.

After TARG (arXiv 2511.09803). ``draft_margin``: mean over the draft's tokens of the second highest probability divided
by the highest, exp(-gap of their logits), in [0, 1]; ``draft_entropy``: mean entropy of the next-token distribution, in
nats; ``first_token_entropy``: that of the first token, which is known after the prefill. Where retrieval is not needed
the draft is the answer's beginning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard, Pass, Stage
from kbtrain.gate.gate import Gate
from kbtrain.gates.answering import OTHER_PROMPTS, ServedGate, first_rows, open_answering
from kbtrain.llm.dialect import Dialect
from kbtrain.net import LONGEST_ASKED
from kbtrain.prompts.own import asked_fingerprint, asked_ids, asked_whole
from kbtrain.records import GREEDY, Example, GateExample, Statistic

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.llm.sampler.token_uncertainty import Uncertainties

Signal = Literal["draft_margin", "draft_entropy", "first_token_entropy"]
SIGNALS: tuple[Signal, ...] = ("draft_margin", "draft_entropy", "first_token_entropy")
TOKENS = 16
MAX_PROMPT = 2048
TOP = 20  # the most that OpenAI's API and vLLM's defaults give


class DraftServer(BaseModel):
    """The server that drafts: address, endpoint, key's variable; ``name``: what it calls the model.

    ``dialect``: fields that it takes, as ``kbtrain check-server`` finds them. ``top``: number of log-probabilities
    asked for at each token; the rest of the vocabulary counts as one token in the entropies, which are then lower
    bounds. ``tries`` of a request, ``timeout`` and ``patience`` in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    url: str
    name: str
    chat: bool = True
    key_env: str = "OPENAI_API_KEY"
    tries: int = Field(8, ge=1)
    timeout: float = Field(600.0, gt=0)
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
    NO_SCORE = frozenset({"thresholds", "run"})
    kind: Literal["draft"] = "draft"
    base_model: str
    dtype: str
    prompt_fingerprint: str
    signal: Signal
    tokens: int = Field(TOKENS, ge=1, le=64)
    server: DraftServer | None = None

    def depends(self) -> str:
        """Without what lets the server move, take another key and be waited for longer: no score depends on these."""
        moves = {"url", "key_env", "tries", "timeout", "patience"}
        return self.model_dump_json(
            exclude={**dict.fromkeys((*self.NO_SCORE, "best", "weights_sha256"), True), "server": moves}
        )

    def names(self) -> tuple[str, ...]:
        """Every signal: all come from one draft."""
        return SIGNALS

    def answering_models(self) -> tuple[str, ...]:
        """The model whose signals are read, and the server's name of it."""
        return (self.base_model, *([self.server.name] if self.server else []))

    @property
    def asks_server(self) -> bool:
        """True for a draft by the server that the card names."""
        return self.server is not None

    @property
    def statistics(self) -> frozenset[Statistic]:
        """That of the signal, where the model's own passes can give it."""
        if self.server is not None:
            return frozenset()
        return frozenset({"logprobs" if self.signal == "draft_margin" else "entropies"})

    @property
    def stage(self) -> Stage:
        """That of the signal that decides."""
        return self.stage_of(self.signal)

    def stage_of(self, score: str) -> Stage:
        """After the draft; for the first token's entropy alone after the prefill."""
        return "prefill" if score == "first_token_entropy" else "draft"

    @property
    def within_answer(self) -> bool:
        """True for a model that is opened here: the answer continues the draft."""
        return self.server is None

    def passes(self, example: Any) -> list[Pass]:
        """A draft of the answer."""
        return [Pass(asked_whole(example, example.reference, self.own_prompts()), self.tokens)]


class SignalGate(Gate):
    """A gate whose card names the signal that decides."""

    card: DraftCard

    @property
    def name(self) -> str:
        """The signal that decides."""
        return self.card.signal


class Draft(SignalGate):
    """Score by :attr:`card`'s signal; see :data:`SIGNALS`. ``spent`` counts requests and generated tokens."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, card: DraftCard) -> None:
        from kbtrain.llm.base import Sampling
        from kbtrain.llm.sampler.sampler import LockstepSampler
        from kbtrain.llm.sampler.shared_prefix_check import prefix_sharing

        self.model = model
        self.tokenizer = tokenizer
        self.card: DraftCard = card
        self.own = card.own_prompts()
        shared, window = prefix_sharing(model, MAX_PROMPT, card.tokens)
        self._samplers = {
            tokens: LockstepSampler(model, tokenizer, Sampling(max_new_tokens=tokens), shared, window)
            for tokens in {1, card.tokens}
        }

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> Self:
        """Open a folder with the model it names. Raises :class:`UserError` for other prompts."""
        card = DraftCard.read(folder)
        return cls(*open_answering(card, folder, asked_fingerprint, dtype, device), card)

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example; of the first token's entropy no other token is generated."""
        tokens = 1 if self.name == "first_token_entropy" else self.card.tokens
        return [signals(draft)[self.name] for draft in self.drafts(examples, tokens)]

    def score_all(self, inputs: Sequence[str | Example]) -> dict[str, list[float]]:
        by_draft = [signals(d) for d in self.drafts(cast("list[GateExample]", self.examples(inputs)), self.card.tokens)]
        return {name: [scores[name] for scores in by_draft] for name in SIGNALS}

    def drafts(self, examples: Sequence[GateExample], tokens: int) -> list[Uncertainties]:
        """Uncertainties of each example's draft, of at most ``tokens`` tokens.

        Raises :class:`UserError` for a prompt that is too long, and for a model whose logits are NaN.
        """
        from kbtrain.llm.sampler.rows import PromptRows
        from kbtrain.llm.sampler.token_uncertainty import TokenUncertainty

        prompts = ((e.id, asked_ids(self.tokenizer, e, e.reference, self.own)) for e in examples)
        rows = [PromptRows(name, "llm", tuple(ids), (GREEDY,)) for name, ids in prompts]
        long = next((row for row in rows if len(row.ids) > MAX_PROMPT), None)
        if long is not None:
            raise UserError(f"'{long.question_id}': prompt of {len(long.ids)} tokens; room for {MAX_PROMPT}")
        observer = TokenUncertainty()
        drafts = first_rows(self._samplers[tokens].observed(observer), rows)
        self.spent.update(requests=len(drafts), tokens=sum(len(draft.tokens) for draft in drafts))
        return [draft.notes[observer] for draft in drafts]


def signals(draft: Uncertainties) -> dict[str, float]:
    """The scores of a draft by name."""
    n = len(draft.entropies)
    values = sum(draft.ratios) / n, sum(draft.entropies) / n, draft.entropies[0]
    return dict(zip(SIGNALS, values, strict=True))


class ServedDraft(ServedGate, SignalGate):
    """Score: mean ratio of the second to the first probability over the draft's tokens, in front of an engine.

    vLLM's log-probabilities give the two most probable tokens; the entropies need whole distributions.
    """

    card: DraftCard

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example, from one draft each."""
        prompts = [asked_ids(self.server.tokenizer, e, e.reference, self.own) for e in examples]
        return [mean_ratio(draft) for draft in self.server.read_top_logprobs(prompts, self.card.tokens)]


def mean_ratio(draft: Sequence[Sequence[float]]) -> float:
    """Mean over tokens of the second highest probability divided by the highest; 1 for a draft without tokens.

    ``draft``: log-probabilities at each token, the highest first.
    """
    ratios = [math.exp(values[1] - values[0]) if len(values) > 1 else 0.0 for values in draft]
    return math.fsum(ratios) / len(ratios) if ratios else 1.0
