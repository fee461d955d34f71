"""RAGate-MHA: its input (table 2) and tokenizer, the gate of its folder, the settings and rows of its training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic import Field

from kbtrain.errors import UserError
from kbtrain.gate.card import ClassifierCard
from kbtrain.gates.encoder.gate import ClassifierGate, Feature, TextReader, feature_value
from kbtrain.gates.registry import QUESTION, TURN, Kind
from kbtrain.prompts.ragate import first_kept, turn_text
from kbtrain.records import Example, GateExample, TurnExample
from kbtrain.training.config import ClassifierConfig
from kbtrain.training.data import ClassifierData, InputTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kbtrain.gates.ragate.mha_model import RagateMHAModel

Inputs = Literal["contx", "contx+know", "contx*know", "contx+resp", "contx+syn-resp"]
_JOINED: dict[Inputs, Feature] = {
    "contx+know": "know", "contx*know": "know", "contx+resp": "resp", "contx+syn-resp": "syn-resp"
}  # fmt: skip
PAD, UNKNOWN, SEPARATOR, NOTHING = "[PAD]", "[UNK]", "[SEP]", "[NONE]"


class MHAInput(TextReader):
    """Encodes turns (or questions, whose reference is the knowledge) for one tokenizer; the oldest turns are cut away.

    ``max_length`` bounds context and what is joined to it; knowledge read on its own has the same bound, its tail cut.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, inputs: Inputs) -> None:
        super().__init__(tokenizer, max_length)
        if inputs not in get_args(Inputs):
            raise ValueError(f"inputs: expected one of {', '.join(get_args(Inputs))}, found {inputs!r:.40}")
        self.inputs: Inputs = inputs
        ids: Any = tokenizer.convert_tokens_to_ids([SEPARATOR, NOTHING])
        self._separator, self._nothing = int(ids[0]), int(ids[1])

    @property
    def settings(self) -> dict[str, object]:
        return {"max_length": self.max_length, "inputs": self.inputs}

    def encode(self, example: Example) -> InputTokens:
        """Raises :class:`UserError` if the example lacks what the input needs."""
        read = self.ids(joined_text(example, self.inputs)) if self.inputs != "contx" else []
        joined = [self._separator, *read][: self.max_length // 2] if "+" in self.inputs and read else []
        turns = [self.turn_ids(text) for text in context_turns(example)]
        start = first_kept([len(turn) for turn in turns], self.max_length - len(joined))
        newest = turns[start:] or [turns[-1][-(self.max_length - len(joined)) :]]
        ids = [token for turn in newest for token in turn] or [self._nothing]
        other = (tuple(read[: self.max_length]) or (self._nothing,)) if "*" in self.inputs else ()
        return InputTokens((*ids, *joined), other=other, cut=min(start, len(turns) - 1))


def context_turns(example: Example) -> list[str]:
    """Earlier utterances, oldest first; of a question: itself."""
    if isinstance(example, GateExample):
        return [example.question]
    return [turn_text(utterance) for utterance in example.context]


def joined_text(example: Example, inputs: Inputs) -> str:
    """The text of what is read beside the context."""
    if isinstance(example, TurnExample):
        return feature_value(example, _JOINED[inputs])
    if inputs not in ("contx+know", "contx*know"):
        raise UserError(f"example '{example.id}': a question has no response; use contx or contx+know")
    return example.reference or ""


def train_tokenizer(examples: Iterable[Example], inputs: Inputs, vocabulary: int) -> PreTrainedTokenizerBase:
    """Byte-pair encoding of lower-cased words, from all that the training examples' input holds.

    Padding, unknown words, separator and "no knowledge" have ids of their own (0 to 3). The same texts give the same
    tokenizer in every process (WordPiece's trainer breaks ties at random).
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, UNKNOWN, SEPARATOR, NOTHING]
    words: Any = Tokenizer(models.BPE(unk_token=UNKNOWN))
    words.normalizer = normalizers.BertNormalizer(lowercase=True)
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, min_frequency=2, show_progress=False)
    words.train_from_iterator(_texts(examples, inputs), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token=PAD, unk_token=UNKNOWN, sep_token=SEPARATOR)


def _texts(examples: Iterable[Example], inputs: Inputs) -> Iterator[str]:
    """Each utterance of a dialogue once, although it is in the context of all later turns; dialogues that share a name,
    since they begin alike, may differ at the same place."""
    yielded: set[tuple[str, tuple[int, str]]] = set()
    for example in examples:
        dialogue = example.dialogue_id if isinstance(example, TurnExample) else example.id
        for place in enumerate(context_turns(example)):
            if (dialogue, place) not in yielded:
                yielded.add((dialogue, place))
                yield place[1]
        if inputs != "contx":
            yield joined_text(example, inputs)


class RagateMHA(ClassifierGate):
    """Score = p(retrieval needed) in [0, 1], the second class's share of a softmax. ``cut`` counts turns skipped."""

    name = "ragate_mha"
    CLASSES = 2
    TOKENS_PER_BATCH = 16384

    def __init__(self, model: RagateMHAModel, reader: MHAInput, card: ClassifierCard | None = None) -> None:
        super().__init__(model, reader, card)
        self.needs_evidence = "know" in reader.inputs

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> RagateMHA:
        """Open a gate's folder; always fp32, in which a score does not depend on its batch."""
        from transformers import PreTrainedTokenizerFast

        from kbtrain.gates.ragate.mha_model import RagateMHAModel
        from kbtrain.models.load import choose_device
        from kbtrain.models.weights import open_weights, opening

        card = ClassifierCard.read(folder, "ragate_mha")
        with opening(folder, str(folder)):
            model: Any = open_weights(RagateMHAModel, str(folder), str(folder))
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        return cls(model.to(choose_device(device)).eval(), card.reader(MHAInput, tokenizer, folder), card)


class MHAConfig(ClassifierConfig):
    """Settings of one network and its training."""

    model: None = Field(None, description="not used: the network is trained from scratch")  # type: ignore[assignment]
    inputs: Inputs = Field("contx", description="contx, contx+know, contx*know, contx+resp or contx+syn-resp")
    layers: int = Field(5, ge=1, description="layers of the encoder")
    heads: int = Field(4, ge=1, description="attention heads")
    d_model: int = Field(64, ge=2, description="embedding size and width of the feed-forward network")
    dropout: float = Field(0.1, ge=0, lt=1, description="after embedding, attention and feed-forward network")
    vocabulary: int = Field(8000, ge=300, description="largest number of tokenizer entries")
    max_length: int = Field(512, ge=16, description="longest input, in tokens; the oldest turns are cut")
    epochs: float = Field(50, gt=0, le=1e6, description="passes over the training examples")
    device_batch_size: int = Field(32, ge=1, description="rows per device and forward pass")
    learning_rate: float = Field(5e-4, gt=0, le=1, description="peak learning rate")


def mha_input(config: MHAConfig, data: ClassifierData) -> MHAInput:
    """Input with a tokenizer trained on the training examples: the same in every process."""
    tokenizer = train_tokenizer((row.example for row in data.train), config.inputs, config.vocabulary)
    return MHAInput(tokenizer, config.max_length, config.inputs)


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


KIND = Kind(ClassifierCard, RagateMHA.load, QUESTION | TURN, "recipes/train_ragate_mha.py")
