"""RAGate-MHA as a gate: its folder with network, tokenizer and input settings; its tokenizer and inputs (table 2)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kbtrain.errors import UserError
from kbtrain.gate.card import ClassifierCard
from kbtrain.gate.gate import Gate, Reads
from kbtrain.gates.encoder.input import knowledge_text, require_feature
from kbtrain.io.files import beside, put_in_place
from kbtrain.models.batching import like_length
from kbtrain.prompts.ragate import first_kept, turn_text
from kbtrain.records import Example, GateExample, TurnExample

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from kbtrain.gates.ragate.mha_model import RagateMHAModel

Inputs = Literal["contx", "contx+know", "contx*know", "contx+resp", "contx+syn-resp"]
PAD, UNKNOWN, SEPARATOR, NOTHING = "[PAD]", "[UNK]", "[SEP]", "[NONE]"


@dataclass(frozen=True)
class MHATokens:
    """Tokens of the input and, where the knowledge is read on its own (contx*know), of the knowledge."""

    ids: tuple[int, ...]
    other: tuple[int, ...] = ()
    cut: int = 0


class MHAInput:
    """Encodes turns (or questions, whose reference is the knowledge) for one tokenizer; the oldest turns are cut away.

    ``max_length`` bounds context and what is joined to it; knowledge read on its own has the same bound, its tail cut.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int, inputs: Inputs) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.inputs: Inputs = inputs
        ids: Any = tokenizer.convert_tokens_to_ids([SEPARATOR, NOTHING])
        self._separator, self._nothing = int(ids[0]), int(ids[1])
        self._turns: dict[str, list[int]] = {}

    @property
    def settings(self) -> dict[str, object]:
        """Settings to store with a gate, so that it reads examples the same way."""
        return {"max_length": self.max_length, "inputs": self.inputs}

    def encode(self, example: Example) -> MHATokens:
        """Raises :class:`UserError` if the example lacks what the input needs."""
        joined = self._ids(joined_text(example, self.inputs)) if "+" in self.inputs else []
        joined = [self._separator, *joined][: self.max_length // 2] if joined else []
        turns = [self._cached_ids(text) for text in context_turns(example)]
        start = first_kept([len(turn) for turn in turns], self.max_length - len(joined))
        newest = turns[start:] or [turns[-1][-(self.max_length - len(joined)) :]]
        ids = [token for turn in newest for token in turn] or [self._nothing]
        other: tuple[int, ...] = ()
        if "*" in self.inputs:
            other = tuple(self._ids(joined_text(example, self.inputs))[: self.max_length]) or (self._nothing,)
        return MHATokens((*ids, *joined), other, min(start, len(turns) - 1))

    def _cached_ids(self, text: str) -> list[int]:
        if text not in self._turns:
            self._turns[text] = self._ids(text)
        return self._turns[text]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return ids


def context_turns(example: Example) -> list[str]:
    """Earlier utterances, oldest first; of a question: itself."""
    if isinstance(example, GateExample):
        return [example.question]
    return [turn_text(utterance) for utterance in example.context]


def joined_text(example: Example, inputs: Inputs) -> str:
    """The text of what is read beside the context."""
    if isinstance(example, GateExample):
        if inputs not in ("contx+know", "contx*know"):
            raise UserError(f"example '{example.id}': a question has no response; use contx or contx+know")
        return example.reference or ""
    if inputs == "contx+resp":
        return require_feature(example.response, example, "resp")
    if inputs == "contx+syn-resp":
        return require_feature(example.synthetic_response, example, "syn-resp")
    return knowledge_text(example)


def train_tokenizer(examples: Iterable[Example], inputs: Inputs, vocabulary: int) -> PreTrainedTokenizerBase:
    """Byte-pair encoding of lower-cased words, from all that the training examples' input holds.

    Padding, unknown words, separator and "no knowledge" have ids of their own (0 to 3). The same texts give the same
    tokenizer in every process (WordPiece's trainer breaks ties at random).
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, UNKNOWN, SEPARATOR, NOTHING]
    made_: Any = Tokenizer(models.BPE(unk_token=UNKNOWN))
    made_.normalizer = normalizers.BertNormalizer(lowercase=True)
    made_.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=special, min_frequency=2, show_progress=False)
    made_.train_from_iterator(_texts(examples, inputs), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made_, pad_token=PAD, unk_token=UNKNOWN, sep_token=SEPARATOR)


def kept_tokenizer(path: Path, train: Callable[[], PreTrainedTokenizerBase]) -> PreTrainedTokenizerBase:
    """The tokenizer of a training that resumes, from ``path``; else ``train`` makes it, and it is kept there.

    Its weights belong to the entries' numbers, which another version of the library may give out otherwise.
    """
    from transformers import PreTrainedTokenizerFast

    if not path.exists():
        tokenizer: Any = train()
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = beside(path, ".partial")
        tokenizer.backend_tokenizer.save(str(partial))
        put_in_place(partial, path)
    return PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token=PAD, unk_token=UNKNOWN, sep_token=SEPARATOR)


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


TOKENS_PER_BATCH = 16384  # rows x longest: bounds memory


class RagateMHA(Gate):
    """Score = p(retrieval needed) in [0, 1], the second class's share of a softmax. ``cut`` counts turns skipped."""

    name = "ragate_mha"
    reads: frozenset[Reads] = frozenset({"question", "turn"})
    unit = "probability"

    def __init__(self, model: RagateMHAModel, reader: MHAInput, card: ClassifierCard | None = None) -> None:
        self.model = model
        self.reader = reader
        self.card: ClassifierCard | None = card
        self.needs_evidence = "know" in reader.inputs
        self.cut = 0

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

    def save_beside(self, folder: Path) -> None:
        """Write weights and tokenizer: all that the folder needs beside its card."""
        self.model.save_pretrained(folder)
        self.reader.tokenizer.save_pretrained(folder)

    def score_examples(self, examples: Sequence[Example]) -> list[float]:
        rows = [self.reader.encode(example) for example in examples]
        self.cut += sum(row.cut for row in rows)
        scores = [0.0] * len(rows)
        was_training = self.model.training
        self.model.train(False)
        for batch in like_length([max(len(row.ids), len(row.other)) for row in rows], TOKENS_PER_BATCH):
            for i, p in zip(batch, self._probabilities([rows[i] for i in batch]), strict=True):
                scores[i] = p
        self.model.train(was_training)
        if bad := [example.id for example, p in zip(examples, scores, strict=True) if not math.isfinite(p)]:
            raise UserError(f"example '{bad[0]}' (and {len(bad) - 1} more): the model gives no number")
        return scores

    def _probabilities(self, rows: Sequence[MHATokens]) -> list[float]:
        import torch

        from kbtrain.training.classifier_trainer import ClassifierCollator, ClassifierRow, need_logit

        batch = ClassifierCollator(self.model.config.pad_token_id).inputs(
            [ClassifierRow(row.ids, other=row.other) for row in rows]
        )
        with torch.no_grad():
            logits = self.model(**{k: v.to(self.model.device) for k, v in batch.items()}).logits
        return [float(p) for p in torch.sigmoid(need_logit(logits.double(), 2))]
