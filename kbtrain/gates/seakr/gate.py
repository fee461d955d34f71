"""SeaKR as a gate: tuning-free, the score of a question is the model's own uncertainty about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbtrain.errors import UserError
from kbtrain.gates.seakr.engine import SeakrSettings, Thought, Uncertainty
from kbtrain.gates.seakr.seakr_folder import SeakrCard, read_seakr_card
from kbtrain.gates.seakr.signals import SIGNALS
from kbtrain.prompts.kbm import answer_fingerprint, answer_prompt, encode
from kbtrain.records import GateExample, Question

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.models.batching import BatchLimits


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
