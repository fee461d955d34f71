"""The gate ``p_yes``: the answering model is asked if it can answer, and its first token and inner states are read.

Three scores from one forward pass: 1 - p(Yes) at the first answer token; 1 - internal confidence (arXiv 2506.09669:
p(Yes) read from the last layers and tokens); and the log of the question's perplexity, in nats a token.

The question put to the model is a prompt of its own, for any prompts of the product: those are noted in the card
for the answers that this gate decides about, and no score depends on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from kbtrain.errors import UserError
from kbtrain.gate.card import Pass
from kbtrain.gate.gate import Unit
from kbtrain.gates.answering import open_answering
from kbtrain.gates.untrained.card import ServedUntrained, UntrainedCard, UntrainedGate
from kbtrain.models.batching import like_length, n_alike
from kbtrain.models.weights import no_scores
from kbtrain.prompts.kbm import encode
from kbtrain.prompts.yes_no import can_you_answer, yes_no_fingerprint
from kbtrain.records import Example, GateExample, Statistic

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.gates.untrained.forward import YesNoPrompt
    from kbtrain.prompts.own import OwnPrompts

SIGNALS = ("p_yes", "internal_confidence", "question_perplexity")
TOKENS_PER_BATCH = 2048  # padding counted: bounds the states and logits that are held
MAX_PROMPT = 2048


class PYesCard(UntrainedCard):
    """The content of ``gate.json``."""

    SIGNALS = SIGNALS
    STATISTICS: ClassVar[Mapping[str, Statistic]] = {"p_yes": "logprobs"}
    kind: Literal["p_yes"] = "p_yes"

    def passes(self, example: Any) -> list[Pass]:
        """One over the question whether the model can answer."""
        return [Pass(can_you_answer(example.question, example.language))]


class PYes(UntrainedGate):
    """Score by :attr:`card`'s signal; see :data:`SIGNALS`. Higher: the model says less that it can answer."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, card: PYesCard) -> None:
        from kbtrain.gates.untrained.forward import answer_ids

        self.model = model
        self.tokenizer = tokenizer
        self.card: PYesCard = card
        self.yes, self.no = answer_ids(tokenizer)

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> PYes:
        """Open a folder with the model it names. Raises :class:`UserError` for other prompts."""
        card = PYesCard.read(folder)
        return cls(*open_answering(card, folder, _fingerprint, dtype, device), card)

    @property
    def unit(self) -> Unit | None:  # type: ignore[override]  # of the signal
        """Probability, but for the perplexity's logarithm."""
        return None if self.name == "question_perplexity" else "probability"

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return self._scores(examples)[self.name]

    def score_all(self, inputs: Sequence[str | Example]) -> dict[str, list[float]]:
        return self._scores(cast("list[GateExample]", self.examples(inputs)))

    def _scores(self, examples: Sequence[GateExample]) -> dict[str, list[float]]:
        """Raises :class:`UserError` for a prompt that is too long, and for states that are no numbers."""
        from kbtrain.gates.untrained.forward import read_batch

        prompts = [self._prompt(example) for example in examples]
        by_signal = {name: [math.nan] * len(prompts) for name in SIGNALS}
        for batch in like_length([len(prompt.ids) for prompt in prompts], TOKENS_PER_BATCH):
            read = read_batch(self.model, [prompts[i] for i in batch], self.yes, self.no)
            for i, answer in zip(batch, read, strict=True):
                by_signal["p_yes"][i] = 1 - answer.p_yes
                by_signal["internal_confidence"][i] = 1 - answer.confidence
                by_signal["question_perplexity"][i] = answer.surprisal
        bad = [e.id for i, e in enumerate(examples) if not all(math.isfinite(by_signal[name][i]) for name in SIGNALS)]
        if bad:
            raise no_scores(self.model, bad)
        return by_signal

    def _prompt(self, example: GateExample) -> YesNoPrompt:
        """The question's tokens are those between the beginning and the end that a prompt without it has as well."""
        from kbtrain.gates.untrained.forward import YesNoPrompt

        ids, empty = (
            encode(self.tokenizer, can_you_answer(query, example.language)) for query in (example.question, "")
        )
        if len(ids) > MAX_PROMPT:
            raise UserError(f"'{example.id}': prompt of {len(ids)} tokens; room for {MAX_PROMPT}")
        start = max(1, n_alike(ids, empty))
        end = max(start + 1, len(ids) - n_alike(ids[::-1], empty[::-1]))
        return YesNoPrompt(tuple(ids), start, min(end, len(ids)))


def _fingerprint(tokenizer: PreTrainedTokenizerBase | None, prompts: OwnPrompts | None) -> str:
    return yes_no_fingerprint(tokenizer)


class ServedPYes(ServedUntrained):
    """Score: 1 - p(Yes) at the first answer token, among the spellings of Yes and No, as of the gate ``p_yes``."""

    unit = "probability"
    card_type = PYesCard
    signal = "p_yes"
    fingerprint = staticmethod(_fingerprint)

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example, from one token for each spelling of Yes and No behind its prompt."""
        from kbtrain.gates.untrained.forward import answer_ids

        yes, no = answer_ids(self.server.tokenizer)
        prompts = [encode(self.server.tokenizer, can_you_answer(e.question, e.language)) for e in examples]
        return [share_of(values, no, yes) for values in self.server.read_token_logprobs(prompts, [*yes, *no])]


def share_of(logprobs: Mapping[int, float], of: Sequence[int], rest: Sequence[int]) -> float:
    """Share of the tokens ``of`` in the probability of ``of`` and ``rest``."""
    share, other = (math.fsum(math.exp(logprobs[i]) for i in ids) for ids in (of, rest))
    return share / (share + other)
