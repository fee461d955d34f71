"""The registry of gate kinds: opener of a gate's folder, its input, and the names of its scores.

A kind of gate from another package is found through the entry point group ``kbtrain.gates``: its name is the kind, its
value a :class:`Kind`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.gate_folder import CARD, ClassifierCard, Gate, GateCard, KeyedCard, KeyedGate, Reads, Stage, read_gate_json
from kbtrain.gates.average import AverageCard, AverageGate
from kbtrain.gates.encoder.gate import EncoderGate
from kbtrain.gates.encoder.probe import EncoderProbe
from kbtrain.gates.features.gate import Features, FeaturesCard
from kbtrain.gates.kbm.gate import KBM, KBMCard
from kbtrain.gates.probe.gate import Probe, ProbeCard
from kbtrain.gates.ragate.mha import RagateMHA
from kbtrain.gates.ragate.peft import RagatePeft, RagatePeftCard
from kbtrain.gates.seakr.gate import SeaKR, SeakrCard
from kbtrain.gates.seakr.signals import SIGNALS
from kbtrain.gates.stack.gate import Stack, StackCard
from kbtrain.gates.turns.dialogue_state import DialogueStateCard, DialogueStateGate
from kbtrain.gates.turns.structural import StructuralCard, StructuralGate
from kbtrain.gates.untrained import draft, p_yes, server
from kbtrain.hub import local_folder
from kbtrain.provenance import file_sha256
from kbtrain.records import Example, GateExample, TurnExample
from kbtrain.trained_on import HELD_OUT, question_hash, read_held_out
from kbtrain.training.model_card import write_made

if TYPE_CHECKING:
    from kbtrain.llm.backends import LLMConfig

GROUP = "kbtrain.gates"
QUESTION: frozenset[Reads] = frozenset({"question"})
TURN: frozenset[Reads] = frozenset({"turn"})


@dataclass(frozen=True)
class Kind:
    """A kind of gate that lives in folders.

    ``card``: its ``gate.json``, readable without torch. ``open``: of a folder, dtype and device. ``names`` of its
    scores, from the card: one a key for a KBM, one a signal for SeaKR. ``made_by``: the script that makes such folders.
    ``headline``: names that stand with the baselines in every table, the last first. ``fit``: of gates that are fitted
    in seconds (recipes/fit_gate.py): from examples and the probability in [0, 1] of each that retrieval is needed.
    ``features``: of such a gate whose features are dear: (n, d) numbers of examples. They are kept for the next fit;
    ``fit`` gets them as its third argument, and the gate has ``score_features(features)``. ``files``: names of files in
    its folder that go to the hub and come from there, beside :data:`kbtrain.hub.FILES`.
    """

    card: type[GateCard]
    open: Callable[[Path, str, str], Gate]
    reads: frozenset[Reads]
    names: Callable[[Any], tuple[str, ...]]
    made_by: str
    headline: tuple[str, ...] = ()
    fit: Callable[..., Gate] | None = None
    features: Callable[[Sequence[Any]], Any] | None = None
    files: tuple[str, ...] = ()


def _average(folder: Path, dtype: str, device: str) -> Gate:
    return AverageGate.load(folder, lambda member: load_gate(member, dtype=dtype, device=device))


def _stack(folder: Path, dtype: str, device: str) -> Gate:
    return Stack.load(folder, lambda member: load_gate(member, dtype=dtype, device=device))


def _named(*names: str) -> Callable[[Any], tuple[str, ...]]:
    return lambda card: names


GATES: dict[str, Kind] = {
    "kbm": Kind(
        KBMCard,
        KBM.load,
        QUESTION,
        KBMCard.names,
        "recipes/train_kbm.py",
        ("kbm_benefit", "kbm_certainty", "kbm_mastery"),
    ),
    "probe": Kind(
        ProbeCard,
        Probe.load,
        QUESTION,
        ProbeCard.names,
        "recipes/train_probe.py",
        ("probe_benefit", "probe_certainty", "probe_mastery"),
    ),
    "encoder": Kind(
        ClassifierCard, EncoderGate.load, QUESTION | TURN, _named("encoder"), "recipes/train_encoder.py", ("encoder",)
    ),
    "encoder_probe": Kind(
        ClassifierCard,
        EncoderProbe.load,
        QUESTION | TURN,
        _named("encoder_probe"),
        "recipes/train_encoder.py",
        ("encoder_probe",),
    ),
    "features": Kind(
        FeaturesCard,
        Features.load,
        QUESTION,
        FeaturesCard.names,
        "recipes/train_features.py",
    ),
    "seakr": Kind(SeakrCard, SeaKR.load, QUESTION, _named(*SIGNALS), "recipes/make_seakr.py", ("seakr",)),
    "p_yes": Kind(p_yes.PYesCard, p_yes.PYes.load, QUESTION, _named(*p_yes.SIGNALS), "recipes/make_untrained.py"),
    "draft": Kind(draft.DraftCard, draft.Draft.load, QUESTION, _named(*draft.SIGNALS), "recipes/make_untrained.py"),
    "server": Kind(
        server.ServerCard, server.ServerGate.load, QUESTION, _named(*server.SIGNALS), "recipes/make_untrained.py"
    ),
    "ragate_mha": Kind(
        ClassifierCard, RagateMHA.load, QUESTION | TURN, _named("ragate_mha"), "recipes/train_ragate_mha.py"
    ),
    "ragate_peft": Kind(RagatePeftCard, RagatePeft.load, TURN, _named("ragate_peft"), "recipes/train_ragate_peft.py"),
    "dialogue_state": Kind(
        DialogueStateCard,
        DialogueStateGate.load,
        TURN,
        _named("dialogue_state"),
        "recipes/fit_gate.py",
        fit=DialogueStateGate.fit,
    ),
    "structural": Kind(
        StructuralCard,
        StructuralGate.load,
        TURN,
        _named("structural"),
        "recipes/fit_gate.py",
        fit=StructuralGate.fit,
    ),
    "stack": Kind(StackCard, _stack, QUESTION, StackCard.names, "recipes/train_stack.py"),
    "average": Kind(AverageCard, _average, QUESTION | TURN, _named("average"), "eval/score.py"),
}
# Folders of version 0.1 whose name was not their kind's.
OLD_NAMES = {"mha": "ragate_mha"}
# Rows of every table: what needs no gate's folder, then KBM and probe; further gates follow by name.
TABLE_ORDER = (
    *("llm_only", "all_rag", "random", "oracle", "prompt", "relation_only"),
    *reversed(GATES["kbm"].headline),
    *reversed(GATES["probe"].headline),
)


def kinds() -> dict[str, Kind]:
    """All kinds by name, those of other packages included. Raises :class:`UserError` for one that cannot be loaded."""
    found = dict(GATES)
    for point in entry_points(group=GROUP):
        if point.name in GATES:
            raise UserError(f"entry point '{point.name}' of group {GROUP}: kbtrain has a gate of that name; rename it")
        try:
            kind = point.load()
        except Exception as error:  # noqa: BLE001 - of another package: anything may come
            raise UserError(f"entry point '{point.name}' of group {GROUP}: cannot be loaded ({error})") from None
        if not isinstance(kind, Kind):
            raise UserError(
                f"entry point '{point.name}' of group {GROUP}: expected a kbtrain.gates.registry.Kind, found "
                f"{type(kind).__name__}"
            )
        found[point.name] = kind
    return found


def kind_of(folder: Path | str) -> tuple[str, Kind]:
    """Name and kind of a folder's gate. Raises :class:`UserError` for none, a broken one, or an unknown kind."""
    name = str(read_gate_json(folder)["kind"])
    if name in GATES:
        return name, GATES[name]
    known = kinds()
    if name not in known:
        raise UserError(f"{at(Path(folder) / CARD)}: unknown kind '{name}'; {did_you_mean(name, known)}")
    return name, known[name]


def read_card(folder: Path | str) -> GateCard:
    """The card of a gate's folder, of whatever kind. Raises :class:`UserError`."""
    name, kind = kind_of(folder)
    return kind.card.read(folder, name)


def load_gate(
    folder: Path | str,
    key: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    verify: bool = False,
    revision: str | None = None,
) -> Gate:
    """Open any gate's folder. ``dtype`` auto: as it was saved. ``verify``: hash its weights even if none looks changed.

    ``USER/NAME`` that is no folder here is a gate on the hub (:mod:`kbtrain.hub`), ``revision`` a branch, tag or commit
    of it. ``key`` chooses what a gate with several labels decides by: mastery, certainty or benefit; None: the one that
    was most accurate on dev, as far as the folder notes it, else the first. Raises :class:`UserError`.
    """
    folder = folder_of(folder, revision)
    name, kind = kind_of(folder)
    if key is not None and not issubclass(kind.card, KeyedCard):
        raise UserError(f"key '{key}': a gate of kind '{name}' has no keys; leave it out")
    card = kind.card.read(folder, name)
    check_parts(Path(folder), card)
    card.check_weights(folder, verify)
    try:
        gate = kind.open(Path(folder), dtype, device)
    except UserError as error:  # of a model, a server or a tokenizer that does not know whose gate it is
        raise error if str(folder) in str(error) else UserError(f"{at(folder)}: {error}") from None
    return gate if key is None else cast(KeyedGate, gate).gate(key)  # type: ignore[arg-type]  # refuses unknown keys


def folder_of(place: Path | str, revision: str | None = None) -> Path:
    """A gate's folder as given, or fetched from the hub for ``USER/NAME``. Raises :class:`UserError`."""
    return local_folder(place, revision, lambda: [file for kind in kinds().values() for file in kind.files])


@dataclass(frozen=True)
class Opening:
    """Arguments to open a gate, as plain values: another process makes the same handle of them (:func:`reopened`)."""

    model: str  # the gate's folder; with ``prompt`` a language model: embedded name, folder or hub id
    dtype: str = "auto"
    device: str = "auto"
    prompt: str | None = None  # name of a prompted gate (:data:`PROMPTED`)
    name: str | None = None  # that the folder's scores stand under; None: the folder's own


@dataclass(frozen=True)
class GateHandle:
    """A gate that is opened when there is something to score.

    ``name`` tells it from other gates of a run; ``names`` are those of its scores, all from one pass. ``stored``: the
    names under which scores are kept that the gate itself calls otherwise. ``depends``: what the scores depend on.
    """

    names: tuple[str, ...]
    depends: str
    open: Callable[[], Gate]
    opening: Opening | None = None  # None: only this process can open it
    name: str = ""
    reads: frozenset[Reads] = QUESTION
    stored: Mapping[str, str] = field(default_factory=dict)
    stage: Stage = "question"
    held_out: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def scores(self, gate: Gate, examples: Sequence[Example]) -> dict[str, list[float]]:
        """The opened gate's scores by :attr:`names`."""
        found = {self.stored.get(name, name): values for name, values in gate.score_all(examples).items()}
        if not self.held_out:
            return found
        hashes = [question_hash(e.question) if isinstance(e, GateExample) else "" for e in examples]
        return {
            name: [self.held_out.get(name, {}).get(one, value) for one, value in zip(hashes, values, strict=True)]
            for name, values in found.items()
        }


def handle(folder: Path, dtype: str = "auto", device: str = "auto", name: str | None = None) -> GateHandle:
    """A folder's gate, unopened. Raises :class:`UserError` if it holds none.

    Its scores depend on its weights and on its card, but not on the thresholds noted there. A folder that does not
    carry a kind's name gives its own to the scores (``encoder0``: a second encoder of the run).
    """
    kind_name, kind = kind_of(folder)
    card = kind.card.read(folder, kind_name)
    check_parts(folder, card)
    given = kind.names(card)
    own = name or OLD_NAMES.get(folder.resolve().name, folder.resolve().name)
    stored = {} if own in GATES or own == kind_name else {one: _renamed(one, kind_name, own) for one in given}
    if len(given) == 1 and stored:
        stored = {given[0]: own}
    return GateHandle(
        tuple(stored.get(one, one) for one in given),
        _depends(folder, card),
        lambda: load_gate(folder, dtype=dtype, device=device),
        Opening(str(folder), dtype, device, name=name),
        own,
        kind.reads,
        stored,
        card.stage,
        {stored.get(one, one): scores for one, scores in read_held_out(folder).items()},
    )


def _renamed(name: str, kind: str, folder: str) -> str:
    """``kbm_mastery`` of the folder ``lora``: ``lora_mastery``; other names follow the folder's."""
    return folder + name.removeprefix(kind) if name.startswith(kind) else f"{folder}_{name}"


def check_parts(folder: Path, card: GateCard, above: tuple[Path, ...] = ()) -> None:
    """Raise :class:`UserError` for a gate made of others that is made of itself, or names folders far from its own.

    Parts lie in its folder or beside it: a folder from elsewhere cannot make other files of this machine be opened.
    """
    own = folder.resolve()
    for part in card.parts():
        target = (own / part).resolve()
        if Path(part).is_absolute() or not target.is_relative_to(own.parent) or target == own.parent:
            raise UserError(f"{at(folder / CARD)}: part '{part}' lies neither in nor beside this folder; copy it there")
        if target in (own, *above):
            raise UserError(f"{at(folder / CARD)}: part '{part}' leads back to the gate itself; take it out")
        check_parts(target, read_card(target), (own, *above))


def _depends(folder: Path, card: GateCard) -> str:
    """Hashes of card, weights and held-out scores; of a gate made of others: theirs."""
    held_out = [file_sha256(path) for path in (folder / HELD_OUT,) if path.exists()]
    if card.parts():
        of_parts = (_depends(folder / part, read_card(folder / part)) for part in card.parts())
        own = [card.depends(), *held_out] if isinstance(card, StackCard) else []
        return ":".join([*of_parts, *own])
    weights = [file_sha256(file) for file in sorted(folder.rglob("*.safetensors"))]
    return ":".join([card.depends(), *weights, *held_out])


@dataclass(frozen=True)
class Prompted:
    """A gate that asks an untrained language model: it has no folder, but is opened by the model's name."""

    open: Callable[[str, str, str], Gate]
    reads: frozenset[Reads]


def _prompt(model: str, dtype: str, device: str) -> Gate:
    from kbtrain.gates.kbm.prompt import Prompt

    return Prompt.load(model, dtype, device)


def _ragate(shots: Any, know: bool) -> Callable[[str, str, str], Gate]:
    def opened(model: str, dtype: str, device: str) -> Gate:
        from kbtrain.gates.ragate.prompt import RagatePrompt
        from kbtrain.models.load import load_model

        return RagatePrompt(*load_model(model, dtype, device), shots, know)

    return opened


PROMPTED: dict[str, Prompted] = {
    "prompt": Prompted(_prompt, QUESTION),
    "ragate_prompt_zero_shot": Prompted(_ragate("zero_shot", False), TURN),
    "ragate_prompt_in_context": Prompted(_ragate("in_context", False), TURN),
    "ragate_prompt_zero_shot_know": Prompted(_ragate("zero_shot", True), TURN),
    "ragate_prompt_in_context_know": Prompted(_ragate("in_context", True), TURN),
}


def prompted(name: str, model: str, dtype: str = "auto", device: str = "auto") -> GateHandle:
    """A prompted gate on an embedded model, folder or hub id. Its scores depend on the model's name."""
    kind = PROMPTED[name]
    return GateHandle(
        (name,),
        model,
        lambda: kind.open(model, dtype, device),
        Opening(model, dtype, device, name),
        name,
        kind.reads,
        {name.removesuffix("_know"): name},
    )


def prompted_by_replies(config: LLMConfig, n: int) -> GateHandle:
    """The gate ``prompt`` of any model that answers, by ``n`` replies to a question; only this process can open it."""
    from kbtrain.gates.kbm.prompt_sampled import SampledPrompt, asked_how, of_replies

    def opened() -> Gate:
        from kbtrain.llm.backends import open_llm

        return SampledPrompt(open_llm(of_replies(config)), n)

    return GateHandle(("prompt",), asked_how(of_replies(config), n), opened, name="prompt", reads=QUESTION)


def reopened(opening: Opening) -> GateHandle:
    """The handle again, in whatever process. Raises :class:`UserError` as :func:`handle` does."""
    if opening.prompt is not None:
        return prompted(opening.prompt, opening.model, opening.dtype, opening.device)
    return handle(Path(opening.model), opening.dtype, opening.device, opening.name)


def fitted(name: str, train: Sequence[TurnExample], folder: Path) -> Gate:
    """Fit a gate that is fitted in seconds to labelled turns; write its folder.

    Raises :class:`UserError` for a single class, and for kinds that have a recipe instead.
    """
    kind = kinds()[name]
    if kind.fit is None:
        raise UserError(f"gate '{name}': not fitted here; {kind.made_by} makes it")
    known = [turn for turn in train if turn.label is not None]
    features = () if kind.features is None else (kind.features(known),)
    gate = kind.fit(known, [float(bool(turn.label)) for turn in known], *features)
    if gate.card is None:
        raise UserError(f"gate '{name}': its fit() gives no card to write")
    what = " ".join((type(gate).__doc__ or "Says whether retrieval is needed.").split())
    write_made(folder, gate.card, what, turns=True)
    return gate
