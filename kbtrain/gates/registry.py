"""The registry of gate kinds: opener of a gate's folder, its input, and the names of its scores.

A kind of gate from another package is found through the entry point group ``kbtrain.gates``: its name is the kind, its
value a :class:`~kbtrain.gates.kind.Kind`.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.gate.card import CARD, ClassifierCard, GateCard, KeyedCard, read_gate_json
from kbtrain.gate.gate import Gate, KeyedGate
from kbtrain.gate.hub import local_folder
from kbtrain.gates import by_source
from kbtrain.gates.draft import DraftCard, load_draft
from kbtrain.gates.draft import load_served as load_served_draft
from kbtrain.gates.encoder.gate import EncoderGate
from kbtrain.gates.encoder.probe import EncoderProbe, embedded
from kbtrain.gates.features.gate import Features, FeaturesCard
from kbtrain.gates.kbm.gate import KBM, KBMCard
from kbtrain.gates.kind import FIT_GATE, QUESTION, TURN, Kind
from kbtrain.gates.probe.gate import DraftProbe, DraftProbeCard, Probe, ProbeCard
from kbtrain.gates.probe.served import load_served
from kbtrain.gates.ragate.mha import RagateMHA
from kbtrain.gates.ragate.prompt_and_peft import RagatePeft, RagatePeftCard
from kbtrain.gates.seakr.gate import SeaKR, SeakrCard
from kbtrain.gates.seakr.gate import load_served as load_seakr
from kbtrain.gates.simple import RETRIEVER_SCORES
from kbtrain.gates.stack import Stack, StackCard
from kbtrain.gates.turns import DialogueStateCard, DialogueStateGate, StructuralCard, StructuralGate
from kbtrain.records import DtypeName

if TYPE_CHECKING:
    from kbtrain.llm.served_states import StatesServer

GROUP = "kbtrain.gates"
# Kinds that kbtrain had, each with the last version that reads its folders.
DROPPED: dict[str, str] = {"average": "0.1.0", "p_yes": "0.1.0", "server": "0.1.0"}
DROPPED_KEYS = {"change": "0.1.0"}  # likewise, labels that gates of several kinds learned
_LONGEST_NAME = 255  # characters: what file systems take


def _stack(folder: Path, dtype: str, device: str) -> Gate:
    """A stack whose members that read one model read one copy of it."""
    from kbtrain.models.load import opened_once

    with opened_once():
        return Stack.load(folder, partial(load_gate, dtype=dtype, device=device))


def _stack_served(folder: Path, states: StatesServer) -> Gate:
    """A stack whose probes read from the server; its other members are opened here: a stack reads all their scores."""

    def open_member(member: Path) -> Gate:
        return load_gate(member, states=states if isinstance(read_card(member), ProbeCard | StackCard) else None)

    return Stack.load(folder, open_member)


GATES: dict[str, Kind] = {
    "kbm": Kind(KBMCard, KBM.load, QUESTION, "recipes/train_kbm.py", ("kbm_benefit", "kbm_certainty", "kbm_mastery")),
    "probe": Kind(
        ProbeCard, Probe.load, QUESTION, "recipes/train_probe.py",
        ("probe_benefit", "probe_certainty", "probe_mastery"), open_served=partial(load_served, Probe),
    ),
    "draft_probe": Kind(
        DraftProbeCard, DraftProbe.load, QUESTION, "recipes/train_probe.py", ("draft_probe_benefit",),
        open_served=partial(load_served, DraftProbe),
    ),
    "encoder": Kind(ClassifierCard, EncoderGate.load, QUESTION | TURN, "recipes/train_encoder.py", ("encoder",)),
    "encoder_probe": Kind(
        ClassifierCard, EncoderProbe.load, QUESTION | TURN, "recipes/train_encoder.py", ("encoder_probe",),
        fit=EncoderProbe.fit_embedded, features=embedded,
    ),
    "features": Kind(FeaturesCard, Features.load, QUESTION, "recipes/train_features.py", fit=Features.fit_form),
    "by_source": by_source.KIND,
    "seakr": Kind(SeakrCard, SeaKR.load, QUESTION, "recipes/make_seakr.py", ("seakr",), open_served=load_seakr),
    "draft": Kind(DraftCard, load_draft, QUESTION, "recipes/make_draft.py", open_served=load_served_draft),
    "ragate_mha": Kind(ClassifierCard, RagateMHA.load, QUESTION | TURN, "recipes/train_ragate_mha.py"),
    "ragate_peft": Kind(RagatePeftCard, RagatePeft.load, TURN, "recipes/train_ragate_peft.py"),
    "dialogue_state": Kind(DialogueStateCard, DialogueStateGate.load, TURN, FIT_GATE, fit=DialogueStateGate.fit),
    "structural": Kind(StructuralCard, StructuralGate.load, TURN, FIT_GATE, fit=StructuralGate.fit),
    "stack": Kind(
        StackCard, _stack, QUESTION, "recipes/train_stack.py", open_served=_stack_served,
        of_members=StackCard.of_members,
    ),
}  # fmt: skip
# Rows of every table: what needs no gate's folder, then KBM and probe; further gates follow by name.
TABLE_ORDER = (
    *("llm_only", "all_rag", "random", "oracle", "prompt", "relation_only", "form_only", "by_source"),
    *RETRIEVER_SCORES,
    *reversed(GATES["kbm"].headline),
    *reversed(GATES["probe"].headline),
)


def kinds() -> dict[str, Kind]:
    """All kinds by name, those of other packages included. Raises :class:`UserError` for one that cannot be loaded."""
    by_name = dict(GATES)
    for point in entry_points(group=GROUP):
        where = f"entry point '{point.name}' of group {GROUP}"
        if point.name in GATES:
            raise UserError(f"{where}: kbtrain has a gate of that name; rename it")
        try:
            kind = point.load()
        except Exception as error:  # noqa: BLE001 - of another package: anything may come
            raise UserError(f"{where}: cannot be loaded ({error})") from None
        if not isinstance(kind, Kind):
            raise UserError(f"{where}: expected a kbtrain.gates.kind.Kind, found {type(kind).__name__}")
        by_name[point.name] = kind
    return by_name


def package_of(kind: str) -> str | None:
    """Name of the package that brings gates of this kind; None for kbtrain's own."""
    of_others = (point for point in entry_points(group=GROUP) if kind not in GATES and point.name == kind)
    return next((point.dist.name for point in of_others if point.dist), None)


def kind_of(folder: Path | str, content: dict[str, Any] | None = None) -> tuple[str, Kind]:
    """Name and kind of a folder's gate; ``content``: of its file, if it is read. Raises :class:`UserError`."""
    content = content or read_gate_json(folder)
    name = content["kind"]
    for key in DROPPED_KEYS.keys() & {str(key) for key in (content.get("key"), *(content.get("keys") or ()))}:
        raise UserError(f"{at(Path(folder) / CARD)}: gates for key '{key}' are {_gone(DROPPED_KEYS[key])}")
    if content.get("base"):
        raise UserError(f"{at(Path(folder) / CARD)}: encoders that add to a gate's log odds are {_gone('0.1.0')}")
    try:
        return name, kind_named(name)
    except KeyError:
        what = f"unknown kind '{name}'; {did_you_mean(name, kinds())}; one of another package needs that installed"
        if name in DROPPED:
            what = f"gates of kind '{name}' are {_gone(DROPPED[name])}"
        raise UserError(f"{at(Path(folder) / CARD)}: {what}") from None


def _gone(version: str) -> str:
    return f"gone; kbtrain {version} is the last version that reads them"


def kind_named(name: str) -> Kind:
    """A kind by its name. Raises ``KeyError``."""
    return GATES[name] if name in GATES else kinds()[name]


def read_card(folder: Path | str) -> GateCard:
    """The card of a gate's folder, of any kind. Raises :class:`UserError`."""
    content = read_gate_json(folder)
    name, kind = kind_of(folder, content)
    return kind.card.read(folder, name, content)


def load_gate(
    folder: Path | str,
    key: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
    revision: str | None = None,
    states: StatesServer | None = None,
) -> Gate:
    """Open any gate's folder. ``dtype`` auto: as it was saved.

    ``USER/NAME`` that names no folder here is a gate on the hub (:mod:`kbtrain.gate.hub`), ``revision`` a branch, tag
    or commit of it. ``key`` chooses what a gate with several labels decides by: mastery, certainty or benefit; None:
    the one that was most accurate on dev, as far as the folder notes it, else the first. ``states``: a server that
    gives the answering model's states, for gates that read them. Raises :class:`UserError`.
    """
    _check_arguments(folder, key, dtype, device, revision)
    folder = folder_of(folder, revision)
    card = cards_of(Path(folder))[Path(folder)]
    if key is not None and not isinstance(card, KeyedCard):
        raise UserError(f"key '{key}': a gate of kind '{card.kind}' has no keys; leave it out")
    card.check_weights(folder)
    kind = kind_named(card.kind)
    try:
        served = kind.open_served if states is not None else None
        gate = served(Path(folder), states) if served and states else kind.open(Path(folder), dtype, device)
    except UserError as error:  # of a model, a server or a tokenizer that does not know whose gate it is
        raise error if str(folder) in str(error) else UserError(f"{at(folder)}: {error}") from None
    return gate if key is None else cast(KeyedGate, gate).gate(key)  # type: ignore[arg-type]  # refuses unknown keys


def _check_arguments(folder: object, key: object, dtype: object, device: object, revision: object) -> None:
    if not isinstance(folder, str | Path) or not str(folder).strip():
        raise UserError(f"folder: expected a gate's folder, or USER/NAME on the hub, found {folder!r:.60}")
    for name, value in (("key", key), ("revision", revision), ("device", device)):
        if not isinstance(value, str) and (value is not None or name == "device"):
            raise UserError(f"{name}: expected a text, found {value!r:.60}")
    if dtype not in get_args(DtypeName):
        raise UserError(f"key 'dtype': unknown {dtype!r:.60}; valid: {', '.join(get_args(DtypeName))}")


def cards_of(folder: Path, above: tuple[Path, ...] = ()) -> dict[Path, GateCard]:
    """Cards of a folder's gate and of all that it is made of, by their folders, its own first.

    Raises :class:`UserError` for a gate made of others that is made of itself, or names folders far from its own: parts
    lie in its folder or beside it, so that one from elsewhere cannot make other files of this machine be opened.
    """
    place, card = folder.resolve(), read_card(folder)
    cards = {folder: card}
    for part in card.parts():
        if not part.isprintable() or len(part) > _LONGEST_NAME:
            raise UserError(f"{at(folder / CARD)}: part '{part[:40]}' is not a folder's name; remove it")
        try:
            target = (place / part).resolve()
        except (OSError, RuntimeError):
            raise UserError(f"{at(folder / CARD)}: part '{part}' is a link that leads nowhere; take it out") from None
        if Path(part).is_absolute() or not target.is_relative_to(place.parent) or target == place.parent:
            raise UserError(f"{at(folder / CARD)}: part '{part}' lies neither in nor beside this folder; copy it there")
        if target in (place, *above):
            raise UserError(f"{at(folder / CARD)}: part '{part}' leads back to the gate itself; take it out")
        cards |= cards_of(folder / part, (place, *above))
    return cards


def folder_of(place: Path | str, revision: str | None = None) -> Path:
    """A gate's folder as given, or fetched from the hub for ``USER/NAME``. Raises :class:`UserError`."""
    return local_folder(place, revision, lambda: [f for kind in kinds().values() for f in kind.files], _check_fetched)


def _check_fetched(folder: Path) -> None:
    """Raise :class:`UserError` for a gate from the hub that would send a key of this machine's environment."""
    if read_card(folder).asks_server:
        raise UserError(
            f"{at(folder / CARD)}: this gate has an address and a key of the environment to send there; "
            "it is not opened from the hub: read its gate.json, copy the folder, open the copy"
        )
