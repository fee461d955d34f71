"""SeaKR as a gate: tuning-free, the score of a question is the model's own uncertainty about it.

Where the model is served, answers and their states come from vLLM. It keeps the residual stream, not the MLP's output
that the signal ``seakr`` reads: ``seakr_residual`` and ``eigen_score`` are served, and the signals of texts alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from kbtrain.errors import UserError, at
from kbtrain.gate.card import GateCard, Stage
from kbtrain.gate.gate import Gate
from kbtrain.gates.answering import OTHER_PROMPTS, open_answering
from kbtrain.gates.registry import QUESTION, Kind
from kbtrain.gates.seakr.engine import SeakrSettings, Thought, Uncertainty
from kbtrain.gates.seakr.signals import OF_TEXTS, RESIDUAL, SIGNALS, measure_signal
from kbtrain.llm.served_states import LONGEST_GROUP, SHORT_PROMPT, ServedAnswer, StatesServer, own_end_token, place_of
from kbtrain.prompts.kbm import without_end
from kbtrain.prompts.own import OwnPrompts, asked_fingerprint, asked_ids
from kbtrain.records import Example, GateExample, Sample, Statistic

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.llm.sampler.state_sampler import AnswerWithStates
    from kbtrain.models.batching import BatchLimits


class SeakrCard(GateCard):
    """The content of a SeaKR gate's ``gate.json``; ``settings`` name the layer and MLP whose states are read.

    The weights are the base model's, which it names: the folder holds nothing else.
    """

    ABSENT = frozenset({"label_rule"})
    OTHER_PROMPTS = OTHER_PROMPTS
    kind: Literal["seakr"] = "seakr"
    base_model: str
    dtype: str
    prompt_fingerprint: str
    settings: SeakrSettings

    def names(self) -> tuple[str, ...]:
        return tuple(SIGNALS)

    def answering_models(self) -> tuple[str, ...]:
        return (self.base_model,)

    @property
    def stage(self) -> Stage:
        return "draft"

    @property
    def statistics(self) -> frozenset[Statistic]:
        """Of sampled answers: a signal of the residual stream, or of texts, needs no entropies."""
        served = self.settings.signal in RESIDUAL | OF_TEXTS
        return frozenset({"end_states"} if served else {"end_states", "entropies"})

    def layers_read(self, folder: Path) -> set[int]:
        """The layer of a signal of the residual stream; an engine gives no MLP's output."""
        layer = self.settings.layer
        return {layer} if layer is not None and self.settings.signal in RESIDUAL else set()


class SeaKR(Gate):
    """Score = U in nats per sample (or another of :data:`~kbtrain.gates.seakr.signals.SIGNALS`, as its settings say).

    A question is asked as in KBM's figures 9 and 11, with a reference as in 10 and 12, or by the templates ``own``.
    ``spent`` counts requests, samples, generated tokens, and samples that say nothing.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: SeakrSettings | None = None,
        limits: BatchLimits | None = None,
        card: SeakrCard | None = None,
        templates: OwnPrompts | None = None,
    ) -> None:
        self.own = templates
        self.engine = Uncertainty(model, tokenizer, settings or SeakrSettings(), limits)
        self.card: SeakrCard | None = card

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> SeaKR:
        card = SeakrCard.read(folder)
        model, tokenizer = open_answering(card, folder, dtype, device)
        return cls(model, tokenizer, card.settings, card=card, templates=card.own_prompts())

    @property
    def name(self) -> str:
        return self.engine.settings.signal

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return [thought.uncertainty for thought in self.think(examples)]

    def score_all(self, inputs: Sequence[str | Example]) -> dict[str, list[float]]:
        thoughts = self.think(cast("list[GateExample]", self.examples(inputs)))
        return {name: [thought.signals[name] for thought in thoughts] for name in SIGNALS}

    def think(self, examples: Sequence[GateExample]) -> list[Thought]:
        """Each example's greedy answer with all of its signals. A reference too long for the prompt loses its tail."""
        tokenizer, settings = self.engine.tokenizer, self.engine.settings
        prompts = [(e.id, cut_prompt(tokenizer, e, settings, self.own, self.spent)) for e in examples]
        thoughts = self.engine.think(prompts)
        self.spent.update(
            requests=len(thoughts),
            samples=sum(thought.n_samples for thought in thoughts),
            tokens=sum(thought.generated_tokens for thought in thoughts),
            empty_samples=sum(thought.n_empty for thought in thoughts),
        )
        return thoughts


def cut_prompt(
    tokenizer: PreTrainedTokenizerBase,
    example: GateExample,
    settings: SeakrSettings,
    templates: OwnPrompts | None,
    spent: Counter[str],
) -> list[int]:
    """Token ids of an example's prompt; ``spent`` counts in ``reference_cut`` the tokens that found no room."""
    reference = example.reference
    ids = asked_ids(tokenizer, example, reference, templates)
    while len(ids) > settings.max_prompt_tokens and reference:
        reference, dropped = without_end(tokenizer, reference, len(ids) - settings.max_prompt_tokens)
        spent["reference_cut"] += dropped
        ids = asked_ids(tokenizer, example, reference, templates)
    return ids


class ServedSeaKR(Gate):
    """Score: the card's signal of k answers that the server draws in one request, by its own random numbers: it has the
    spread of another seed."""

    card: SeakrCard

    def __init__(self, server: StatesServer, card: SeakrCard) -> None:
        self.server: StatesServer = server
        self.card, self.own, self.spent = card, card.own_prompts(), server.spent
        self._layer = card.settings.layer
        self._end = own_end_token(server.tokenizer) if card.settings.signal in RESIDUAL else None

    @property
    def name(self) -> str:
        return self.card.settings.signal

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
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
            state = answer.end[place_of(self._layer + 1, answer.layers)]
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
    card.check_prompts(asked_fingerprint(server.tokenizer, card.own_prompts()), folder)
    server.check_prompts(card.own_prompts())
    gate = ServedSeaKR(server, card)
    gate.draw([SHORT_PROMPT], 2)
    return gate


KIND = Kind(SeakrCard, SeaKR.load, QUESTION, "recipes/make_seakr.py", open_served=load_served)
