"""What every gate offers: one number per question, higher = retrieval more needed. Thresholds are applied outside.

A gate's folder: safetensors weights, tokenizer, model card, and ``gate.json``, which says what they are.

``gate.json`` of gates that classify (encoder, probe, RAGate-MHA): what they read, learnt and decide by.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.jsonl import one_line
from kbtrain.prompts.kbm import Key
from kbtrain.provenance import write_atomically
from kbtrain.records import GateExample


class Gate(Protocol):
    """A gate scores examples and says what it needs, so that a caller does only that work.

    ``needs_samples``: answers sampled from the model; ``needs_evidence``: examples carry a reference.
    """

    @property
    def name(self) -> str:
        """The name results are stored under."""
        ...

    @property
    def needs_samples(self) -> bool:
        """Whether scoring needs stored samples."""
        ...

    @property
    def needs_evidence(self) -> bool:
        """Whether scoring needs retrieved text."""
        ...

    def score(self, examples: Sequence[GateExample]) -> list[float]:
        """One score per example, in the gate's documented unit; higher = retrieval more needed."""
        ...


CARD = "gate.json"
ADAPTER = "adapter"
KINDS = ("kbm", "seakr", "encoder", "encoder_probe", "ragate_mha", "ragate_peft", "dialogue_state", "average")


class Threshold(BaseModel):
    """Retrieve if score > ``threshold``; ``rule`` says how it was chosen, on which dev file and how many questions.

    ``evidence`` is what ``eval/calibrate.py`` saw there: ratio, accuracies, a guarantee, the scores' distribution.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    threshold: float
    rule: str
    dev_file_sha256: str
    n_dev: int
    evidence: dict[str, Any] = {}


class GateCard(BaseModel):
    """The content of ``gate.json``. ``train_sha256``, ``label_rule`` and ``run`` say what it was trained from."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    kind: str
    base_model: str
    keys: tuple[Key, ...]
    prompt_fingerprint: str
    max_length: int
    dtype: str  # of the weights
    method: Literal["full", "lora", "qlora"]
    labels: Literal["hard", "soft"]
    merged: bool = True  # False: the folder holds an adapter only, and base_model is needed to open it
    base_fingerprint: str | None = None  # of base_model, to tell another base from it
    thresholds: dict[str, Threshold] = {}
    label_rule: dict[str, Any] = {}
    run: dict[str, Any] = {}
    versions: dict[str, str] = {}


def write_card(folder: Path, card: GateCard) -> None:
    """Write ``gate.json`` atomically."""
    write_atomically(folder / CARD, json.dumps(card.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")


def read_card(folder: Path | str) -> GateCard:
    """A KBM's card. Raises :class:`UserError` for a folder that holds none, or a broken one."""
    data, path = read_json(folder), Path(folder) / CARD
    if data["kind"] != "kbm":
        raise UserError(f"{at(path)}: a gate of kind '{data['kind']}', expected 'kbm'")
    try:
        return GateCard.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{at(path)}: {one_line(error)}") from None


def read_json(folder: Path | str) -> dict[str, Any]:
    """Any gate's ``gate.json``. Raises :class:`UserError` if there is none, it is broken or of an unknown kind."""
    path = Path(folder) / CARD
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{at(path)}: no such file; is '{folder}' the folder of a finished training?") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{at(path)}: broken JSON ({error})") from None
    if not isinstance(data, dict):
        raise UserError(f"{at(path)}: expected a JSON object, found {type(data).__name__}")
    if data.get("kind") not in KINDS:
        raise UserError(f"{at(path)}: unknown kind {data.get('kind')!r}; {did_you_mean(str(data.get('kind')), KINDS)}")
    return data


def set_threshold(folder: Path | str, gate: str, threshold: Threshold) -> None:
    """Record a gate's threshold (by the gate's name, e.g. ``kbm_mastery``) in ``gate.json``, of whatever kind."""
    data = read_json(folder)
    data["thresholds"] = {**data.get("thresholds", {}), gate: threshold.model_dump(mode="json")}
    write_atomically(Path(folder) / CARD, json.dumps(data, ensure_ascii=False, indent=1) + "\n")


def load_gate(path: Path | str, dtype: str = "auto", device: str = "auto") -> Any:
    """Open any gate's folder: a :class:`~kbtrain.gates.kbm.gate.KBM`, :class:`~kbtrain.gates.seakr.gate.SeaKR`,
    :class:`~kbtrain.gates.encoder.gate.EncoderGate`, :class:`~kbtrain.gates.encoder.probe.EncoderProbe`,
    :class:`~kbtrain.gates.ragate.mha.RagateMHA`, :class:`~kbtrain.gates.ragate.peft.RagatePeft`,
    :class:`~kbtrain.gates.turns.dialogue_state.DialogueStateGate` or :class:`~kbtrain.gates.average.AverageGate`.

    ``dtype`` auto: as it was saved. Raises :class:`UserError`.
    """
    from kbtrain.gates.average import AverageGate
    from kbtrain.gates.encoder.gate import EncoderGate
    from kbtrain.gates.encoder.probe import EncoderProbe
    from kbtrain.gates.kbm.gate import KBM
    from kbtrain.gates.ragate.mha import RagateMHA
    from kbtrain.gates.ragate.peft import RagatePeft
    from kbtrain.gates.seakr.gate import SeaKR
    from kbtrain.gates.turns.dialogue_state import DialogueStateGate

    kinds: dict[str, Any] = {"kbm": KBM, "seakr": SeaKR, "encoder": EncoderGate, "encoder_probe": EncoderProbe}
    kinds |= {"ragate_mha": RagateMHA, "ragate_peft": RagatePeft}
    kinds |= {"dialogue_state": DialogueStateGate, "average": AverageGate}
    return kinds[read_json(path)["kind"]].load(path, dtype, device)


Kind = Literal["encoder", "encoder_probe", "ragate_mha"]


class ClassifierCard(BaseModel):
    """The content of ``gate.json``. ``reads`` are the settings of the input; ``key`` the label of questions that was
    learnt; ``seed`` tells trainings on the same data apart; ``base`` the gate whose log odds it adds to."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    schema_version: Literal[1] = 1
    kind: Kind
    base_model: str | None
    reads: dict[str, Any]
    labels: Literal["hard", "soft"]
    key: Key = "mastery"
    base: Literal["dialogue_state"] | None = None
    seed: int
    thresholds: dict[str, Threshold] = {}
    label_rule: dict[str, Any] = {}
    run: dict[str, Any] = {}
    versions: dict[str, str] = {}


def write_classifier_card(folder: Path, card: ClassifierCard) -> None:
    """Write ``gate.json`` atomically."""
    write_atomically(folder / CARD, json.dumps(card.model_dump(mode="json"), ensure_ascii=False, indent=1) + "\n")


def read_classifier_card(folder: Path | str, kind: Kind) -> ClassifierCard:
    """Raises :class:`UserError` for a folder that holds no gate of this kind, or a broken one."""
    data, path = read_json(folder), Path(folder) / CARD
    if data["kind"] != kind:
        raise UserError(f"{at(path)}: a gate of kind '{data['kind']}', expected '{kind}'")
    try:
        return ClassifierCard.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{at(path)}: {one_line(error)}") from None
