"""The knowledge-boundary model (KBM paper): a language model fine-tuned to say what it masters and is certain of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kbtrain.errors import UserError, did_you_mean
from kbtrain.gate_folder import ADAPTER, CARD, GateCard, read_card
from kbtrain.gates.true_false.scorer import TOKENS_PER_BATCH, Scorer
from kbtrain.gates.true_false.template import Encoder, kbm_template
from kbtrain.models.adapters import cast_weights, check_base_of_adapter
from kbtrain.prompts.kbm import Key, kbm_fingerprint
from kbtrain.records import GateExample

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class KBM:
    """Scores with one forward pass a batch (:mod:`~kbtrain.gates.true_false.forward`).

    As a gate it is its first key's."""

    needs_samples = False
    needs_evidence = False

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        keys: Sequence[Key],
        max_length: int,
        tokens_per_batch: int = TOKENS_PER_BATCH,
        card: GateCard | None = None,
    ) -> None:
        self.keys: tuple[Key, ...] = tuple(keys)
        self.card = card
        self.scorer = Scorer(model, Encoder(tokenizer, kbm_template(keys), max_length), tokens_per_batch)

    @classmethod
    def load(
        cls,
        folder: Path | str,
        dtype: str = "auto",
        device: str = "auto",
        tokens_per_batch: int = TOKENS_PER_BATCH,
    ) -> KBM:
        """Open a gate's folder; ``dtype`` auto: as saved. Raises :class:`UserError` if its prompts are not ours."""
        from kbtrain.models.load import load_tokenizer

        card = read_card(folder)
        found = kbm_fingerprint(load_tokenizer(str(folder)), card.keys)
        if found != card.prompt_fingerprint:
            raise UserError(
                f"{Path(folder) / CARD}: prompt fingerprint {card.prompt_fingerprint} is not this version's {found}: "
                "the gate was trained with other prompts; train it again"
            )
        model, tokenizer = _open(Path(folder), card, card.dtype if dtype == "auto" else dtype, device)
        return cls(model, tokenizer, card.keys, card.max_length, tokens_per_batch, card)

    def probabilities(self, examples: Sequence[GateExample]) -> dict[Key, list[float]]:
        """p(True) of each key in [0, 1] in the order of the examples, summed over the keys before it."""
        return cast("dict[Key, list[float]]", self.scorer.probabilities(examples))

    def gate(self, key: Key) -> KBMGate:
        """``kbm_mastery`` and ``kbm_certainty`` score 1 - p, ``kbm_benefit`` scores p."""
        if key not in self.keys:
            raise UserError(f"this KBM has no key '{key}'; {did_you_mean(key, self.keys)}")
        return KBMGate(self, key)

    @property
    def name(self) -> str:
        """As a gate, a KBM is that of its first key."""
        return self.gate(self.keys[0]).name

    def score(self, examples: Sequence[GateExample]) -> list[float]:
        """The first key's scores."""
        return self.gate(self.keys[0]).score(examples)


@dataclass(frozen=True)
class KBMGate:
    """One key of a KBM as a gate; scores are probabilities, higher = retrieval more needed."""

    kbm: KBM
    key: Key
    needs_samples: bool = False
    needs_evidence: bool = False

    @property
    def name(self) -> str:
        """``kbm_`` and the key."""
        return f"kbm_{self.key}"

    def score(self, examples: Sequence[GateExample]) -> list[float]:
        """1 - p(mastery), 1 - p(certainty), or p(benefit)."""
        return self.from_probabilities(self.kbm.probabilities(examples)[self.key])

    def from_probabilities(self, found: Sequence[float]) -> list[float]:
        """The scores for p(True) already at hand, so that one pass serves all keys."""
        return list(found) if self.key == "benefit" else [1 - p for p in found]


def _open(folder: Path, card: GateCard, dtype: str, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """An adapter is merged in fp32 and rounded then, exactly as at the end of its training; beside 4-bit weights it
    stays what it is."""
    from kbtrain.models.load import choose_device, load_model

    if card.merged:
        return load_model(str(folder), dtype, device)
    from peft import PeftModel
    from transformers import AutoTokenizer

    from kbtrain.models.load import choose_dtype

    check_base_of_adapter(card.base_model, card.base_fingerprint, str(folder / CARD))
    if card.method == "qlora":
        from kbtrain.models.adapters import load_nf4

        quantised, _ = load_nf4(card.base_model, device, choose_dtype(dtype, choose_device(device), ""))
        beside: Any = PeftModel.from_pretrained(quantised, str(folder / ADAPTER)).eval()
        return beside, AutoTokenizer.from_pretrained(folder)
    base, _ = load_model(card.base_model, "fp32", device)
    adapted = PeftModel.from_pretrained(base, str(folder / ADAPTER)).merge_and_unload()
    cast_weights(adapted, choose_dtype(dtype, choose_device(device), base.config.model_type))
    return cast("PreTrainedModel", adapted.eval()), AutoTokenizer.from_pretrained(folder)
