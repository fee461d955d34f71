"""SeaKR as a gate: tuning-free, the score of a question is the model's own uncertainty about it.

SeaKR's gate folder: ``gate.json`` alone. The weights are the base model's, which it names.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kbtrain.errors import UserError, at
from kbtrain.gate_folder import CARD, Threshold, read_json
from kbtrain.gates.seakr.engine import SeakrSettings, Thought, Uncertainty
from kbtrain.gates.seakr.signals import SIGNALS
from kbtrain.gates.seakr.uncertainty import Scale
from kbtrain.jsonl import one_line
from kbtrain.prompts.kbm import answer_fingerprint, answer_prompt, encode
from kbtrain.provenance import write_atomically
from kbtrain.records import GateExample, Question

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


class SeakrCard(BaseModel):
    """The content of a SeaKR gate's ``gate.json``; ``settings`` name the layer and MLP whose states are read."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    kind: Literal["seakr"] = "seakr"
    base_model: str
    dtype: str
    prompt_fingerprint: str
    settings: SeakrSettings
    measured: MeasuredScale | None = None
    thresholds: dict[str, Threshold] = {}
    run: dict[str, Any] = {}
    versions: dict[str, str] = {}

    @property
    def scale(self) -> Scale | None:
        """What U can be here, if it was measured and U is what decides."""
        if self.measured is None:
            return None
        m = self.measured
        return Scale(self.settings.k, self.settings.alpha, m.n, m.low, m.mean, m.high)


def measured_scale(thoughts: Sequence[Thought], settings: SeakrSettings) -> MeasuredScale:
    """From the norms of some questions' states."""
    from kbtrain.gates.seakr.uncertainty import floor

    scale = Scale.of([thought.squared_norm for thought in thoughts], settings.k, settings.alpha)
    return MeasuredScale(
        n=scale.n,
        low=scale.low,
        mean=scale.mean,
        high=scale.high,
        floor=scale.floor,
        ceiling=scale.ceiling,
        mean_floor=floor(scale.mean, scale.k, scale.alpha),
    )


def write_seakr_card(folder: Path, card: SeakrCard) -> None:
    """Write ``gate.json`` atomically."""
    write_atomically(folder / CARD, json.dumps(card.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")


def read_seakr_card(folder: Path | str) -> SeakrCard:
    """Raises :class:`UserError` for a folder that holds no SeaKR gate."""
    data = read_json(folder)
    if data["kind"] != "seakr":
        raise UserError(f"{at(Path(folder) / CARD)}: a gate of kind '{data['kind']}', expected 'seakr'")
    try:
        return SeakrCard.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{at(Path(folder) / CARD)}: {one_line(error)}") from None


def scale_of(folder: Path | str, gate: str) -> Scale | None:
    """What U can be in a SeaKR gate's folder; None for other kinds and for its other signals."""
    if gate != "seakr" or read_json(folder)["kind"] != "seakr":
        return None
    return read_seakr_card(folder).scale


class SeaKR:
    """Score = U in nats per sample (or another of :data:`~kbtrain.gates.seakr.signals.SIGNALS`, as its settings say).

    A question is asked as in KBM's figures 9 and 11, with a reference as in 10 and 12. ``spent`` counts requests,
    samples, generated tokens, and samples that say nothing.
    """

    needs_samples = False
    needs_evidence = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        settings: SeakrSettings | None = None,
        limits: BatchLimits | None = None,
        card: SeakrCard | None = None,
    ) -> None:
        self.engine = Uncertainty(model, tokenizer, settings or SeakrSettings(), limits)
        self.card = card
        self.spent: Counter[str] = Counter()

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> SeaKR:
        """Open a gate's folder with the model it names. Raises :class:`UserError` if its prompts are not ours."""
        from kbtrain.models.load import load_model

        card = read_seakr_card(folder)
        model, tokenizer = load_model(card.base_model, card.dtype if dtype == "auto" else dtype, device)
        found = answer_fingerprint(tokenizer)
        if found != card.prompt_fingerprint:
            raise UserError(
                f"{folder}: prompt fingerprint {card.prompt_fingerprint} is not this version's {found}: its threshold "
                "was chosen with other prompts; make and calibrate the gate again"
            )
        return cls(model, tokenizer, card.settings, card=card)

    @property
    def name(self) -> str:
        """The signal's name: ``seakr``, unless another one decides."""
        return self.engine.settings.signal

    def score(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example."""
        return [thought.uncertainty for thought in self.think(examples)]

    def all_scores(self, examples: Sequence[GateExample]) -> dict[str, list[float]]:
        """The scores of every signal, from the same samples."""
        thoughts = self.think(examples)
        return {name: [thought.signals[name] for thought in thoughts] for name in SIGNALS}

    def think(self, examples: Sequence[GateExample]) -> list[Thought]:
        """Each example's greedy answer with all of its signals. A reference too long for the prompt loses its tail."""
        thoughts = self.engine.think([(example.id, self._prompt(example)) for example in examples])
        self.spent["requests"] += len(thoughts)
        self.spent["samples"] += sum(thought.n_samples for thought in thoughts)
        self.spent["tokens"] += sum(thought.generated_tokens for thought in thoughts)
        self.spent["empty_samples"] += sum(thought.n_empty for thought in thoughts)
        return thoughts

    def _prompt(self, example: GateExample) -> list[int]:
        """Token ids; ``reference_cut`` in ``spent`` counts the reference's tokens that found no room."""
        tokenizer, reference = self.engine.tokenizer, example.reference
        ids = encode(tokenizer, prompt_text(example, reference))
        while len(ids) > self.engine.settings.max_prompt_tokens and reference:
            tokens = tokenizer(reference, add_special_tokens=False)["input_ids"]
            drop = min(len(ids) - self.engine.settings.max_prompt_tokens, len(tokens))
            self.spent["reference_cut"] += drop
            reference = str(tokenizer.decode(tokens[:-drop]))
            ids = encode(tokenizer, prompt_text(example, reference))
        return ids


def prompt_text(example: GateExample, reference: str | None) -> str:
    """The prompt that asks for an answer. An example's options stand in its question, one line each."""
    choice = "\nA. " in example.question and "\nB. " in example.question
    question = Question(
        example.id, example.question, (), example.split, "", example.language, "choice" if choice else "open"
    )
    return answer_prompt(question, "llm" if reference is None else "rag", reference)
