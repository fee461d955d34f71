"""Recipes that fit a gate in seconds: data by key, features, the output folder, the ends of their fits."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kbtrain.errors import UserError, at
from kbtrain.gate.card import CARD, GateCard, KeyedCard
from kbtrain.gate.gate import Gate
from kbtrain.gate.trained_on import HeldOut, write_held_out
from kbtrain.io.jsonl import read_json
from kbtrain.io.provenance import check_examples, defaults_of, git_state, package_versions, peak_rss_mb
from kbtrain.records import GateExample, Split, Target
from kbtrain.training.config import FitConfig, KeyedFitConfig
from kbtrain.training.data import Labelled, check_disjoint, label_rule, labelled_questions
from kbtrain.training.finish import DevScores, Ending, largest_difference
from kbtrain.training.recipe import claim_folder


@dataclass(frozen=True)
class KeyedData:
    """Labelled plain questions by key; a question without a key's label is skipped there."""

    train: Mapping[Target, Sequence[Labelled]]
    dev: Mapping[Target, Sequence[Labelled]]

    def questions(self, split: Split = "train") -> list[GateExample]:
        """Every question once, with any keys."""
        rows = self.train if split == "train" else self.dev
        examples = [row.example for part in rows.values() for row in part]
        return list({example.id: example for example in examples if isinstance(example, GateExample)}.values())


def read_keyed(config: KeyedFitConfig) -> KeyedData:
    """Both files. Raises :class:`UserError` for a key without labels, and for splits that overlap."""
    train: dict[Target, list[Labelled]] = {}
    dev: dict[Target, list[Labelled]] = {}
    for key in config.keys:
        train[key] = labelled_questions(config.train, "train", key, config.labels)
        dev[key] = labelled_questions(config.dev, "dev", key, config.labels)
    data = KeyedData(train, dev)
    check_disjoint(data.questions(), data.questions("dev"), config.train, config.dev)
    return data


DATA = frozenset({"output", "train", "dev"})  # keys of paths


def claim_fit_folder(config: FitConfig, kind: str, paths: frozenset[str] = frozenset(), **facts: bool) -> None:
    """Bind the output folder to a gate's kind and settings, and to ``facts``; ``paths``: keys that say where something
    lies.

    Data do not bind it: a gate that is fitted in seconds is fitted again where they, or its code, have changed. Raises
    :class:`UserError` if another gate, or one with other settings, is in the folder.
    """
    check_examples(config.train, config.dev)
    card = config.output / CARD
    stored_kind = read_json(card).get("kind") if card.exists() else kind
    if stored_kind != kind:
        raise UserError(
            f"{at(card)}: a gate '{stored_kind}' is in this folder; choose another output, or delete the folder"
        )
    settings = {key: value for key, value in config.model_dump(mode="json").items() if key not in DATA | paths}
    claim_folder(config.output, {"gate": kind, **settings, **facts}, defaults_of(config))


Scores = Mapping[str, Sequence[float]]  # by name, of all dev questions in their order


@dataclass(frozen=True)
class KeyedFit:
    """A gate fitted to several keys, ready to be put into its folder.

    ``write``: writes what the folder needs beside its card. ``dev``: scores of the dev questions; ``again``: the same
    by the gate of a folder. ``held_out``: by name of the score, those of training questions by gates fitted without
    them. ``what``, ``points``, ``limits``: for the model card. ``inputs``: further files that it was made from;
    ``members``: folders of gates that it is made of.
    """

    card: KeyedCard
    write: Callable[[Path], None]
    dev: Scores
    again: Callable[[Path], Scores]
    held_out: Mapping[str, Sequence[HeldOut]]
    what: str
    points: tuple[str, ...]
    limits: str
    inputs: Sequence[Path] = ()
    members: Sequence[Path] = ()


class KeyedEnding(Ending):
    def __init__(self, config: KeyedFitConfig, data: KeyedData, fit: KeyedFit, started: float) -> None:
        super().__init__(config)
        self.fit, self.started = fit, started
        ids, keys, names = [example.id for example in data.questions("dev")], fit.card.keys, fit.card.names()
        self.dev: dict[Target, DevScores] = {}
        for key, name in zip(keys, names, strict=True):
            by_id = dict(zip(ids, fit.dev[name], strict=True))
            scores = [by_id[row.example.id] for row in data.dev[key]]
            self.dev[key] = DevScores.from_scores(name, scores, data.dev[key], config.dev)
        counts = {
            "train_questions": {key: len(rows) for key, rows in data.train.items()},
            "dev_questions": {key: len(rows) for key, rows in data.dev.items()},
        }
        self.run = {**config.model_dump(mode="json"), **_fit_facts(counts, started)}
        self.facts = {"dev": {key: scores.metrics for key, scores in self.dev.items()}}
        areas = {key: scores.metrics["auroc"] for key, scores in self.dev.items() if "auroc" in scores.metrics}
        self.figures = {f"auroc_{key}": area for key, area in areas.items()}
        self.questions, self.members, self.inputs = data.questions(), fit.members, fit.inputs
        self.trained_on = f"{len(self.questions)} questions"
        thresholds = {name: self.dev[key].threshold for key, name in zip(keys, names, strict=True)}
        about = {"run": self.run, "label_rule": label_rule(config.train), "versions": package_versions()}
        self.card = fit.card.model_copy(update={"thresholds": thresholds, **about})

    def write(self, folder: Path) -> None:
        self.fit.write(folder)
        write_held_out(folder, self.fit.held_out)
        self.card.write(folder)

    def difference(self, folder: Path) -> float:
        again = self.fit.again(folder)
        return max(largest_difference(self.fit.dev[name], again[name]) for name in self.card.names())

    def readme(self, worst: float) -> str:
        fit, card = self.fit, self.card
        (_, scores), *others = self.dev.items()
        return scores.page(
            worst, card, "questions",
            {f"{key} on dev ({other.counts('questions')})": other.table for key, other in others},
            title=f"Retrieval gate (`{card.kind}`)", what=fit.what, points=fit.points, limits=fit.limits,
            threshold="\n".join(scores.threshold_text for scores in self.dev.values()),
        )  # fmt: skip


@dataclass(frozen=True)
class FittedGate:
    """A gate and the rows that it was fitted to and is measured on."""

    gate: Gate
    train: Sequence[Labelled]
    dev: Sequence[Labelled]


class SingleEnding(Ending):
    """The end of a fit of a gate with one score, whose card has what it learnt.

    ``chosen``: settings that dev chose, for card and model card; a field of the card is taken over. A gate with weights
    writes them by ``save_beside(folder)``.
    """

    def __init__(
        self,
        config: FitConfig,
        fitted: FittedGate,
        open_again: Callable[[Path], Gate],
        started: float,
        chosen: Mapping[str, Any],
    ) -> None:
        super().__init__(config)
        self.gate, self.open_again = fitted.gate, open_again
        self.started, self.chosen, self.labels = started, chosen, config.labels
        scores = fitted.gate.score([row.example for row in fitted.dev])
        self.dev = DevScores.from_scores(fitted.gate.name, scores, fitted.dev, config.dev)
        self.figures, self.facts = self.dev.metrics, {"dev": self.dev.metrics}
        self.trained_on, self.questions = f"{len(fitted.train)} examples", [row.example for row in fitted.train]
        counts = {"train_examples": len(fitted.train), "dev_examples": len(fitted.dev)}
        self.run = {**config.model_dump(mode="json"), **chosen, **_fit_facts(counts, started)}
        card = self.gate.card
        if card is None:
            raise UserError(f"gate '{self.gate.name}': no card to write")
        self.run = {**card.run, **self.run}
        rule = label_rule(config.train)
        about = {"label_rule": rule, "versions": package_versions(), "labels": self.labels, **chosen}
        fields = type(card).model_fields.keys() - card.ABSENT
        of_card = {name: value for name, value in about.items() if name in fields}
        thresholds = {self.gate.name: self.dev.threshold}
        self.card: GateCard = card.model_copy(update={"run": self.run, "thresholds": thresholds, **of_card})

    def difference(self, folder: Path) -> float:
        return largest_difference(self.dev.scores, self.open_again(folder).score(self.dev.examples))

    def readme(self, worst: float) -> str:
        gate, base = self.gate, self.card.base_model
        learnt = {name: value for name, value in (gate.card.run if gate.card else {}).items() if isinstance(value, str)}
        return self.dev.page(
            worst,
            self.card,
            title=f"Retrieval gate (`{gate.name}`)",
            what=" ".join((type(gate).__doc__ or "Says whether retrieval is needed.").split()),
            points=(
                f"Labels: {self.labels}; a higher score means that retrieval is more needed.",
                *((f"Stands on {base}.",) if base else ()),
                *(f"{name}: {value}" for name, value in (*learnt.items(), *self.chosen.items())),
            ),
            limits="it was fitted to the data named below; other data were not tested.",
        )


def _fit_facts(counts: Mapping[str, Any], started: float) -> dict[str, Any]:
    """Facts of a fitting beside its settings: the state of the code, ``counts``, time and memory."""
    seconds = round(time.monotonic() - started, 1)
    return {**git_state(), **counts, "seconds": seconds, "peak_rss_mb": peak_rss_mb()}
