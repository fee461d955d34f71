"""The gates ``draft`` and ``p_yes`` of a served model: log-probabilities come from vLLM, the model is not opened here.

vLLM returns the log-probabilities of the two most probable tokens, and of a token that it is made to draw: the scores
``draft_margin`` and ``p_yes`` are those of the model. Other signals need whole distributions or hidden states.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from kbtrain.errors import UserError, at
from kbtrain.gates.answering import ServedGate, check_served_prompts
from kbtrain.gates.untrained.card import UntrainedCard, UntrainedGate
from kbtrain.gates.untrained.draft import DraftCard
from kbtrain.gates.untrained.p_yes import PYesCard
from kbtrain.llm.served_states import StatesServer
from kbtrain.prompts.kbm import encode
from kbtrain.prompts.own import OwnPrompts, asked_fingerprint, asked_ids
from kbtrain.prompts.yes_no import can_you_answer, yes_no_fingerprint
from kbtrain.records import GateExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class _Served(ServedGate, UntrainedGate):
    """``signal``: the one that a server's log-probabilities give. ``fingerprint``: of the prompts that it reads."""

    card_type: ClassVar[type[UntrainedCard]]
    signal: ClassVar[str]

    @staticmethod
    def fingerprint(tokenizer: PreTrainedTokenizerBase, templates: OwnPrompts | None) -> str:
        """Fingerprint of the prompts that the model reads."""
        return asked_fingerprint(tokenizer, templates)


class ServedDraft(_Served):
    """Score: mean ratio of the second to the first probability over the draft's tokens, as of the gate ``draft``."""

    card: DraftCard
    card_type = DraftCard
    signal = "draft_margin"

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example, from one draft each."""
        prompts = [asked_ids(self.server.tokenizer, e, e.reference, self.own) for e in examples]
        return [mean_ratio(draft) for draft in self.server.read_top_logprobs(prompts, self.card.tokens)]


class ServedPYes(_Served):
    """Score: 1 - p(Yes) at the first answer token, among the spellings of Yes and No, as of the gate ``p_yes``."""

    unit = "probability"
    card_type = PYesCard
    signal = "p_yes"

    @staticmethod
    def fingerprint(tokenizer: PreTrainedTokenizerBase, templates: OwnPrompts | None) -> str:
        """Fingerprint of the question whether the model can answer."""
        return yes_no_fingerprint(tokenizer)

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example, from one token for each spelling of Yes and No behind its prompt."""
        from kbtrain.gates.untrained.forward import answer_ids

        yes, no = answer_ids(self.server.tokenizer)
        prompts = [encode(self.server.tokenizer, can_you_answer(e.question, e.language)) for e in examples]
        return [share_of(values, no, yes) for values in self.server.read_token_logprobs(prompts, [*yes, *no])]


def load_served(gate: type[ServedDraft] | type[ServedPYes], folder: Path, server: StatesServer) -> UntrainedGate:
    """Open a folder of ``draft`` or ``p_yes`` whose model is served.

    Raises :class:`UserError` for a signal that cannot be read so, other prompts than its threshold was chosen with, and
    a server with another chat template.
    """
    card = gate.card_type.read(folder)
    if card.signal != gate.signal:
        raise UserError(
            f"{at(folder)}: signal '{card.signal}' cannot be read from a server; make the gate with signal "
            f"'{gate.signal}', or open the model here"
        )
    check_served_prompts(card, folder, server, gate.fingerprint)
    return gate(server, card)


def mean_ratio(draft: Sequence[Sequence[float]]) -> float:
    """Mean over tokens of the second highest probability divided by the highest; 1 for a draft without tokens.

    ``draft``: log-probabilities at each token, the highest first.
    """
    ratios = [math.exp(values[1] - values[0]) if len(values) > 1 else 0.0 for values in draft]
    return math.fsum(ratios) / len(ratios) if ratios else 1.0


def share_of(logprobs: dict[int, float], of: Sequence[int], rest: Sequence[int]) -> float:
    """Share of the tokens ``of`` in the probability of ``of`` and ``rest``."""
    share, other = (math.fsum(math.exp(logprobs[i]) for i in ids) for ids in (of, rest))
    return share / (share + other)
