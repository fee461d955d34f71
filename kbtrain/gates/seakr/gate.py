"""SeaKR as a gate: tuning-free, the score of a question is the model's own uncertainty about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from kbtrain.errors import UserError
from kbtrain.gate.card import GateCard, Pass, Stage, read_gate_json
from kbtrain.gate.gate import Gate
from kbtrain.gates.answering import OTHER_PROMPTS, open_answering
from kbtrain.gates.seakr.engine import SeakrSettings, Thought, Uncertainty
from kbtrain.gates.seakr.signals import OF_TEXTS, RESIDUAL, SIGNALS
from kbtrain.gates.seakr.uncertainty import Scale, floor
from kbtrain.prompts.own import OwnPrompts, asked_fingerprint, asked_ids, asked_whole
from kbtrain.records import Example, GateExample, Statistic

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.models.batching import BatchLimits


class MeasuredScale(BaseModel):
    """The squared norms of states over ``n`` questions, and the floor and ceiling of U that follow from them."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    n: int
    low: float
    mean: float
    high: float
    floor: float
    ceiling: float
    mean_floor: float


class SeakrCard(GateCard):
    """The content of a SeaKR gate's ``gate.json``; ``settings`` name the layer and MLP whose states are read.

    The weights are the base model's, which it names: the folder holds nothing else.
    """

    ABSENT = frozenset({"label_rule"})
    NO_SCORE = frozenset({"thresholds", "measured", "run"})
    OTHER_PROMPTS = OTHER_PROMPTS
    kind: Literal["seakr"] = "seakr"
    base_model: str
    dtype: str
    prompt_fingerprint: str
    settings: SeakrSettings
    measured: MeasuredScale | None = None

    def names(self) -> tuple[str, ...]:
        """Every signal: all come from the same samples."""
        return tuple(SIGNALS)

    def answering_models(self) -> tuple[str, ...]:
        """The model that is sampled."""
        return (self.base_model,)

    @property
    def stage(self) -> Stage:
        """After answers, its samples."""
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

    def passes(self, example: Any) -> list[Pass]:
        """One prompt, to which the greedy answer and all samples are generated."""
        prompt = asked_whole(example, example.reference, self.own_prompts())
        return [Pass(prompt, (self.settings.k + 1) * self.settings.max_new_tokens)]

    @property
    def scale(self) -> Scale | None:
        """Attainable range of U, if it was measured and U is the signal."""
        if self.measured is None:
            return None
        m = self.measured
        return Scale(self.settings.k, self.settings.alpha, m.n, m.low, m.mean, m.high)


def measured_scale(thoughts: Sequence[Thought], settings: SeakrSettings) -> MeasuredScale:
    """From the norms of some questions' states. Raises :class:`UserError` if the model says nothing to any of them."""
    norms = [thought.squared_norm for thought in thoughts if thought.squared_norm is not None]
    if not norms:
        raise UserError(
            f"to all of {len(thoughts)} dev questions the model says nothing in {settings.k} samples, so there is no "
            "scale to measure; look at its answers, and at keys stop and max_new_tokens"
        )
    scale = Scale.from_norms(norms, settings.k, settings.alpha)
    return MeasuredScale(
        n=scale.n,
        low=scale.low,
        mean=scale.mean,
        high=scale.high,
        floor=scale.floor,
        ceiling=scale.ceiling,
        mean_floor=floor(scale.mean, scale.k, scale.alpha),
    )


def scale_of(folder: Path | str, gate: str) -> Scale | None:
    """Attainable range of U in a SeaKR gate's folder; None for other kinds and for its other signals."""
    if gate != "seakr" or read_gate_json(folder)["kind"] != "seakr":
        return None
    return SeakrCard.read(folder).scale


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
        """Open a gate's folder with the model it names. Raises :class:`UserError` for other prompts."""
        card = SeakrCard.read(folder)
        model, tokenizer = open_answering(card, folder, asked_fingerprint, dtype, device)
        return cls(model, tokenizer, card.settings, card=card, templates=card.own_prompts())

    @property
    def name(self) -> str:
        """The signal's name: ``seakr``, unless another one decides."""
        return self.engine.settings.signal

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return [thought.uncertainty for thought in self.think(examples)]

    def score_all(self, inputs: Sequence[str | Example]) -> dict[str, list[float]]:
        thoughts = self.think(cast("list[GateExample]", self.examples(inputs)))
        return {name: [thought.signals[name] for thought in thoughts] for name in SIGNALS}

    def think(self, examples: Sequence[GateExample]) -> list[Thought]:
        """Each example's greedy answer with all of its signals. A reference too long for the prompt loses its tail."""
        thoughts = self.engine.think([(example.id, self._prompt(example)) for example in examples])
        self.spent.update(
            requests=len(thoughts),
            samples=sum(thought.n_samples for thought in thoughts),
            tokens=sum(thought.generated_tokens for thought in thoughts),
            empty_samples=sum(thought.n_empty for thought in thoughts),
        )
        return thoughts

    def _prompt(self, example: GateExample) -> list[int]:
        """Token ids; ``reference_cut`` in ``spent`` counts the reference's tokens that found no room."""
        return cut_prompt(self.engine.tokenizer, example, self.engine.settings, self.own, self.spent)


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
        tokens = tokenizer(reference, add_special_tokens=False)["input_ids"]
        drop = min(len(ids) - settings.max_prompt_tokens, len(tokens))
        spent["reference_cut"] += drop
        reference = str(tokenizer.decode(tokens[:-drop]))
        ids = asked_ids(tokenizer, example, reference, templates)
    return ids
