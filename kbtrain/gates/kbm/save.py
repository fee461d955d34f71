"""The end of every training: weights to disk, opened again, and the scores must be the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kbtrain.errors import UserError
from kbtrain.folder import ADAPTER, CARD, GateCard, write_card
from kbtrain.gates.kbm.dev_metrics import dev_metrics
from kbtrain.gates.kbm.gate import KBM, cast_weights
from kbtrain.metrics._part_training_intervals import intervals_of_keys
from kbtrain.models.bases import adapters_in_fp32
from kbtrain.models.nf4 import merged_into_16_bit
from kbtrain.models.precision import NAMES
from kbtrain.prompts.kbm import Key
from kbtrain.records import GateExample
from kbtrain.training.model_card import model_card

TOLERANCE = 1e-5  # of a probability, between the trained model and the one opened from its folder


def write_gate(folder: Path, model: Any, tokenizer: PreTrainedTokenizerBase, card: GateCard) -> PreTrainedModel:
    """Write weights, tokenizer and ``gate.json`` into a new folder; returns the model as it is in there.

    An adapter is saved by itself and, if ``card.merged``, merged into the weights as well.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if card.method != "full":
        model.save_pretrained(folder / ADAPTER)
        (folder / ADAPTER / "README.md").unlink(missing_ok=True)  # peft's empty template: the gate's card says it all
    if card.method == "lora":
        cast_weights(model, NAMES["fp32"])
        model = model.merge_and_unload()
    if card.method == "qlora" and card.merged:
        model = merged_into_16_bit(card.base_model, folder / ADAPTER, model.device.type, NAMES[card.dtype])
    elif card.method == "qlora":
        adapters_in_fp32(model)
    else:
        cast_weights(model, NAMES[card.dtype])
    if card.merged:
        model.config.dtype = NAMES[card.dtype]
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_card(folder, card)
    plain: PreTrainedModel = model
    return plain


def reload_difference(
    folder: Path, kept: dict[Key, list[float]], examples: Sequence[GateExample], device: str
) -> float:
    """Largest difference of a probability between ``kept`` and the model opened from the folder."""
    again = KBM.load(folder, device=device).probabilities(examples)
    return max(abs(a - b) for key in kept for a, b in zip(kept[key], again[key], strict=True))


def save_checked(
    output: Path, model: Any, kbm: KBM, card: GateCard, dev: Sequence[GateExample], spare: Sequence[GateExample]
) -> tuple[float, dict[str, float]]:
    """Save into ``output`` after checking that the saved gate scores ``dev`` (``spare`` if empty) as the trained one.

    ``gate.json`` arrives last: a folder that has it is whole. Returns the largest difference of a probability and the
    saved gate's dev metrics; raises :class:`UserError` above 1e-5, and leaves the folder without a gate.
    """
    tokenizer, staging, probe = kbm.scorer.encoder.tokenizer, output / "saving", dev or spare
    plain = write_gate(staging, model, tokenizer, card).eval()  # scored as a gate, no longer as one in training
    kept = KBM(plain, tokenizer, card.keys, card.max_length).probabilities(probe)
    worst = reload_difference(staging, kept, probe, str(plain.device))
    if not worst <= TOLERANCE:
        raise UserError(
            f"{staging}: the saved gate scores differently from the trained one (by up to {worst:.2g}); "
            "nothing was put into the output folder"
        )
    scores = dev_metrics(dev, kept, card.labels) if dev else {}
    text = model_card(card, scores, worst, len(probe), intervals_of_keys(dev, kept) if dev else None)
    (staging / "README.md").write_text(text, encoding="utf-8")
    for path in sorted(staging.iterdir(), key=lambda p: p.name == CARD):
        target = output / path.name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(path, target)
    staging.rmdir()
    return worst, scores
