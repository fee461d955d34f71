"""Handles of gates: all that is asked of a gate before it is opened, for folders and for prompted models alike."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kbtrain.errors import UserError, at
from kbtrain.gate.card import GateCard, Stage, own_files
from kbtrain.gate.gate import Gate, Reads
from kbtrain.gate.trained_on import HELD_OUT, question_hash, read_held_out
from kbtrain.gates.registry import GATES, QUESTION, TURN, cards_of, kind_named, load_gate, read_card
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import file_sha256
from kbtrain.prompts.kbm import need_fingerprint
from kbtrain.prompts.ragate import RAGATE_PROMPTS, ragate_fingerprint
from kbtrain.records import Example, GateExample, Statistic

if TYPE_CHECKING:
    from kbtrain.llm.backends import LLMConfig
    from kbtrain.llm.served_states import StatesServer


@dataclass(frozen=True)
class GateOpening:
    """Arguments to open a gate, as plain values; :func:`handle_of_opening` makes the same handle in any process."""

    model: str  # the gate's folder; with ``prompt`` a language model: embedded name, folder or hub id
    dtype: str = "auto"
    device: str = "auto"
    prompt: str | None = None  # name of a gate that asks an untrained model (:data:`PROMPTS`)
    name: str | None = None  # that the folder's scores stand under; None: the folder's own
    states: str | None = None  # configuration of the server whose engine gives the states that the gate reads


@dataclass(frozen=True)
class GateHandle:
    """A gate that is opened when there is something to score.

    ``name`` tells it from other gates of a run; ``names`` are those of its scores, all from one pass. ``stored``: the
    names under which scores are kept that the gate itself calls otherwise. ``identity``: 12 hexadecimal digits of
    all that the scores depend on beside the examples; no threshold is part of it.
    """

    names: tuple[str, ...]
    identity: str
    open: Callable[[], Gate]
    opening: GateOpening | None = None  # None: only this process can open it
    name: str = ""
    reads: frozenset[Reads] = QUESTION
    stored: Mapping[str, str] = field(default_factory=dict)
    stage: Stage = "question"
    held_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    within_answer: str | None = None  # number format in which all its passes are what the plain answer begins with
    server: bool = False  # a model elsewhere: requests are paid by their tokens
    models: tuple[str, ...] = ()  # language models and encoders that are opened for the scores
    card: GateCard | None = None  # of a folder's gate

    @property
    def folder(self) -> Path | None:
        """The gate's folder; None for a gate without one."""
        return Path(self.opening.model) if self.opening is not None and not self.opening.prompt else None

    @property
    def own_names(self) -> dict[str, str]:
        """The stored name of each score by the gate's own name for it."""
        by_stored = {stored: name for name, stored in self.stored.items()}
        return {by_stored.get(name, name): name for name in self.names}

    def scores(self, gate: Gate, examples: Sequence[Example]) -> dict[str, list[float]]:
        """The opened gate's scores by :attr:`names`; a question whose scores are all held out is not asked about."""
        all_held_out = [
            bool(self.held_out) and all(_hash(e) in self.held_out.get(n, ()) for n in self.names) for e in examples
        ]
        to_score = [example for example, held_out in zip(examples, all_held_out, strict=True) if not held_out]
        fresh = gate.score_all(to_score) if to_score else {}
        scores_by_name = {}
        for name in fresh or self.names:
            values = iter(fresh.get(name, ()))
            scores_by_name[name] = [math.nan if held_out else next(values) for held_out in all_held_out]
        return self.name_scores(scores_by_name, examples)

    def name_scores(self, scores: Mapping[str, list[float]], examples: Sequence[Example]) -> dict[str, list[float]]:
        """``scores`` by the gate's own names as those by :attr:`names`; held-out ones of questions it was fitted to."""
        renamed = {self.stored.get(name, name): values for name, values in scores.items()}
        if not self.held_out:
            return renamed
        hashes = [_hash(e) for e in examples]
        return {
            name: [self.held_out.get(name, {}).get(digest, value) for digest, value in zip(hashes, values, strict=True)]
            for name, values in renamed.items()
        }

    def has_held_out(self, examples: Sequence[Example]) -> bool:
        """True if a score of one of these is held out: not what the gate itself says."""
        digests = {digest for scores in self.held_out.values() for digest in scores}
        return bool(digests) and any(_hash(e) in digests for e in examples)


def _hash(example: Example) -> str:
    return question_hash(example.question) if isinstance(example, GateExample) else ""


def handle(
    folder: Path, dtype: str = "auto", device: str = "auto", name: str | None = None, states: str | None = None
) -> GateHandle:
    """A folder's gate, unopened. Raises :class:`UserError` if it holds none.

    ``states``: configuration of the server whose states the gate reads, if it reads any; its scores depend on it.

    Its scores depend on its weights and on its card, but not on the thresholds noted there. A folder that does not
    carry a kind's name gives its own to the scores (``encoder0``: a second encoder of the run).
    """
    cards = cards_of(folder)
    card, singles = cards[folder], [card for card in cards.values() if not card.parts()]
    gate_name = name or folder.resolve().name
    model = None if states is None else model_read(folder)
    served: LLMConfig | None = None
    if states is not None and model is not None:
        from kbtrain.llm.backends import read_llm_config

        served = read_llm_config(Path(states))
    asking = [c for c in singles if c.base_model or c.asks_server]  # each format is that of a pass within the answer
    formats = {getattr(c, "dtype", None) if c.within_answer else None for c in asking}
    stored = {} if gate_name in GATES or gate_name == card.kind else _names_of_folder(card, gate_name)

    def open_gate() -> Gate:
        server = connect_states(served, model) if served and model else None
        return load_gate(folder, dtype=dtype, device=device, states=server)

    return GateHandle(
        names=tuple(stored.get(score, score) for score in card.names()),
        identity=identity_of(_content(folder, cards) + (f":states of {served.served_name}" if served else "")),
        open=open_gate,
        opening=GateOpening(str(folder), dtype, device, name=name, states=states),
        name=gate_name,
        reads=kind_named(card.kind).reads,
        stored=stored,
        stage=card.stage,
        held_out={stored.get(score, score): scores for score, scores in read_held_out(folder).items()},
        within_answer=formats.pop() if len(formats) == 1 else None,
        # beside a model that runs here seconds are the price, not tokens
        server=any(c.asks_server for c in singles) and all(c.asks_server or not c.base_model for c in singles),
        # folders hold configuration and tokenizer; base models are opened here unless a server is asked
        models=tuple(
            sorted({*map(str, cards), *(c.base_model for c in cards.values() if c.base_model and not c.asks_server)})
        ),
        card=card,
    )


def connect_states(config: LLMConfig, model: str) -> StatesServer:
    """The server of a configuration as ``kbtrain check-server`` writes it, with the tokenizer of ``model``.

    Raises :class:`UserError` for another back end, a server that does not answer, and one without that model.
    """
    from kbtrain.llm.backends import open_llm
    from kbtrain.llm.served_states import StatesServer

    if not config.kind.server:
        raise UserError(f"key 'backend': states come from a vLLM server (openai), not from '{config.backend}'")
    named = {"model": model, "server_model": config.served_name, "server_alias": True}
    llm: Any = open_llm(config.model_copy(update={**named, "server_endpoint": "completions"}))
    return StatesServer(llm.server, llm.tokenizer)


def _names_of_folder(card: GateCard, folder: str) -> dict[str, str]:
    """The scores' names after the folder: ``lora_mastery`` for ``kbm_mastery`` of the folder ``lora``; a single score
    has the folder's."""
    names, kind = card.names(), card.kind
    if len(names) == 1:
        return {names[0]: folder}
    return {name: folder + name.removeprefix(kind) if name.startswith(kind) else f"{folder}_{name}" for name in names}


def single_gates(folder: Path) -> list[tuple[Path, GateCard]]:
    """Folders and cards of the gates that a gate is made of in the end; its own where it is made of none."""
    return [(place, card) for place, card in cards_of(folder).items() if not card.parts()]


def check_bases(folder: Path) -> None:
    """Raise :class:`UserError`, as opening would, if a gate or a part of it was trained beside another base model.

    One that is not here passes: where the gate is opened it may be.
    """
    from kbtrain.models.files_read import folder_of

    for place, card in single_gates(folder):
        if card.base_model and folder_of(card.base_model):
            card.check_base(place)


STATES: frozenset[Statistic] = frozenset({"prompt_states", "draft_states"})


def state_readers(folder: Path, statistics: frozenset[Statistic] = STATES) -> list[tuple[Path, GateCard]]:
    """Folders and cards of the gates that read states, of those that a gate is made of."""
    return [(place, card) for place, card in single_gates(folder) if card.statistics & statistics]


def answering_model(folder: Path) -> str | None:
    """The answering model of a gate whose states can be read from a server."""
    card = read_card(folder)
    return card.base_model if card.statistics == {"end_states"} else model_read(folder)


def model_read(folder: Path) -> str | None:
    """The answering model whose states a gate, or a part of it, reads at its plain prompt; None without such a part."""
    return next((card.base_model for _, card in state_readers(folder)), None)


def layers_read(folder: Path) -> list[int]:
    """Layers that a gate and its parts read, as ids of transformers' ``hidden_states``.

    Raises :class:`UserError` for a gate that reads no states that an engine gives.
    """
    readers = state_readers(folder, STATES | {"end_states"})
    layers = sorted({layer + 1 for path, card in readers for layer in card.layers_read(path)})
    if not layers:
        raise UserError(
            f"{at(folder)}: this gate reads no states of the answering model that an engine gives; it needs no flags"
        )
    return layers


def end_token_read(folder: Path) -> int | None:
    """The end token at which a gate reads states of drawn answers; None for a gate that reads none."""
    from kbtrain.llm.served_states import own_end_token
    from kbtrain.models.load import load_tokenizer

    card = read_card(folder)
    if card.statistics != {"end_states"} or not card.layers_read(folder) or card.base_model is None:
        return None
    return own_end_token(load_tokenizer(card.base_model))


def gate_identity(folder: Path) -> str:
    """The :attr:`~GateHandle.identity` of a folder's gate: two trainings, or two versions of a folder, differ in it."""
    return identity_of(_content(folder, cards_of(folder)))


def identity_of(content: str) -> str:
    """12 hexadecimal digits of a text that says what scores depend on."""
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def _content(folder: Path, cards: Mapping[Path, GateCard]) -> str:
    """Card without thresholds, hashes of weights and held-out scores; of a gate made of others: theirs."""
    card = cards[folder]
    held_out = [file_sha256(path) for path in (folder / HELD_OUT,) if path_exists(path)]
    if card.parts():
        return ":".join([*(_content(folder / part, cards) for part in card.parts()), card.depends(), *held_out])
    weights = (file_sha256(path) for path in own_files(folder) if path.suffix == ".safetensors")
    return ":".join([card.depends(), *weights, *held_out])


PROMPTS: Mapping[str, frozenset[Reads]] = {"prompt": QUESTION, **dict.fromkeys(RAGATE_PROMPTS, TURN)}


def handle_of_prompt(name: str, model: str, dtype: str = "auto", device: str = "auto") -> GateHandle:
    """A gate of :data:`PROMPTS` on an embedded model, folder or hub id: its scores depend on this and the prompt."""
    wording = need_fingerprint() if name == "prompt" else ragate_fingerprint(RAGATE_PROMPTS[name][0])
    return GateHandle(
        names=(name,),
        identity=identity_of(f"{model}:{wording}"),
        open=lambda: _open_prompt(name, model, dtype, device),
        opening=GateOpening(model, dtype, device, prompt=name),
        name=name,
        reads=PROMPTS[name],
        models=(model,),
    )


def _open_prompt(name: str, model: str, dtype: str, device: str) -> Gate:
    from kbtrain.models.load import load_model

    opened = load_model(model, dtype, device)
    if name == "prompt":
        from kbtrain.gates.kbm.gate import PromptGate

        return PromptGate(*opened)
    from kbtrain.gates.ragate.peft import RagatePrompt

    return RagatePrompt(*opened, *RAGATE_PROMPTS[name])


def handle_of_opening(opening: GateOpening) -> GateHandle:
    """The handle again, in any process. Raises :class:`UserError` as :func:`handle` does."""
    if opening.prompt:
        return handle_of_prompt(opening.prompt, opening.model, opening.dtype, opening.device)
    return handle(Path(opening.model), opening.dtype, opening.device, opening.name, opening.states)
