"""SeaKR of a served model: answers and their states come from vLLM, the model is not opened here.

vLLM keeps the residual stream, not the MLP's output that the signal ``seakr`` reads: ``seakr_residual`` and
``eigen_score`` are served, and the signals of texts alone. The k answers to a prompt come from one request. vLLM draws
them by its own random numbers, so a score has the spread of another seed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kbtrain.errors import UserError, at
from kbtrain.gates.answering import ServedGate, check_served_prompts
from kbtrain.gates.seakr.gate import SeakrCard, cut_prompt
from kbtrain.gates.seakr.signals import OF_TEXTS, RESIDUAL, measure_signal
from kbtrain.llm.served_states import LONGEST_GROUP, SHORT_PROMPT, ServedAnswer, StatesServer, own_end_token
from kbtrain.records import GateExample, Sample

if TYPE_CHECKING:
    from kbtrain.llm.sampler.state_sampler import AnswerWithStates


class ServedSeaKR(ServedGate):
    """Score: the card's signal of k answers that the server draws."""

    card: SeakrCard

    def __init__(self, server: StatesServer, card: SeakrCard) -> None:
        super().__init__(server, card)
        self._layer = card.settings.layer
        self._end = own_end_token(server.tokenizer) if card.settings.signal in RESIDUAL else None

    @property
    def name(self) -> str:
        """The signal that decides."""
        return self.card.settings.signal

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example, from one request each."""
        prompts = [cut_prompt(self.server.tokenizer, e, self.card.settings, self.own, self.spent) for e in examples]
        return [measure_signal(self.name, answers, self.card.settings.alpha) for answers in self.draw(prompts)]

    def draw(self, prompts: Sequence[Sequence[int]], k: int | None = None) -> list[list[AnswerWithStates]]:
        """``k`` answers to each prompt (None: as many as the settings say). Raises :class:`UserError`."""
        s = self.card.settings
        drawn = {"temperature": s.temperature, "top_p": s.top_p, **({"top_k": s.top_k} if s.top_k else {})}
        sampled = self.server.sample(prompts, k or s.k, s.max_new_tokens, drawn, self._end)
        return [[self._answer(i, answer) for i, answer in enumerate(of_prompt)] for of_prompt in sampled]

    def _answer(self, index: int, answer: ServedAnswer) -> AnswerWithStates:
        from kbtrain.llm.sampler.state_sampler import AnswerWithStates

        text = str(self.server.tokenizer.decode(list(answer.tokens), skip_special_tokens=True)).strip()
        state = np.empty(0, dtype=np.float32)
        if self._end is not None and text:
            assert self._layer is not None
            if answer.end is None:
                raise UserError(
                    f"server {self.server.server.base}: gives no state behind an answer; is its context full?"
                )
            if self._layer + 1 not in answer.layers:
                raise UserError(
                    f"the upstream keeps states of layers {', '.join(map(str, answer.layers))}, not of "
                    f"{self._layer + 1}; start it with the flags of `kbtrain vllm-args FOLDER`"
                )
            state = answer.end[answer.layers.index(self._layer + 1)]
        sample = Sample(index, text, len(answer.tokens), "length" if answer.cut else "stop", 0.0)
        return AnswerWithStates(sample, state, state, math.nan, math.nan, ())


def load_served(folder: Path, server: StatesServer) -> ServedSeaKR:
    """Open a SeaKR folder whose model is served.

    Raises :class:`UserError` for a signal that an engine does not give, other prompts than its threshold was chosen
    with, a server with another chat template, and one without the states.
    """
    card = SeakrCard.read(folder)
    settings = card.settings
    if settings.signal not in RESIDUAL | OF_TEXTS:
        raise UserError(
            f"{at(folder)}: signal '{settings.signal}' cannot be read from a server; make the gate with --signal "
            f"{' or '.join(sorted(RESIDUAL))}, or open the model here"
        )
    if settings.stop != ("\n",) or settings.k > LONGEST_GROUP:
        raise UserError(f"{at(folder)}: a server draws at most {LONGEST_GROUP} answers, which end at a line break")
    check_served_prompts(card, folder, server)
    gate = ServedSeaKR(server, card)
    gate.draw([SHORT_PROMPT], 2)
    return gate
