"""Learning curves of gates: how good they are by the number of labelled training questions.

In each draw the training questions are shuffled, and every size takes the first of them, so that a draw's sizes are
nested and gates see the same questions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.evaluation.outcomes import answers, is_needed
from kbtrain.gate.gate import logistic
from kbtrain.gate.trained_on import question_hash
from kbtrain.gates.encoder.probe import ProbeInput, embeddings, fit_head
from kbtrain.gates.features.additive import check_need, fit_additive, held_out_log_odds
from kbtrain.gates.features.gate import feature_rows
from kbtrain.gates.features.question import Frequencies
from kbtrain.gates.probe.gate import DraftProbe, Probe, Reader, state_facts
from kbtrain.gates.probe.states import StateStore, prompt_key, read_all
from kbtrain.gates.probe.train import HeadSettings
from kbtrain.gates.probe.train import fit as fit_probe
from kbtrain.gates.stack import fit_linear
from kbtrain.metrics.choice import chosen_value
from kbtrain.metrics.ranking import auroc, drawn_areas
from kbtrain.metrics.significance import Delta
from kbtrain.prompts.kbm import Key
from kbtrain.records import GateExample, Outcome
from kbtrain.training.data import need
from kbtrain.training.folds import groups_of

_DRAWS, _SEED = 1000, 20_244  # resamples of the test questions for a corrected area


@dataclass(frozen=True)
class FittedScores:
    """Scores of the test questions by a gate fitted to some training questions.

    ``held_out``: those of the training questions by gates fitted without them, in their order; None: not known.
    """

    test: Floats
    held_out: tuple[float, ...] | None = None


Examples = Sequence[GateExample]
# Fits a kind of gate to the soft labels of a draw, and scores the test questions. What does not depend on the draw is
# computed before. Raises UserError for too few questions, or for one class.
Fit = Callable[[Examples, Key], FittedScores]


def needs(train: Examples, key: Key) -> list[float]:
    """Soft labels as probabilities that retrieval is needed. Raises :class:`UserError` for one class, or too few."""
    values = [value for example in train if (value := need(example, key, "soft")) is not None]
    check_need(values, f"key '{key}'")
    return values


def features_fit(frequencies: Frequencies, train: Examples, test: Examples) -> Fit:
    """The gate ``features``, from the corpus frequencies of an index."""
    of_train = dict(zip([e.id for e in train], feature_rows(frequencies, train, after_search=False), strict=True))
    of_test = feature_rows(frequencies, test, after_search=False)

    def fit(part: Examples, key: Key) -> FittedScores:
        rows, labels, groups = [of_train[example.id] for example in part], needs(part, key), groups_of(part)
        model = fit_additive(rows, labels, groups=groups)
        left_out = tuple(logistic(value) for value in held_out_log_odds(rows, labels, groups=groups))
        return FittedScores(np.array([logistic(value) for value in model.log_odds(of_test)]), left_out)

    return fit


def encoder_fit(encoder: str, device: str, train: Examples, test: Examples) -> Fit:
    """The gate ``encoder_probe``: a regression on a frozen encoder's embeddings; ``encoder`` by its name."""
    from kbtrain.models.adapters import open_body

    body, tokenizer = open_body(encoder, "fp32", device)
    of_train, of_test = (embeddings(body, ProbeInput(tokenizer, 128), examples) for examples in (train, test))
    vectors = dict(zip([e.id for e in train], of_train, strict=True))

    def fit(part: Examples, key: Key) -> FittedScores:
        head = fit_head(np.stack([vectors[example.id] for example in part]), [{} for _ in part], needs(part, key))
        return FittedScores(head.intercept + of_test @ np.array(head.embedding))

    return fit


def probe_fit(reader: Reader, model: str, states: Path, train: Examples, test: Examples) -> Fit:
    """The gates ``probe`` and ``draft_probe``: heads on the states of ``model``, which are kept in ``states``."""
    from kbtrain.models.adapters import base_fingerprint
    from kbtrain.models.load import name_of

    store = StateStore(states, state_facts(base_fingerprint(model), name_of(reader.model.dtype), model) | reader.facts)
    for examples in (train, test):
        read_all(store.extract(reader.model, reader.prompts(examples), reader.read), len(examples))
    of_test = [prompt_key(ids) for ids in reader.prompts(test)]
    kind = DraftProbe if reader.condition == "draft" else Probe

    def fit(part: Examples, key: Key) -> FittedScores:
        needs(part, key)
        fitted = fit_probe(reader, store, part, HeadSettings((key,), average=4))[key]
        gate, held_out = kind(reader, {key: fitted.head}, "ridge"), dict(fitted.left_out)
        scores = np.array(gate.scores_of(store.layers(of_test, gate.layers), key))
        return FittedScores(scores, tuple(held_out[question_hash(example.question)] for example in part))

    return fit


def stacked(parts: Mapping[str, FittedScores], train: Sequence[GateExample], key: Key) -> FittedScores:
    """The gate ``stack`` of gates that have held-out scores of the training questions."""
    columns = {name: part.held_out for name, part in parts.items() if part.held_out is not None}
    model = fit_linear(columns, needs(train, key), groups=groups_of(train))
    return FittedScores(np.array(model.log_odds({name: parts[name].test.tolist() for name in columns})))


@dataclass(frozen=True)
class CurvePoint:
    """One gate fitted to ``n`` training questions of one draw: figures on the test questions.

    ``auroc_wrong``: of "the answer without retrieval is wrong"; ``auroc_needed``: of "only retrieval makes it right".
    ``area``: between random (0) and the oracle (1). None: one class alone, or nothing to gain. ``corrected``: of the
    gate with the greatest area of its size, draw and key, that area corrected for the choice.
    """

    gate: str
    key: Key
    n: int
    draw: int
    area: float | None
    auroc_wrong: float | None
    auroc_needed: float | None
    corrected: Delta | None = None


@dataclass(frozen=True)
class CurvePlan:
    """Labels to learn, sizes of the training parts, and the number of random parts of each size."""

    keys: Sequence[Key]
    sizes: Sequence[int]
    draws: int
    seed: int = 0

    def parts(self, available: int) -> list[tuple[int, int]]:
        """Size and draw of each part: of the sizes that there are questions for, and of all of them, in one draw."""
        sizes = sorted({n for n in self.sizes if n < available})
        return [(n, draw) for n in sizes for draw in range(self.draws)] + [(available, 0)]


def learning_curve(
    learners: Mapping[str, Fit],
    train: Examples,
    outcomes: Sequence[Outcome],
    plan: CurvePlan,
    done: Callable[[], object] = lambda: None,
) -> Iterator[CurvePoint]:
    """Points by size, draw, key and gate; ``done`` is called after each fit.

    With two gates or more that have held-out scores, ``stack`` of them is beside. Raises :class:`UserError` for a
    draw without both kinds of labels.
    """
    table = answers(outcomes, "greedy")
    wrong, helped = table.llm < 0.5, is_needed(outcomes)
    for n, draw in plan.parts(len(train)):
        chosen = list(train)
        random.Random(f"{plan.seed}/{draw}").shuffle(chosen)
        chosen = chosen[:n]
        for key in plan.keys:
            parts = {}
            for name, fit in learners.items():
                parts[name] = fit(chosen, key)
                done()
            if sum(part.held_out is not None for part in parts.values()) > 1:
                parts["stack"] = stacked(parts, chosen, key)
            drawn = drawn_areas([part.test for part in parts.values()], table.llm, table.rag, _DRAWS, _SEED)
            areas = [None] * len(parts) if drawn is None else drawn[0].tolist()
            best = None if drawn is None or len(parts) < 2 else chosen_value(drawn)  # one gate is not chosen
            for i, (name, part) in enumerate(parts.items()):
                ranked = _auroc(wrong, part.test), _auroc(helped, part.test)
                corrected = best.corrected if best is not None and best.place == i else None
                yield CurvePoint(name, key, n, draw, areas[i], *ranked, corrected)


def _auroc(truth: Bools, scores: Floats) -> float | None:
    return float(auroc(truth, scores)[0]) if truth.any() and not truth.all() else None
