"""Training of RAGate-MHA: its settings, its tokenizer, a network of random weights, and rows."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import Field

from kbtrain.gates.ragate.mha import Inputs, MHAInput, RagateMHA, kept_tokenizer, train_tokenizer
from kbtrain.training.config import ClassifierConfig
from kbtrain.training.data import ClassifierData

if TYPE_CHECKING:
    from kbtrain.training.classifier_trainer import ClassifierRow


class MHAConfig(ClassifierConfig):
    """Settings of one network and its training."""

    model: None = Field(None, description="none: the network is trained from nothing")  # type: ignore[assignment]
    inputs: Inputs = Field("contx", description="contx, contx+know, contx*know, contx+resp or contx+syn-resp")
    layers: int = Field(5, ge=1, description="layers of the encoder")
    heads: int = Field(4, ge=1, description="attention heads")
    d_model: int = Field(64, ge=2, description="embedding size and width of the feed-forward network")
    dropout: float = Field(0.1, ge=0, lt=1, description="after embedding, attention and feed-forward network")
    vocabulary: int = Field(8000, ge=300, description="entries of the tokenizer, at most")
    max_length: int = Field(512, ge=16, description="tokens; the oldest turns are cut away")
    epochs: float = Field(50, gt=0, le=1e6, description="passes over the training examples")
    device_batch_size: int = Field(32, ge=1, description="rows per device and forward pass")
    learning_rate: float = Field(5e-4, gt=0, le=1, description="peak learning rate")


def mha_input(config: MHAConfig, data: ClassifierData) -> MHAInput:
    """Input with a tokenizer trained by the first rank, which a resumed run takes from its checkpoints."""
    from kbtrain.training.processes import main_first

    examples, tokenizer_path = [row.example for row in data.train], config.output / "checkpoints" / "tokenizer.json"
    new = partial(train_tokenizer, examples, config.inputs, config.vocabulary)
    return MHAInput(main_first(lambda: kept_tokenizer(tokenizer_path, new)), config.max_length, config.inputs)


def new_gate(config: MHAConfig, reader: MHAInput, device: str) -> RagateMHA:
    """A gate whose network has random weights, a function of the seed."""
    from transformers import set_seed

    from kbtrain.gates.ragate.mha_model import RagateMHAConfig, RagateMHAModel

    set_seed(config.seed)
    network = RagateMHAConfig(
        vocab_size=len(reader.tokenizer), d_model=config.d_model, n_layers=config.layers, n_heads=config.heads,
        dropout=config.dropout, attends_to="knowledge" if "*" in reader.inputs else "self",
        pad_token_id=reader.tokenizer.pad_token_id,
    )  # fmt: skip
    model: Any = RagateMHAModel(network)
    return RagateMHA(model.to(device), reader)


def mha_rows(reader: MHAInput, data: ClassifierData) -> list[ClassifierRow]:
    """Training rows: tokens of the input and of knowledge read on its own."""
    from kbtrain.training.classifier_trainer import ClassifierRow

    encoded = [(reader.encode(row.example), row.need) for row in data.train]
    return [ClassifierRow(read.ids, other=read.other, need=need) for read, need in encoded]
