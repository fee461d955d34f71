"""Gates that run a model, as things to be opened when there is something to score.

Gates on dialogue turns that need seconds of fitting or none; and the threshold of a gate folder by dev scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kbtrain import jsonl
from kbtrain.gate_folder import CARD, Threshold, load_gate, read_card, read_classifier_card, read_json, set_threshold
from kbtrain.gate_folder import Kind as ClassifierKind
from kbtrain.gates.average import read_average_card
from kbtrain.provenance import file_sha256
from kbtrain.records import GateExample, GateScore, TurnExample

Kind = Literal["prompt", "kbm", "seakr", "encoder", "mha"]
Score = Callable[[Sequence[GateExample]], dict[str, list[float]]]


@dataclass(frozen=True)
class Opening:
    """What opens a gate, as plain values: another process makes the same source of them (:func:`source_of`)."""

    kind: Kind
    model: str  # the gate's folder; of the prompt baseline an embedded name, folder or hub id
    dtype: str = "auto"
    device: str = "auto"


@dataclass(frozen=True)
class Source:
    """The gates that one forward pass serves: their names, what their scores depend on, and how to open the model.

    ``spent`` counts what scoring costs beyond one request a question (``requests``, ``samples``, ``tokens``).
    """

    names: tuple[str, ...]
    depends: str
    open: Callable[[], Score]
    spent: Counter[str] = field(default_factory=Counter)
    opening: Opening | None = None  # None: only this process can open it


def prompt_source(model: str, dtype: str = "auto", device: str = "auto") -> Source:
    """The prompt baseline on an embedded model, folder or hub id."""

    def opened() -> Score:
        from kbtrain.gates.kbm.prompt import Prompt

        gate = Prompt.load(model, dtype, device)
        return lambda examples: {gate.name: gate.score(examples)}

    return Source(("prompt",), model, opened, opening=Opening("prompt", model, dtype, device))


def kbm_source(folder: Path, dtype: str = "auto", device: str = "auto") -> Source:
    """All keys of a KBM's folder. Raises :class:`UserError` if it holds no gate.

    Its scores depend on the weights and on the card, but not on the thresholds noted there.
    """
    card = read_card(folder)
    weights = [file_sha256(file) for file in sorted(folder.rglob("*.safetensors"))]
    depends = ":".join([card.model_dump_json(exclude={"thresholds"}), *weights])

    def opened() -> Score:
        from kbtrain.gates.kbm.gate import KBM

        model = KBM.load(folder, dtype, device)
        gates = [model.gate(key) for key in model.keys]

        def score(examples: Sequence[GateExample]) -> dict[str, list[float]]:
            found = model.probabilities(examples)
            return {gate.name: gate.from_probabilities(found[gate.key]) for gate in gates}

        return score

    names = tuple(f"kbm_{key}" for key in card.keys)
    return Source(names, depends, opened, opening=Opening("kbm", str(folder), dtype, device))


def seakr_source(folder: Path, dtype: str = "auto", device: str = "auto") -> Source:
    """All signals of a SeaKR gate's folder, from the same samples. Raises :class:`UserError` if it holds no such gate.

    Its scores depend on the card but for what was measured or chosen afterwards.
    """
    from kbtrain.gates.seakr.gate import read_seakr_card
    from kbtrain.gates.seakr.signals import SIGNALS

    card = read_seakr_card(folder)
    spent: Counter[str] = Counter()

    def opened() -> Score:
        from kbtrain.gates.seakr.gate import SeaKR

        gate = SeaKR.load(folder, dtype, device)
        gate.spent = spent
        return gate.all_scores

    depends = card.model_dump_json(exclude={"thresholds", "measured", "run"})
    return Source(tuple(SIGNALS), depends, opened, spent, Opening("seakr", str(folder), dtype, device))


def encoder_source(folder: Path, dtype: str = "auto", device: str = "auto") -> Source:
    """An encoder (fine-tuned, a probe, or the average of both) that was trained on questions. Raises
    :class:`UserError` if the folder holds no such gate."""
    opening, found = Opening("encoder", str(folder), dtype, device), read_json(folder)["kind"]
    if found == "average":
        members = [folder / member for member in read_average_card(folder).members]
        depends = ":".join(encoder_source(member, dtype, device).depends for member in members)
        return Source((found,), depends, _opens_classifier(opening), opening=opening)
    return _classifier_source("encoder_probe" if found == "encoder_probe" else "encoder", opening)


def ragate_mha_source(folder: Path, dtype: str = "auto", device: str = "auto") -> Source:
    """RAGate-MHA trained on questions. Raises :class:`UserError` if the folder holds no such gate."""
    return _classifier_source("ragate_mha", Opening("mha", str(folder), dtype, device))


def _classifier_source(kind: ClassifierKind, opening: Opening) -> Source:
    """A gate of this kind, which is also its name."""
    return Source((kind,), _depends(Path(opening.model), kind), _opens_classifier(opening), opening=opening)


def _opens_classifier(opening: Opening) -> Callable[[], Score]:
    def opened() -> Score:
        gate = load_gate(opening.model, opening.dtype, opening.device)
        return lambda examples: {gate.name: gate.score(examples)}

    return opened


FOLDER_SOURCES: dict[str, Callable[[Path, str, str], Source]] = {
    "kbm": kbm_source,
    "seakr": seakr_source,
    "encoder": encoder_source,
    "mha": ragate_mha_source,
}


def source_of(opening: Opening) -> Source:
    """The source again, in whatever process. Raises :class:`UserError` as it does."""
    if opening.kind == "prompt":
        return prompt_source(opening.model, opening.dtype, opening.device)
    return FOLDER_SOURCES[opening.kind](Path(opening.model), opening.dtype, opening.device)


def _depends(folder: Path, kind: ClassifierKind) -> str:
    """A classifier's scores depend on its weights and its card, but not on the thresholds noted there."""
    card = read_classifier_card(folder, kind)
    weights = [file_sha256(file) for file in sorted(folder.rglob("*.safetensors"))]
    return ":".join([card.model_dump_json(exclude={"thresholds"}), *weights])


def fitted(gate: Literal["always", "structural", "dialogue_state"], train: Sequence[TurnExample], folder: Path) -> Any:
    """Fit the gate to labelled turns and save it in ``folder``. Raises :class:`UserError` for a single class."""
    if gate == "always":
        from kbtrain.gates.simple import Always

        return Always()
    if gate == "structural":
        from kbtrain.gates.turns.structural import StructuralGate

        ten_numbers = StructuralGate.fit(train)
        ten_numbers.save(folder / "structural.json")
        return ten_numbers
    from kbtrain.gates.turns.dialogue_state import DialogueStateGate

    state = DialogueStateGate.fit(train)
    state.save(folder)
    return state


def keep_threshold(folder: Path, dev: Sequence[TurnExample], dev_file: Path) -> None:
    """Write the cut of the best F1 on labelled dev turns into the folder's ``gate.json``; nothing without either."""
    known = [turn for turn in dev if turn.label is not None]
    if not known or not (folder / CARD).exists():
        return
    from kbtrain.metrics.dev import best_f1_threshold

    scores = {score.question_id: score.score for score in jsonl.read(GateScore, folder / "scores.jsonl")}
    need = [float(bool(turn.label)) for turn in known]
    cut = best_f1_threshold(need, [scores[turn.id] for turn in known]).value
    found = Threshold(threshold=cut, rule="best_f1", dev_file_sha256=file_sha256(dev_file), n_dev=len(known))
    set_threshold(folder, folder.name, found)
