"""Fits of registered kinds that take seconds, to each label, and the choice among them on dev."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kbtrain.errors import UserError, did_you_mean
from kbtrain.gate.card import KeyedCard
from kbtrain.gate.gate import Gate
from kbtrain.gates.registry import GATES, Kind, kind_named, kinds
from kbtrain.metrics.turns import classifier_metrics
from kbtrain.prompts.kbm import Key
from kbtrain.training.data import Labelled
from kbtrain.training.fit import FittedGate


def kind_to_fit(name: str) -> Kind:
    """The kind of that name. Raises :class:`UserError` for one without a fit."""
    registered = kinds()
    able = {kind_name: kind for kind_name, kind in registered.items() if kind.fit}
    if name in able:
        return able[name]
    recipe = f"it has a recipe of its own: {registered[name].made_by}" if name in registered else ""
    raise UserError(f"key 'gate': '{name}' cannot be fitted here; {recipe or did_you_mean(name, able)}")


def names_to_fit() -> str:
    """Names of the kinds that come with the package and have a fit, for a help text."""
    return ", ".join(sorted(name for name in GATES if kind_named(name).fit))


def fit_kind(name: str, kind: Kind, key: Key, rows: Sequence[Labelled]) -> Gate:
    """A gate of the kind, fitted to labels of that key. Raises :class:`UserError` for one without a card."""
    examples, need = [row.example for row in rows], [row.need for row in rows]
    named = {"key": key} if issubclass(kind.card, KeyedCard) else {}
    gate = kind.fit(examples, need, **named) if kind.fit else None
    if gate is None or gate.card is None:
        raise UserError(f"gate '{name}': its fit() gives no gate with a card to write")
    return gate


def best_key(tried: Mapping[Key, FittedGate]) -> tuple[Key, dict[str, float]]:
    """The key whose gate ranks dev best, and each one's AUROC.

    All are measured on the same labels: benefit's (a search was needed), and on their own only where these are missing.
    """
    areas = {}
    for key, fitted in tried.items():
        rows = tried.get("benefit", fitted).dev
        scores = fitted.gate.score([row.example for row in rows])
        areas[key] = classifier_metrics([row.is_needed for row in rows], scores).get("auroc", 0.5)
    return max(areas, key=lambda key: areas[key]), {str(key): area for key, area in areas.items()}


def plain_rows(rows: tuple[Labelled, ...]) -> list[Labelled]:
    """The rows without retrieved text, if there are any: what a gate is asked about before a search."""
    return [row for row in rows if getattr(row.example, "reference", None) is None] or list(rows)
