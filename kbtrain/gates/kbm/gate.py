"""The knowledge-boundary model (KBM paper): a language model fine-tuned to predict its own mastery and certainty."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from kbtrain.gate.card import ADAPTER, CARD, KeyedCard
from kbtrain.gate.gate import Gate, KeyedGate
from kbtrain.gates.registry import QUESTION, Kind
from kbtrain.gates.tree_scorer import Scorer
from kbtrain.gates.true_false import NEED_TEMPLATE, Encoder, kbm_template
from kbtrain.models.adapters import check_base_of_adapter, compute_of, open_beside, open_merged
from kbtrain.prompts.kbm import Key, kbm_fingerprint
from kbtrain.records import NEEDS_RETRIEVAL, GateExample, Target

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


class KBMCard(KeyedCard):
    """``keys`` are the targets, in the order in which the answer states them; ``dtype`` that of the weights.

    ``merged`` False: the folder holds an adapter only, and ``base_model`` (by its fingerprint) is needed to open it.
    """

    PREFIX = "kbm"
    kind: Literal["kbm"] = "kbm"
    base_model: str
    keys: tuple[Key, ...]
    prompt_fingerprint: str
    max_length: int
    dtype: str
    method: Literal["full", "lora", "qlora"]
    labels: Literal["hard", "soft"]
    merged: bool = True
    base_fingerprint: str | None = None

    def check_base(self, folder: Path | str) -> None:
        if not self.merged:
            check_base_of_adapter(self.base_model, self.base_fingerprint, str(Path(folder) / CARD))


class KBM(KeyedGate):
    """A gate for each of its keys, all from one forward pass a batch (:mod:`~kbtrain.gates.tree_scorer`).

    ``key`` is the one that :meth:`score` and :meth:`decide` use; its score is the probability that retrieval is needed:
    1 - p(mastery), 1 - p(certainty), or p(benefit).
    """

    prefix = "kbm"
    unit = "probability"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        keys: Sequence[Key],
        max_length: int,
        card: KBMCard | None = None,
    ) -> None:
        self.keys: tuple[Key, ...] = tuple(keys)
        self.key: Target = self.keys[0] if card is None else card.best_key()
        self.card: KBMCard | None = card
        self.scorer = Scorer(model, Encoder(tokenizer, kbm_template(keys), max_length))
        self.spent = self.scorer.spent

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> KBM:
        """Open a gate's folder; ``dtype`` auto: as saved. Raises :class:`UserError` for other prompts."""
        from kbtrain.models.load import load_tokenizer

        card = KBMCard.read(folder)
        card.check_prompts(kbm_fingerprint(load_tokenizer(str(folder)), card.keys), folder)
        model, tokenizer = _open(Path(folder), card, card.dtype if dtype == "auto" else dtype, device)
        return cls(model, tokenizer, card.keys, card.max_length, card)

    def probabilities(self, examples: Sequence[GateExample]) -> dict[Target, list[float]]:
        """p(True) of each key in [0, 1] in the order of the examples, summed over the keys before it."""
        return cast("dict[Target, list[float]]", self.scorer.probabilities(examples))

    def scores_by_name(self, examples: Sequence[GateExample]) -> dict[str, list[float]]:
        return {f"kbm_{key}": needs(key, p_true) for key, p_true in self.probabilities(examples).items()}


def needs(key: Target, p_true: Sequence[float]) -> list[float]:
    """The probabilities that retrieval is needed, from p(True) of a key."""
    return list(p_true) if key in NEEDS_RETRIEVAL else [1 - p for p in p_true]


def _open(folder: Path, card: KBMCard, dtype: str, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    from kbtrain.models.load import NAMES, choose_device, load_model, load_tokenizer

    if card.merged:
        return load_model(str(folder), dtype, device)
    card.check_base(folder)
    if card.method == "qlora":
        model = open_beside(card.base_model, folder / ADAPTER, card.method, device, dtype)
    else:
        # Merged in fp32 and rounded then, exactly as at the end of its training.
        place = choose_device(device)
        rounded = NAMES[compute_of(card.base_model, dtype, place)]
        model = open_merged(card.base_model, folder / ADAPTER, card.method, place, rounded)
    return model, load_tokenizer(str(folder))


class PromptGate(Gate):
    """The prompting baseline (section 4.2): an untrained model is asked if it needs more information.

    Score = p(need: True) against p(need: False) in [0, 1] at the value position; it reads no reference, and has no
    folder.
    """

    name = "prompt"
    unit = "probability"

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_length: int = 2048) -> None:
        self.scorer = Scorer(model, Encoder(tokenizer, NEED_TEMPLATE, max_length))
        self.spent = self.scorer.spent

    def score_examples(self, examples: Sequence[GateExample]) -> list[float]:
        return self.scorer.probabilities(examples)["need"]


KIND = Kind(KBMCard, KBM.load, QUESTION, "recipes/train_kbm.py")
