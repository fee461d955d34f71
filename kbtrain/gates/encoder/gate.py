"""Encoder gate: a pretrained encoder (BERT, DeBERTa, MiniLM, ...) fine-tuned to classify turns or questions.

Its logits are the decision's, then those of auxiliary targets (acts of the turn to come), used in training only. It may
start from another gate's log odds (:mod:`kbtrain.gates.encoder.offset`), to which the decision's logit is added.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kbtrain.gate.card import ClassifierCard
from kbtrain.gate.gate import Gate, Reads
from kbtrain.gates.encoder.input import EncoderInput, Segments
from kbtrain.gates.encoder.offset import OffsetGate
from kbtrain.models.batching import like_length
from kbtrain.models.encoders import has_segments, open_encoder
from kbtrain.models.weights import no_scores
from kbtrain.records import Example

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

TOKENS_PER_BATCH = 8192  # rows x longest: bounds memory


class EncoderGate(Gate):
    """Score = p(retrieval needed) in [0, 1]; one forward pass. ``cut`` counts turns or tokens skipped so far."""

    name = "encoder"
    reads: frozenset[Reads] = frozenset({"question", "turn"})
    unit = "probability"

    def __init__(
        self,
        model: PreTrainedModel,
        reader: EncoderInput,
        card: ClassifierCard | None = None,
        base: OffsetGate | None = None,
    ) -> None:
        self.model = model
        self.reader = reader
        self.card: ClassifierCard | None = card
        self.base = base
        self.cut = 0

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> EncoderGate:
        """Open a gate's folder; ``dtype`` auto: fp32, in which a score does not depend on its batch."""
        card = ClassifierCard.read(folder, "encoder")
        base = OffsetGate.load(Path(folder)) if card.base else None
        model, tokenizer = open_encoder(str(folder), dtype, device)
        return cls(model, card.reader(EncoderInput, tokenizer, folder), card, base)

    def score_examples(self, examples: Sequence[Example]) -> list[float]:
        """One score per example, in their order. Raises :class:`UserError` if one is not a number, and for questions
        where there is a base."""
        offsets = self.base.offsets(examples) if self.base else [0.0] * len(examples)
        rows = [self.reader.encode(example) for example in examples]
        self.cut += sum(row.cut for row in rows)
        scores = [0.0] * len(rows)
        was_training = self.model.training
        self.model.train(False)
        for batch in like_length([len(row.ids) for row in rows], TOKENS_PER_BATCH):
            probabilities = self._probabilities([rows[i] for i in batch], [offsets[i] for i in batch])
            for i, p in zip(batch, probabilities, strict=True):
                scores[i] = p
        self.model.train(was_training)
        bad = [example.id for example, score in zip(examples, scores, strict=True) if score != score]
        if bad:
            raise no_scores(self.model, bad)
        return scores

    def save_beside(self, folder: Path) -> None:
        """Write weights, tokenizer and base: all that the folder needs beside its card."""
        self.model.save_pretrained(folder)
        self.reader.tokenizer.save_pretrained(folder)
        if self.base:
            self.base.save(folder)

    def _probabilities(self, rows: Sequence[Segments], offsets: Sequence[float]) -> list[float]:
        import torch

        from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierRow

        collator = ClassifierCollator(self.reader.pad_id, has_segments(self.model))
        batch = collator.inputs([ClassifierRow(row.ids, row.segments) for row in rows])
        with torch.no_grad():
            logits: torch.Tensor = self.model(**{k: v.to(self.model.device) for k, v in batch.items()}).logits
        log_odds = logits[:, 0].double().cpu() + torch.tensor(offsets, dtype=torch.double)
        return [float(p) for p in torch.sigmoid(log_odds)]
