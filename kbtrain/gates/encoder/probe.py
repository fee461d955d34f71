"""Probe: a logistic regression on a frozen pretrained encoder's embedding of the current question or turn.

An embedding is pooled as the encoder's maker does: over a text's tokens, or the first token's state.

For turns the regression may also read a dialogue system's state (:mod:`kbtrain.gates.turns`). With few labels
its F1 is above that of fine-tuning (KETOD: studies/notes/evaluation.md); it is fitted in a minute, and has no seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict

from kbtrain.errors import UserError, at
from kbtrain.gate.card import ClassifierCard
from kbtrain.gate.gate import Gate, Reads, logistic
from kbtrain.gates.encoder.gate import turns_only
from kbtrain.gates.registry import QUESTION, TURN, Kind
from kbtrain.gates.turns import LEAST_TURNS, C, dialogue_features, feature_table
from kbtrain.io.jsonl import read_json, read_model
from kbtrain.io.provenance import write_atomically
from kbtrain.models.adapters import open_body, pad_id
from kbtrain.models.batching import padded, windows
from kbtrain.models.weights import check_scores, no_numbers
from kbtrain.records import Example, GateExample
from kbtrain.runtime.cores import one_thread

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Pooling = Literal["mean", "cls"]
_POOLINGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}  # names of sentence-transformers
HEAD = "probe.json"
ENCODER, MAX_LENGTH = "all-minilm-l6-v2", 64  # where neither is chosen: of recipes/configs/encoder_probe_turns.yaml
SPREAD = (
    0.6  # standard deviation of an embedding's number beside 1 of the others (cross-validated: 0.3 to 0.8 are alike)
)
ROWS_PER_BATCH = 64


class ProbeHead(BaseModel):
    """Log odds: ``intercept`` + ``embedding`` . (pooled embedding) + the weights in ``state`` by feature name."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    intercept: float
    embedding: tuple[float, ...]
    state: dict[str, float] = {}


class ProbeInput:
    """Reads the user's last utterance of a turn, or a question; at most ``max_length`` tokens of it.

    ``pooling``: of its tokens' states, as :func:`pooling_of` finds it.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        dialogue_state: bool = False,
        pooling: Pooling = "mean",
    ) -> None:
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.dialogue_state = dialogue_state
        self.pooling: Pooling = pooling

    @property
    def settings(self) -> dict[str, object]:
        """Settings to store with a gate, so that it reads examples the same way."""
        settings: dict[str, object] = {"max_length": self.max_length, "dialogue_state": self.dialogue_state}
        return settings if self.pooling == "mean" else settings | {"pooling": self.pooling}

    def encode(self, examples: Sequence[Example]) -> list[list[int]]:
        """Token ids, special tokens among them."""
        texts = [e.question if isinstance(e, GateExample) else e.context[-1].text for e in examples]
        return token_ids(self.tokenizer, texts, self.max_length)

    def state(self, examples: Sequence[Example]) -> list[dict[str, float]]:
        """Features of the dialogue so far, none where they are not read. Raises :class:`UserError` for questions."""
        if not self.dialogue_state:
            return [{} for _ in examples]
        return [dialogue_features(turn) for turn in turns_only(examples)]


def token_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int) -> list[list[int]]:
    """Of each text at most ``max_length`` token ids, special tokens among them, and never none."""
    ids: list[list[int]] = tokenizer(list(texts), truncation=True, max_length=max_length)["input_ids"]
    nothing = tokenizer.unk_token_id or tokenizer.pad_token_id or 0  # some tokenizers drop all of a text
    return [row or [nothing] for row in ids]


class EncoderProbe(Gate):
    """Score = p(retrieval needed) in [0, 1], at the shares of the classes it was fitted to."""

    name = "encoder_probe"
    reads: frozenset[Reads] = frozenset({"question", "turn"})
    unit = "probability"
    cut = 0  # what is asked now is short: nothing is skipped that would be worth counting

    def __init__(
        self, model: PreTrainedModel, reader: ProbeInput, head: ProbeHead, card: ClassifierCard | None = None
    ) -> None:
        self.model = model
        self.reader = reader
        self.head = head
        self.card: ClassifierCard | None = card
        if reader.dialogue_state:
            self.reads = frozenset({"turn"})

    @classmethod
    def fit(
        cls,
        model: PreTrainedModel,
        reader: ProbeInput,
        examples: Sequence[Example],
        need: Sequence[float],
        weights: tuple[float, float] = (0.5, 0.5),
    ) -> EncoderProbe:
        """``need``: probability of each example that retrieval is needed; ``weights`` of (negative, positive) ones.

        Raises :class:`UserError` for questions where dialogue features shall be read.
        """
        vectors = embeddings(model, reader, examples)
        return cls(model, reader, fit_head(vectors, reader.state(examples), need, weights))

    @classmethod
    def fit_texts(cls, examples: Sequence[Example], need: Sequence[float]) -> EncoderProbe:
        """From texts and labels alone, with the encoder that comes with the package.

        Raises :class:`UserError` for a single class.
        """
        if len(set(need)) < 2:
            raise UserError(f"gate 'encoder_probe': all {len(need)} examples have one label; nothing to learn")
        model, tokenizer = open_body(ENCODER, "auto", "auto")
        reader = ProbeInput(tokenizer, MAX_LENGTH)
        head = fit_head(embeddings(model, reader, examples), reader.state(examples), need)
        card = ClassifierCard(kind="encoder_probe", base_model=ENCODER, reads=reader.settings, labels="soft", seed=0)
        return cls(model, reader, head, card)

    def score_examples(self, examples: Sequence[Example]) -> list[float]:
        """One score per example, in their order. Raises :class:`UserError` if one is not a number, and for questions
        where dialogue features are read."""
        from_text = embeddings(self.model, self.reader, examples) @ list(self.head.embedding)
        weight = self.head.state
        from_state = [sum(weight.get(k, 0.0) * v for k, v in row.items()) for row in self.reader.state(examples)]
        log_odds = [self.head.intercept + float(a) + b for a, b in zip(from_text, from_state, strict=True)]
        check_scores(self.model, examples, log_odds)
        return [logistic(value) for value in log_odds]

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> EncoderProbe:
        """Open a gate's folder; ``dtype`` auto: fp32, in which a score does not depend on its batch."""
        card, path = ClassifierCard.read(folder, "encoder_probe"), Path(folder) / HEAD
        if not path.exists():
            raise UserError(f"{at(path)}: no such file; copy the whole folder")
        head = read_model(path, ProbeHead)
        model, tokenizer = open_body(str(folder), dtype, device)
        return cls(model, card.reader(ProbeInput, tokenizer, folder), head, card)

    def save_beside(self, folder: Path) -> None:
        self.model.save_pretrained(folder)
        self.reader.tokenizer.save_pretrained(folder)
        write_atomically(folder / HEAD, self.head.model_dump_json(indent=1) + "\n")


@one_thread()
def fit_head(
    vectors: np.ndarray,
    states: Sequence[dict[str, float]],
    need: Sequence[float],
    weights: tuple[float, float] = (0.5, 0.5),
) -> ProbeHead:
    """The regression on embeddings (examples, size) and dialogue features; see :meth:`EncoderProbe.fit`."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    names, table = feature_table(states, LEAST_TURNS)
    n, scaler = vectors.shape[1], StandardScaler()
    scaled = scaler.fit_transform(np.hstack([vectors, table]))
    scaled[:, :n] *= SPREAD
    # a soft label is both labels, each with its share; weights around 1, so that the penalty keeps its meaning
    shares = np.concatenate([np.asarray(need) * weights[1], (1 - np.asarray(need)) * weights[0]])
    labels = np.repeat([1, 0], len(need))
    used = shares > 0
    line = LogisticRegression(C=C, max_iter=2000)
    line.fit(np.vstack([scaled, scaled])[used], labels[used], sample_weight=(shares * len(need) / shares.sum())[used])
    slopes = line.coef_[0] / scaler.scale_
    slopes[:n] *= SPREAD
    return ProbeHead(
        intercept=float(line.intercept_[0] - slopes @ scaler.mean_),
        embedding=tuple(slopes[:n].tolist()),
        state=dict(zip(names, slopes[n:].tolist(), strict=True)),
    )


def embeddings(model: PreTrainedModel, reader: ProbeInput, examples: Sequence[Example]) -> np.ndarray:
    """(examples, size): the last layer's states, pooled over each text's tokens; in batches of like length."""
    return pooled_states(model, reader.encode(examples) if examples else [], pad_id(reader.tokenizer), reader.pooling)


def pooling_of(model: str) -> Pooling:
    """How a sentence encoder pools its states, by its ``1_Pooling/config.json``; mean where it has none.

    Raises :class:`UserError` for another way than mean and cls.
    """
    from transformers.utils.hub import cached_file

    from kbtrain.models.load import resolve

    quiet: Any = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    path = cached_file(resolve(model), "1_Pooling/config.json", **quiet)
    if path is None:
        return "mean"
    settings = read_json(Path(path))
    modes = [_POOLINGS.get(name, name) for name, on in settings.items() if name.startswith("pooling_mode_") and on]
    chosen = [str(settings["pooling_mode"])] if "pooling_mode" in settings else modes
    if len(chosen) != 1 or chosen[0] not in get_args(Pooling):
        raise UserError(
            f"{at(path)}: pools by {', '.join(chosen) or 'nothing'}; take an encoder that pools by mean or cls"
        )
    return cast(Pooling, chosen[0])


def pooled_states(
    model: PreTrainedModel, rows: Sequence[Sequence[int]], pad: int, pooling: Pooling = "mean"
) -> np.ndarray:
    """(rows, size): as :func:`embeddings`, of token ids. Raises :class:`UserError` for states that are no numbers."""
    import torch

    pooled = np.zeros((len(rows), int(model.config.hidden_size)))
    order = sorted(range(len(rows)), key=lambda i: (-len(rows[i]), i))
    for batch in windows(order, ROWS_PER_BATCH):
        ids, mask = (x.to(model.device) for x in padded([rows[i] for i in batch], pad))
        with torch.no_grad():
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state.double()
        real = mask.unsqueeze(-1)
        of_batch = states[:, 0] if pooling == "cls" else (states * real).sum(1) / real.sum(1)
        pooled[batch] = of_batch.cpu().numpy()
    if not np.isfinite(pooled).all():
        raise no_numbers(model, "the encoder's states are no numbers; try dtype fp32")
    return pooled


KIND = Kind(ClassifierCard, EncoderProbe.load, QUESTION | TURN, "recipes/train_encoder.py", fit=EncoderProbe.fit_texts)
