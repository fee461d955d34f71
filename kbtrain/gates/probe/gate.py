"""Probe: linear heads on the answering model's own states under the very prompt that it answers.

One prefill of the prompt, which the answer needs anyway, and a dot product. Source: "No Answer Needed" (arXiv
2509.10625) predicts whether the answer will be right; soft labels and the head for benefit are kbtrain's. A draft probe
reads on while the model begins its answer (:mod:`kbtrain.llm.sampler.hidden_states`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from kbtrain.arrays import States
from kbtrain.errors import UserError, at
from kbtrain.gate.card import CARD, KeyedCard, Stage
from kbtrain.gate.gate import KeyedGate, logistic
from kbtrain.gates.answering import open_base_model
from kbtrain.gates.probe.head import Head, Method
from kbtrain.gates.probe.states import STATES, draft_states, greedy_rows, prompt_states
from kbtrain.io.provenance import MODEL_FILES
from kbtrain.models.files_read import digest
from kbtrain.prompts.kbm import evidence_text
from kbtrain.prompts.own import OwnPrompts, asked_fingerprint, asked_ids
from kbtrain.records import NEEDS_RETRIEVAL, GateExample, Statistic, Target

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from kbtrain.llm.sampler.observer import Observer, PromptRows, Row
    from kbtrain.llm.sampler.sampler import BatchSampler
    from kbtrain.llm.served_states import StatesServer

WEIGHTS = "probe.safetensors"
_PARTS = ("weight", "layers", "intercept")  # tensors of a head
Asked = Literal["llm", "draft", "rag"]
DRAFT_TOKENS = 16  # as of the gate ``draft``; TARG (arXiv 2511.09803) tries 10, 20 and 30, by default 20
MAX_DRAFTED = 2048  # tokens of a prompt behind which is drafted


class LayerFigures(BaseModel):
    """One layer, cross-validated on the training questions: correlation of its predictions with the labels, their
    AUROC of the hard label (None: only one class), and the penalty."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    layer: int
    held_out: float
    auroc: float | None
    penalty: float | None
    used: bool


class ProbeCard(KeyedCard):
    """``condition``: what is read, the plain prompt (``llm``), the draft behind it, too, or the prompt with passages.

    ``heads``: figures of every layer that was tried, by key. The weights are beside it; the states are those of
    ``base_model``, which is needed to open it. ``answered_by``: the model whose answers made the labels, where that is
    another one and ``base_model`` only reads the question; None: ``base_model`` answers.
    """

    PREFIX = "probe"
    STATISTIC: ClassVar[Statistic] = "prompt_states"
    NO_SCORE = KeyedCard.NO_SCORE | {"heads", "answered_by"}
    kind: Literal["probe"] = "probe"
    base_model: str
    base_fingerprint: str
    answered_by: str | None = None
    dtype: str
    prompt_fingerprint: str
    condition: Literal["llm", "rag"] = "llm"
    method: Method
    labels: Literal["hard", "soft"]
    keys: tuple[Target, ...] = Field(min_length=1)
    heads: dict[Target, tuple[LayerFigures, ...]]

    def check_base(self, folder: Path | str) -> None:
        from kbtrain.models.adapters import check_base_of_adapter

        check_base_of_adapter(self.base_model, self.base_fingerprint, str(Path(folder) / CARD), what="the probe")

    def answering_models(self) -> tuple[str, ...]:
        return (self.answered_by or self.base_model,)

    @property
    def stage(self) -> Stage:
        """After the prefill of the answer's own prompt, or its draft; a reader's pass needs no answering model."""
        if self.condition == "rag":
            return "search"
        moments: dict[Statistic, Stage] = {"prompt_states": "prefill", "draft_states": "draft"}
        return moments[self.STATISTIC] if self.statistics else "question"

    @property
    def statistics(self) -> frozenset[Statistic]:
        """States of the plain prompt where ``base_model`` answers; else the probe has its own pass."""
        own_pass = self.answered_by is not None or self.condition == "rag"
        return frozenset() if own_pass else frozenset({self.STATISTIC})

    def layers_read(self, folder: Path) -> set[int]:
        heads = load_heads(folder / WEIGHTS, self.keys)
        return {layer for head in heads.values() for layer in head.layers}

    @property
    def within_answer(self) -> bool:
        """Of the plain prompt of the model that answers, in fp32: in 16 bits a probe has its own pass."""
        return bool(self.statistics) and self.dtype == "fp32"


class DraftProbeCard(ProbeCard):
    """The card of a probe that reads a draft of ``tokens`` tokens at most."""

    PREFIX = "draft_probe"
    STATISTIC = "draft_states"
    kind: Literal["draft_probe"] = "draft_probe"  # type: ignore[assignment]  # narrower: the card cannot be changed
    condition: Literal["draft"] = "draft"  # type: ignore[assignment]
    tokens: int = Field(DRAFT_TOKENS, ge=1, le=64)


class Reader:
    """The answering model as a reader: prompts of examples, and their states at some layers.

    Condition ``draft`` also reads the model's draft of its answer, of at most ``draft_tokens`` tokens; ``rag`` the
    passages, too, if there are any. ``own``: the product's templates, if the model answers to such. ``spent`` counts
    drafts and their generated tokens.
    """

    server: StatesServer | None = None  # that gives the states
    condition: Asked = "llm"

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        condition: Asked = "llm",
        templates: OwnPrompts | None = None,
        draft_tokens: int = DRAFT_TOKENS,
    ) -> None:
        self.own = templates
        self.model = model
        self.tokenizer = tokenizer
        self.condition = condition
        self.draft_tokens = draft_tokens if condition == "draft" else 0
        self.spent: Counter[str] = Counter()

    def prompts(self, examples: Sequence[GateExample]) -> list[list[int]]:
        shown = self.condition == "rag"
        texts = (evidence_text(example.hits, example.titles) if shown else None for example in examples)
        return [asked_ids(self.tokenizer, *asked, self.own) for asked in zip(examples, texts, strict=True)]

    def states(self, examples: Sequence[GateExample], layers: Sequence[int]) -> States:
        """(examples, layers, d). In 16 bits each prompt has its own pass, as a question that is asked alone.

        There the batch moves a state by rounding, and with it one decision in twelve. In fp32 it moves none.
        """
        prompts = self.prompts(examples)
        if batches_alike(self.model):
            return self.read(prompts)[:, list(layers)]
        return np.concatenate([self.read([ids])[:, list(layers)] for ids in prompts])

    @property
    def width(self) -> int:
        """Numbers of a layer's states: those of the prompt's, the draft's mean and the draft's last state together."""
        from kbtrain.llm.sampler.hidden_states import PARTS

        return int(self.model.config.get_text_config().hidden_size) * (PARTS if self.draft_tokens else 1)

    @property
    def facts(self) -> dict[str, str]:
        """Facts that its states depend on beside model, number format and prompt."""
        return draft_facts(self.draft_tokens) if self.draft_tokens else {}

    @cached_property
    def sampler(self) -> BatchSampler:
        from kbtrain.llm.base import Sampling
        from kbtrain.llm.sampler.sampler import BatchSampler

        return BatchSampler(self.model, self.tokenizer, Sampling(max_new_tokens=self.draft_tokens))

    def read(self, prompts: Sequence[Sequence[int]]) -> States:
        """(prompts, layers, width) of every layer, in batches: for training, and for scores in fp32.

        Raises :class:`UserError` for a prompt that is too long to be drafted behind.
        """
        if not self.draft_tokens:
            return prompt_states(self.model, prompts)
        self.check_room(prompts)
        states, tokens = draft_states(self.sampler, prompts)
        self.spent.update(requests=len(tokens), tokens=sum(tokens))
        return states

    def check_room(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise :class:`UserError` for a prompt that is too long to be drafted behind."""
        longest = max(map(len, prompts), default=0)
        if longest > MAX_DRAFTED:
            raise UserError(f"a prompt of {longest} tokens; there is room for {MAX_DRAFTED} before a draft")


def batches_alike(model: PreTrainedModel) -> bool:
    """True if a state hardly depends on what else is in its batch: the model computes in 32 bits."""
    return model.dtype.itemsize >= 4


def dtype_in_use(dtype: str, device: str) -> str:
    """Number format in which a probe reads where ``dtype`` is auto: fp32 on a CPU, else the model's own.

    On a CPU batches in fp32 take less time than passes one by one in bf16, and their scores are better.
    """
    return "fp32" if dtype == "auto" and device == "cpu" else dtype


class Probe(KeyedGate):
    """Score of a key: 1 - mastery, 1 - certainty, or benefit as the head predicts it (ridge: not bounded to [0, 1]).

    A logistic head states probabilities.
    """

    prefix = "probe"
    card_type: ClassVar[type[ProbeCard]] = ProbeCard

    def __init__(
        self,
        reader: Reader,
        heads: Mapping[Target, Head],
        method: Method,
        card: ProbeCard | None = None,
        key: Target | None = None,
    ) -> None:
        self.reader, self.server, self.spent = reader, reader.server, reader.spent
        self.needs_evidence = reader.condition == "rag"
        self.heads = dict(heads)
        self.method = method
        self.keys = tuple(self.heads)
        self.key = self.keys[0] if key is None else key
        self.card: ProbeCard | None = card
        self.unit = "probability" if method == "logistic" else None
        self.layers = sorted({layer for head in self.heads.values() for layer in head.layers})

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> Probe:
        """Open a gate's folder with the model it names; ``dtype`` auto: as its scores were measured.

        Raises :class:`UserError` for another base model than it was fitted to, and for other prompts.
        """
        card = cls.card_type.read(folder)
        card.check_base(folder)
        heads = load_heads(Path(folder) / WEIGHTS, card.keys)
        model, tokenizer = open_base_model(card, folder, dtype, device)
        templates = card.own_prompts()
        card.check_prompts(asked_fingerprint(tokenizer, templates), folder, model=card.base_model)
        reader = Reader(model, tokenizer, card.condition, templates, getattr(card, "tokens", 0))
        check_layers(heads, reader, Path(folder) / WEIGHTS)
        return cls(reader, heads, card.method, card, card.best_key())

    def scores_by_name(self, examples: Sequence[GateExample]) -> dict[str, list[float]]:
        if not examples:
            return {f"{self.prefix}_{key}": [] for key in self.keys}
        return self.scores_of_states(self.reader.states(examples, self.layers))

    def scores_of_states(self, states: States) -> dict[str, list[float]]:
        return {f"{self.prefix}_{key}": self.scores_of(states, key) for key in self.keys}

    @property
    def one_pass(self) -> Any:
        return None if self.needs_evidence else (id(self.server or self.reader.model), self.reader.own)

    @property
    def draft_tokens(self) -> int:
        return self.reader.draft_tokens

    def drafter(self) -> BatchSampler:
        return self.reader.sampler

    def rows_to_draw(self, examples: Sequence[GateExample]) -> list[PromptRows]:
        prompts = self.reader.prompts(examples)
        self.reader.check_room(prompts)
        return greedy_rows(prompts)

    def observer(self) -> Observer:
        from kbtrain.llm.sampler.hidden_states import StatesObserver

        return StatesObserver(self.draft_tokens, self.layers)

    def scores_of_rows(self, rows: Sequence[Row], observer: Observer) -> dict[str, list[float]]:
        return self.scores_of_states(np.stack([row.notes[observer].states() for row in rows])[..., : self.reader.width])

    def scores_of(self, states: States, key: Target) -> list[float]:
        """Scores of a key from states (n, layers, d) of all layers that the heads read, in their order."""
        head = self.heads[key]
        predicted = head.predict(states[:, [self.layers.index(layer) for layer in head.layers]])
        return need_scores(predicted.tolist(), key, self.method)


class DraftProbe(Probe):
    """A probe that reads the beginning of the model's own greedy answer, too: later, and the surer for it.

    Where retrieval is not needed the draft is the answer's beginning, and mostly the whole of it.
    """

    prefix = "draft_probe"
    card_type = DraftProbeCard


def need_scores(predicted: Sequence[float], key: Target, method: Method) -> list[float]:
    """Scores, higher = retrieval more needed, from what a head predicts."""
    values = [logistic(value) for value in predicted] if method == "logistic" else list(predicted)
    return values if key in NEEDS_RETRIEVAL else [1 - value for value in values]


def state_folder(run: Path, condition: Asked) -> Path:
    """The folder of a run in which the states of its prompts are kept."""
    return run / STATES / condition


def state_facts(fingerprint: str, dtype: str, model: str | None = None) -> dict[str, str]:
    """Facts that states depend on beside the prompt's tokens; ``model``: its name, by which all of its files count."""
    files = digest(model) if model else ""
    return {"model": fingerprint, "dtype": dtype, **({MODEL_FILES: files} if files else {})}


def draft_facts(tokens: int) -> dict[str, str]:
    """Facts that the states of drafts depend on besides: the longest draft."""
    return {"draft": str(tokens)}


def save_heads(path: Path, heads: Mapping[Target, Head]) -> None:
    """Weights, layers and intercepts of all heads, safetensors."""
    tensors: dict[str, Any] = {}
    for key, head in heads.items():
        tensors[f"{key}.weight"] = head.weight
        tensors[f"{key}.layers"] = np.asarray(head.layers, dtype=np.int32)
        tensors[f"{key}.intercept"] = np.asarray([head.intercept], dtype=np.float64)
    save_file(tensors, str(path), {"format": json.dumps({"keys": list(heads)})})


def load_heads(path: Path, keys: Sequence[Target]) -> dict[Target, Head]:
    """The heads of a folder. Raises :class:`UserError` for a file that is not whole, or holds no finite numbers."""
    try:
        tensors = load_file(str(path))
        heads = {
            key: Head(
                tuple(int(layer) for layer in tensors[f"{key}.layers"]),
                tensors[f"{key}.weight"],
                float(tensors[f"{key}.intercept"][0]),
            )
            for key in keys
        }
    except (SafetensorError, OSError) as error:
        raise UserError(f"{at(path)}: cannot be read ({error}); copy the whole folder") from None
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise UserError(f"{at(path)}: a missing or broken tensor ({error}); copy the whole folder") from None
    foreign = sorted(tensors.keys() - {f"{key}.{part}" for key in keys for part in _PARTS})
    if foreign:
        raise UserError(f"{at(path)}: has no place for tensor '{foreign[0]}'; copy the whole folder")
    for key, head in heads.items():
        kinds = "".join(tensors[f"{key}.{part}"].dtype.kind for part in _PARTS)
        if kinds != "fif" or head.weight.ndim != 2 or not 0 < len(head.layers) == len(head.weight):
            raise UserError(f"{at(path)}: head '{key}': tensors of another shape or format; copy the whole folder")
        if not (np.isfinite(head.weight).all() and np.isfinite(head.intercept)):
            raise UserError(f"{at(path)}: head '{key}' holds numbers that are not finite; train the probe again")
    return heads


def check_layers(heads: Mapping[Target, Head], reader: Reader, path: Path) -> None:
    """Raise :class:`UserError` for a layer that the model lacks, or a head of another width."""
    config = reader.model.config.get_text_config()
    for key, head in heads.items():
        for layer in head.layers:
            if not 0 <= layer < config.num_hidden_layers:
                raise UserError(
                    f"{at(path)}: head '{key}' reads layer {layer}; the model has 0 to {config.num_hidden_layers - 1}"
                )
        if head.weight.shape[1] != reader.width:
            raise UserError(
                f"{at(path)}: head '{key}' is for states of {head.weight.shape[1]} numbers; the model's have "
                f"{reader.width}"
            )
