"""The end of RAGate-PEFT's training: the adapter to disk, opened again, and the scores must be the same."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError
from kbtrain.folder import ADAPTER, CARD
from kbtrain.gates.ragate.peft import MERGED, RagatePeft
from kbtrain.gates.ragate.ragate_peft_folder import RagatePeftCard, write_peft_card
from kbtrain.models.nf4 import merged_into_16_bit
from kbtrain.records import TurnExample

TOLERANCE = 1e-6  # of a probability, between the trained gate and the one opened from its folder


def save_peft(
    output: Path,
    gate: RagatePeft,
    card: RagatePeftCard,
    probe: Sequence[TurnExample],
    kept: Sequence[float],
    text: Callable[[float], str],
) -> float:
    """Write adapter, tokenizer, model card (``text`` of the reload check's
    difference) and ``gate.json``; ``kept`` are ``gate``'s scores of ``probe``.

    ``gate.json`` arrives last: a folder that has it is whole. Returns the largest difference of a score; raises
    :class:`UserError` above 1e-6, and leaves the folder without a gate.
    """
    staging, model = output / "saving", gate.scorer.model
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    model.save_pretrained(staging / ADAPTER)
    (staging / ADAPTER / "README.md").unlink(missing_ok=True)  # peft's empty template: the gate's card says it all
    tokenizer = gate.prompts.encoder.tokenizer
    tokenizer.save_pretrained(staging)
    write_peft_card(staging, card)
    again = RagatePeft.load(staging, device=model.device.type).score(probe)
    worst = max(abs(a - b) for a, b in zip(kept, again, strict=True))
    if not worst <= TOLERANCE:
        raise UserError(
            f"{staging}: the saved gate scores differently from the trained one (by up to {worst:.2g}); "
            "nothing was put into the output folder"
        )
    if card.merged:
        write_merged(staging / MERGED, card, staging / ADAPTER, model.device.type, tokenizer)
    (staging / "README.md").write_text(text(worst), encoding="utf-8")
    for path in sorted(staging.iterdir(), key=lambda p: p.name == CARD):
        target = output / path.name
        if target.is_dir():
            shutil.rmtree(target)
        os.replace(path, target)
    staging.rmdir()
    return worst


def write_merged(folder: Path, card: RagatePeftCard, adapter: Path, device: str, tokenizer: Any) -> None:
    """A model of its own in 16 bits, for other software. Its scores differ from the gate's by rounding."""
    import torch

    if card.method == "qlora":
        model: Any = merged_into_16_bit(card.base_model, adapter, device, torch.bfloat16)
    else:
        from peft import PeftModel

        from kbtrain.gates.kbm.gate import cast_weights
        from kbtrain.models.load import load_model

        base, _ = load_model(card.base_model, "fp32", device)
        model = PeftModel.from_pretrained(base, str(adapter)).merge_and_unload()
        cast_weights(model, torch.bfloat16)
        model.config.dtype = torch.bfloat16
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
