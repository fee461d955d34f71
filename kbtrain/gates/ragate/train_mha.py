"""Training of RAGate-MHA: its tokenizer, a network of random weights, and rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.gates.ragate.mha import Inputs, MHAInput, RagateMHA, kept_tokenizer, train_tokenizer
from kbtrain.training.data import ClassifierData

if TYPE_CHECKING:
    from kbtrain.training.classifier_trainer import ClassifierRow


def mha_input(output: Path, data: ClassifierData, inputs: Inputs, vocabulary: int, max_length: int) -> MHAInput:
    """Input with a tokenizer trained by the first rank, which a run that goes on takes from its checkpoints."""
    from kbtrain.training.processes import main_first

    examples, kept = [row.example for row in data.train], output / "checkpoints" / "tokenizer.json"
    tokenizer = main_first(lambda: kept_tokenizer(kept, lambda: train_tokenizer(examples, inputs, vocabulary)))
    return MHAInput(tokenizer, max_length, inputs)


def new_gate(
    reader: MHAInput, device: str, layers: int, heads: int, d_model: int, dropout: float, seed: int
) -> RagateMHA:
    """A gate whose network has random weights, a function of the seed."""
    from transformers import set_seed

    from kbtrain.gates.ragate.mha_model import RagateMHAConfig, RagateMHAModel

    set_seed(seed)
    network = RagateMHAConfig(
        vocab_size=len(reader.tokenizer), d_model=d_model, n_layers=layers, n_heads=heads, dropout=dropout,
        attends_to="knowledge" if "*" in reader.inputs else "self", pad_token_id=reader.tokenizer.pad_token_id,
    )  # fmt: skip
    model: Any = RagateMHAModel(network)
    return RagateMHA(model.to(device), reader)


def mha_rows(reader: MHAInput, data: ClassifierData) -> list[ClassifierRow]:
    """Training rows: tokens of the input and of knowledge read on its own."""
    from kbtrain.training.classifier_trainer import ClassifierRow

    encoded = [(reader.encode(row.example), row.need) for row in data.train]
    return [ClassifierRow(read.ids, other=read.other, need=need) for read, need in encoded]
