"""The registry of gate kinds: opener of a gate's folder, its input, and the names of its scores.

A kind's module is imported when a gate of it is asked for. A kind of another package is found through the entry point
group ``kbtrain.gates``: its name is the kind, its value a :class:`Kind`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.gate.card import CARD, GateCard, KeyedCard, read_gate_json
from kbtrain.gate.gate import ByName, Gate, KeyedGate, Reads

if TYPE_CHECKING:
    from kbtrain.llm.served_states import StatesServer

FIT_GATE = "recipes/fit_gate.py"  # makes the gates that have no recipe of their own
QUESTION: frozenset[Reads] = frozenset({"question"})
TURN: frozenset[Reads] = frozenset({"turn"})
GROUP = "kbtrain.gates"
GATES: dict[str, str] = {
    "kbm": "kbtrain.gates.kbm.gate:KIND",
    "probe": "kbtrain.gates.probe.served:PROBE",
    "draft_probe": "kbtrain.gates.probe.served:DRAFT_PROBE",
    "encoder": "kbtrain.gates.encoder.gate:KIND",
    "encoder_probe": "kbtrain.gates.encoder.probe:KIND",
    "features": "kbtrain.gates.features.gate:KIND",
    "by_source": "kbtrain.gates.simple:BY_SOURCE",
    "seakr": "kbtrain.gates.seakr.gate:KIND",
    "draft": "kbtrain.gates.draft:KIND",
    "decision_model": "kbtrain.gates.decision_model:KIND",
    "ragate_mha": "kbtrain.gates.ragate.mha:KIND",
    "ragate_peft": "kbtrain.gates.ragate.peft:KIND",
    "dialogue_state": "kbtrain.gates.turns:KIND",
    "stack": "kbtrain.gates.stack:KIND",
}
# Kinds, and keys of kinds, that were removed before version 0.1.0.
GONE = frozenset({"average", "p_yes", "server", "structural"})
GONE_KEYS = frozenset({"change"})
_LONGEST_NAME = 255  # characters: what file systems take


@dataclass(frozen=True)
class Kind:
    """A kind of gate that lives in folders.

    ``card``: its ``gate.json``, readable without torch. ``open``: of a folder, dtype and device. ``made_by``: the
    script that makes such folders. ``fit``: of gates that are fitted in seconds (recipes/fit_gate.py): from examples
    and the probability in [0, 1] of each that retrieval is needed; where the card is a
    :class:`~kbtrain.gate.card.KeyedCard`, the label's name is ``key``. ``files``: names of files in its folder that go
    to the hub and come from there, beside :data:`kbtrain.gate.hub.FILES`. ``open_served``: of a folder and a server
    that gives the states of the answering model, which is then not opened here. ``of_members``: of the card and its
    members' scores, of a kind that is computed from those.
    """

    card: type[GateCard]
    open: Callable[[Path, str, str], Gate]
    reads: frozenset[Reads]
    made_by: str
    fit: Callable[..., Gate] | None = None
    files: tuple[str, ...] = ()
    open_served: Callable[[Path, StatesServer], Gate] | None = None
    of_members: Callable[[Any, Sequence[ByName]], dict[str, list[float]]] | None = None


def kind_points() -> dict[str, EntryPoint]:
    """Where each kind is, by name, other packages' last. Raises :class:`UserError` for one with a name of kbtrain's."""
    points = {name: EntryPoint(name, value, GROUP) for name, value in GATES.items()}
    for point in entry_points(group=GROUP):
        if point.name in GATES:
            raise UserError(f"entry point '{point.name}' of group {GROUP}: kbtrain has a gate of that name; rename it")
        points[point.name] = point
    return points


def kinds() -> dict[str, Kind]:
    """All kinds by name, those of other packages included. Raises :class:`UserError` for one that cannot be loaded."""
    return {name: kind_named(name) for name in kind_points()}


def kind_named(name: str) -> Kind:
    """A kind by its name. Raises ``KeyError``, and :class:`UserError` for one that cannot be loaded."""
    point = EntryPoint(name, GATES[name], GROUP) if name in GATES else kind_points()[name]
    where = f"gate '{name}' ({point.value})" if name in GATES else f"entry point '{name}' of group {GROUP}"
    try:
        kind = point.load()
    except Exception as error:  # noqa: BLE001 - of another package: anything may come
        raise UserError(f"{where}: cannot be loaded ({error})") from None
    if not isinstance(kind, Kind):
        raise UserError(f"{where}: expected a kbtrain.gates.registry.Kind, found {type(kind).__name__}")
    return kind


def kind_to_fit(name: str, setting: str = "key 'gate'") -> Kind:
    """The kind of that name. Raises :class:`UserError` for one without a fit, and for an unknown one."""
    if name not in kind_points():
        able = (other for other, known in kinds().items() if known.fit)
        raise UserError(f"{setting}: unknown gate '{name}'; {did_you_mean(name, able)}")
    if (kind := kind_named(name)).fit:
        return kind
    raise UserError(f"{setting}: '{name}' cannot be fitted here; it has its own recipe: {kind.made_by}")


def package_of(kind: str) -> str | None:
    """Name of the package that brings gates of this kind; None for kbtrain's own."""
    of_others = (point for point in entry_points(group=GROUP) if kind not in GATES and point.name == kind)
    return next((point.dist.name for point in of_others if point.dist), None)


def kind_of(folder: Path | str, content: dict[str, Any] | None = None) -> Kind:
    """The kind of a folder's gate; ``content``: of its file, if it is read. Raises :class:`UserError`."""
    content = content or read_gate_json(folder)
    name = content["kind"]
    several = content.get("keys")
    keys = {str(key) for key in (content.get("key"), *(several if isinstance(several, list) else ()))}
    gone = [f"of kind '{name}'"] if name in GONE else [f"for key '{key}'" for key in GONE_KEYS & keys]
    if gone:
        raise UserError(f"{at(Path(folder) / CARD)}: gates {gone[0]} were removed before 0.1.0 (CHANGELOG.md)")
    try:
        return kind_named(name)
    except KeyError:
        what = (
            f"unknown kind '{name}'; {did_you_mean(name, kind_points())}; a gate of another package needs that package"
        )
        raise UserError(f"{at(Path(folder) / CARD)}: {what}") from None


def read_card(folder: Path | str) -> GateCard:
    """The card of a gate's folder, of any kind. Raises :class:`UserError`."""
    content = read_gate_json(folder)
    return kind_of(folder, content).card.read(folder, content["kind"], content)


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
    folder = folder_of(folder, revision)
    card = cards_of(Path(folder))[Path(folder)]
    if key is not None and not isinstance(card, KeyedCard):
        raise UserError(f"key '{key}': a gate of kind '{card.kind}' has no keys; remove it")
    card.check_weights(folder)
    kind = kind_named(card.kind)
    try:
        served = kind.open_served if states is not None else None
        gate = served(Path(folder), states) if served and states else kind.open(Path(folder), dtype, device)
    except UserError as error:  # of a model, a server or a tokenizer that does not know whose gate it is
        raise error if str(folder) in str(error) else UserError(f"{at(folder)}: {error}") from None
    return gate if key is None else cast(KeyedGate, gate).gate(key)  # type: ignore[arg-type]  # refuses unknown keys


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
            raise UserError(f"{at(folder / CARD)}: part '{part}' is a link that leads nowhere; remove it") from None
        if Path(part).is_absolute() or not target.is_relative_to(place.parent) or target == place.parent:
            raise UserError(f"{at(folder / CARD)}: part '{part}' lies neither in nor beside this folder; copy it there")
        if target in (place, *above):
            raise UserError(f"{at(folder / CARD)}: part '{part}' leads back to the gate itself; remove it")
        cards |= cards_of(folder / part, (place, *above))
    return cards


def folder_of(place: Path | str, revision: str | None = None) -> Path:
    """A gate's folder as given, or fetched from the hub for ``USER/NAME``. Raises :class:`UserError`."""
    from kbtrain.gate.hub import local_folder

    return local_folder(place, revision, lambda: [f for kind in kinds().values() for f in kind.files], _check_fetched)


def _check_fetched(folder: Path) -> None:
    """Raise :class:`UserError` for a gate from the hub that would send a key of this machine's environment."""
    if read_card(folder).asks_server:
        raise UserError(
            f"{at(folder / CARD)}: this gate has an address and a key of the environment to send there; "
            "kbtrain does not open it from the hub: read its gate.json, copy the folder, and open the copy"
        )
