"""The gate ``features``: how a question is put, and how often its words are in the corpus; no model is called.

``after_search``: it also reads how well the retriever's passages fit, so it is asked when they are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from kbtrain.gate.card import KeyedCard, Stage
from kbtrain.gate.gate import KeyedGate, logistic
from kbtrain.gate.trained_on import HeldOut, held_out_rows
from kbtrain.gates.features.additive import Additive, Row, check_need, fit_additive, held_out_log_odds
from kbtrain.gates.features.question import Frequencies, evidence_features, question_features, spelling_features
from kbtrain.gates.registry import QUESTION, Kind
from kbtrain.records import GateExample, Target
from kbtrain.training.data import Labelled, Labels, examples_of
from kbtrain.training.folds import groups_of


class FeaturesCard(KeyedCard):
    """The content of ``gate.json``: an additive model for each key; corpus frequencies lie beside it.

    ``name_rule``: the rule by which words of a question are names.
    """

    PREFIX: ClassVar[str] = "features"
    USES_MODEL = False
    ABSENT = frozenset({"base_model"})
    kind: Literal["features"] = "features"
    labels: Labels
    after_search: bool = False
    name_rule: Literal["cased"]
    models: dict[Target, Additive]

    @property
    def stage(self) -> Stage:
        return "search" if self.after_search else "question"


class Features(KeyedGate):
    """Score = p(retrieval needed) in [0, 1] by :attr:`key`: not mastered, not certain, or benefit."""

    prefix = "features"
    unit = "probability"

    def __init__(self, frequencies: Frequencies, card: FeaturesCard, key: Target | None = None) -> None:
        self.frequencies = frequencies
        self.card: FeaturesCard = card
        self.keys: tuple[Target, ...] = card.keys
        self.key: Target = card.keys[0] if key is None else key
        self.needs_evidence = card.after_search

    @classmethod
    def fit(
        cls,
        frequencies: Frequencies,
        data: Mapping[Target, Sequence[Labelled]],
        labels: Labels = "soft",
        after_search: bool = False,
        seed: int = 0,
        spelling: bool = True,
    ) -> Features:
        """A gate with a model for each key of ``data``. ``spelling``: the gate reads the character n-grams of
        words that the corpus does not have.

        Raises :class:`UserError` for fewer than 20 questions, or a key with one class.
        """
        models = {}
        for key, part in data.items():
            need = [row.need for row in part]
            check_need(need, f"key '{key}'")
            questions = examples_of(GateExample, part)
            rows = feature_rows(frequencies, questions, after_search, spelling)
            models[key] = fit_additive(rows, need, seed, groups_of(questions))
        card = FeaturesCard(
            keys=tuple(data), labels=labels, after_search=after_search, name_rule="cased", models=models
        )
        return cls(frequencies, card)

    @classmethod
    def fit_form(cls, examples: Sequence[GateExample], need: Sequence[float], key: Target) -> Features:
        """From the form of questions alone: without a corpus no word's frequency is known.

        Raises :class:`UserError` for fewer than 20 questions, and for one class.
        """
        rows = [Labelled(example, value) for example, value in zip(examples, need, strict=True)]
        gate = cls.fit(Frequencies.none(), {key: rows}, spelling=False)
        gate.card = gate.card.model_copy(update={"run": {"corpus": "none: it reads only the form of a question"}})
        return gate

    def save_beside(self, folder: Path) -> None:
        self.frequencies.save(folder)

    def scores_by_name(self, examples: Sequence[GateExample]) -> dict[str, list[float]]:
        rows, models = self.rows(examples), self.card.models
        return {f"{self.prefix}_{key}": [logistic(x) for x in models[key].log_odds(rows)] for key in self.keys}

    def rows(self, examples: Sequence[GateExample]) -> list[Row]:
        """Features of each example, by the card's rules."""
        spelling = any(model.grams for model in self.card.models.values())
        return feature_rows(self.frequencies, examples, self.card.after_search, spelling)

    @classmethod
    def load(cls, folder: Path | str, dtype: str = "auto", device: str = "auto") -> Features:
        card = FeaturesCard.read(folder)
        return cls(Frequencies.load(Path(folder)), card, card.best_key())


def feature_rows(
    frequencies: Frequencies, examples: Sequence[GateExample], after_search: bool, spelling: bool = True
) -> list[Row]:
    """Features of each example by name. An example without passages counts as one for which none was found.

    ``spelling`` as in :meth:`Features.fit`.
    """
    rows: list[Row] = []
    for example in examples:
        row = question_features(example, frequencies)
        if spelling:
            row |= spelling_features(example, frequencies)
        rows.append({**row, **evidence_features(example, frequencies)} if after_search else row)
    return rows


def held_out_scores(gate: Features, data: Mapping[Target, Sequence[Labelled]], seed: int) -> dict[str, list[HeldOut]]:
    """Score of each training question by a gate fitted without its fold, by the scores' names."""
    scores = {}
    for key, part in data.items():
        questions = examples_of(GateExample, part)
        rows = gate.rows(questions)
        odds = held_out_log_odds(rows, [row.need for row in part], seed, groups_of(questions))
        scores[f"{gate.prefix}_{key}"] = held_out_rows(questions, odds)
    return scores


KIND = Kind(FeaturesCard, Features.load, QUESTION, "recipes/train_features.py", fit=Features.fit_form)
