"""RAGate-MHA's training speed: our network in batches of like length against the same on nn.TransformerEncoder,
its batches in file order and padded to their longest.

Both train (forward, backward, Adam) on the same turns with the same tokenizer, batch size and sizes, in fp32, in turn
in one process; before that their logits are compared. Prints examples a second and the ratio; the ratio's two causes,
less padding and leaner layers, are told apart by running our network in file order too.

Examples:
  python benchmarks/mha.py --turns runs/ketod/turns.jsonl
  python benchmarks/mha.py --turns runs/ketod/turns.jsonl --d-model 256 --layers 8 --examples 640
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.jsonl import read
from kbtrain.records import TurnExample


class MHABenchmarkConfig(Config):
    turns: Path = Field(description="turns.jsonl; its first train turns are used")
    examples: int = Field(1280, ge=2, description="turns, in file order")
    batch: int = Field(32, ge=1, description="turns a step")
    layers: int = Field(5, ge=1, description="layers")
    heads: int = Field(4, ge=1, description="attention heads")
    d_model: int = Field(64, ge=2, description="embedding size")
    max_length: int = Field(512, ge=16, description="tokens")
    vocabulary: int = Field(8000, ge=300, description="entries of the tokenizer")
    repeats: int = Field(3, ge=1, description="epochs of each, in turn; the median counts")


def main(config: MHABenchmarkConfig) -> None:
    turns = [turn for turn in read(TurnExample, config.turns) if turn.split == "train"][: config.examples]
    if len(turns) < config.batch:
        raise UserError(f"{config.turns}: {len(turns)} train turns, fewer than one batch")
    import torch
    from mha_epochs import difference, epoch
    from mha_reference import ReferenceMHA, copy_weights

    from kbtrain.gates.ragate.mha import MHAInput, train_tokenizer
    from kbtrain.gates.ragate.mha_model import RagateMHAConfig, RagateMHAModel
    from kbtrain.training.base_trainer import epoch_order
    from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierRow

    tokenizer: Any = train_tokenizer(turns, "contx", config.vocabulary)
    reader = MHAInput(tokenizer, config.max_length, "contx")
    rows = [ClassifierRow(reader.encode(turn).ids, need=float(bool(turn.label))) for turn in turns]
    torch.manual_seed(0)
    network = RagateMHAConfig(
        vocab_size=len(tokenizer), d_model=config.d_model, n_layers=config.layers, n_heads=config.heads
    )
    ours, reference = RagateMHAModel(network), ReferenceMHA(network)
    copy_weights(ours, reference)
    collator = ClassifierCollator(network.pad_token_id)
    print(f"largest difference of a logit: {difference(ours, reference, collator.inputs(rows[:8])):.1e}")
    in_order = [rows[i : i + config.batch] for i in range(0, len(rows), config.batch)]
    order = epoch_order([len(row.ids) for row in rows], config.batch, 0, 0)
    alike = [[rows[i] for i in order[j : j + config.batch]] for j in range(0, len(order), config.batch)]
    ways: dict[str, tuple[Any, Any, list[list[ClassifierRow]]]] = {
        "nn.TransformerEncoder, file order": (reference, lambda b: reference(**b), in_order),
        "ours, file order": (ours, lambda b: ours(**b).logits, in_order),
        "ours, like length": (ours, lambda b: ours(**b).logits, alike),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(config.repeats):
        for name, (model, logits, batches) in ways.items():
            seconds[name].append(epoch(model, logits, batches, collator))
    rates = {name: len(rows) / statistics.median(values) for name, values in seconds.items()}
    base = rates["nn.TransformerEncoder, file order"]
    for name, rate in rates.items():
        print(f"{name}: {rate:.0f} examples/s, {rate / base:.2f} of nn.TransformerEncoder")
    print(f"{len(rows)} turns of {sum(len(r.ids) for r in rows) / len(rows):.0f} tokens, batches of {config.batch}, "
          f"{torch.get_num_threads()} threads; ratio {rates['ours, like length'] / base:.2f}")  # fmt: skip


if __name__ == "__main__":
    run_script(main, MHABenchmarkConfig, __doc__)
