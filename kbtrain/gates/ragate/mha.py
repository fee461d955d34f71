"""RAGate-MHA as a gate: its folder holds network, tokenizer and what it reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.classifier_folder import ClassifierCard, read_classifier_card
from kbtrain.errors import UserError, at
from kbtrain.gates.encoder.gate import like_length
from kbtrain.gates.encoder.input import Example
from kbtrain.gates.ragate.ragate_mha_input import MHAInput, Read

if TYPE_CHECKING:
    from kbtrain.gates.ragate.mha_model import RagateMHAModel

TOKENS_PER_BATCH = 16384  # rows x longest: bounds memory


class RagateMHA:
    """Score = p(retrieval needed) in [0, 1], the second class's share of a softmax. ``cut`` counts turns left out."""

    name = "ragate_mha"
    needs_samples = False

    def __init__(self, model: RagateMHAModel, reader: MHAInput, card: ClassifierCard | None = None) -> None:
        self.model = model
        self.reader = reader
        self.card = card
        self.cut = 0

    @property
    def needs_evidence(self) -> bool:
        """Whether it reads knowledge."""
        return "know" in self.reader.inputs

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> RagateMHA:
        """Open a gate's folder; always fp32, in which a score does not depend on its batch."""
        from transformers import PreTrainedTokenizerFast

        from kbtrain.gates.ragate.mha_model import RagateMHAModel
        from kbtrain.models.load import choose_device

        card = read_classifier_card(folder, "ragate_mha")
        try:
            model: Any = RagateMHAModel.from_pretrained(folder)
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except (OSError, ValueError) as error:
            raise UserError(f"{at(folder)}: cannot be opened ({str(error).strip().splitlines()[0][:200]})") from None
        return cls(model.to(choose_device(device)).eval(), MHAInput(tokenizer, **card.reads), card)

    def score(self, examples: Sequence[Example]) -> list[float]:
        """One score per example, in their order."""
        rows = [self.reader.encode(example) for example in examples]
        self.cut += sum(row.cut for row in rows)
        scores = [0.0] * len(rows)
        was_training = self.model.training
        self.model.train(False)
        for batch in like_length([max(len(row.ids), len(row.other)) for row in rows], TOKENS_PER_BATCH):
            for i, p in zip(batch, self._probabilities([rows[i] for i in batch]), strict=True):
                scores[i] = p
        self.model.train(was_training)
        return scores

    def _probabilities(self, rows: Sequence[Read]) -> list[float]:
        import torch

        from kbtrain.training.classifier_rows import ClassifierCollator, ClassifierRow, need_logit

        batch = ClassifierCollator(self.model.config.pad_token_id).inputs(
            [ClassifierRow(row.ids, other=row.other) for row in rows]
        )
        with torch.no_grad():
            logits = self.model(**{k: v.to(self.model.device) for k, v in batch.items()}).logits
        return [float(p) for p in torch.sigmoid(need_logit(logits.double(), 2))]
