"""Learning curves of gates: how good they are by the number of labelled training questions.

In each draw the training questions are shuffled, and every size takes the first of them, so that a draw's sizes are
nested and gates see the same questions.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from kbtrain.arrays import Bools, Floats
from kbtrain.config import read_yaml
from kbtrain.errors import UserError, at
from kbtrain.evaluation.outcomes import Correctness, answers, is_needed
from kbtrain.gate.gate import logistic
from kbtrain.gate.trained_on import question_hash
from kbtrain.gates.encoder.probe import ProbeInput, embeddings, fit_head
from kbtrain.gates.features.additive import LEAST, check_need, fit_additive, held_out_log_odds
from kbtrain.gates.features.frequencies import Frequencies
from kbtrain.gates.features.gate import feature_rows
from kbtrain.gates.kbm.gate import KBM
from kbtrain.gates.probe.gate import Asked, DraftProbe, Probe, Reader, state_facts
from kbtrain.gates.probe.states import StateStore, prompt_key
from kbtrain.gates.probe.train import HeadSettings
from kbtrain.gates.probe.train import fit as fit_probe
from kbtrain.gates.stack import linear
from kbtrain.io import jsonl
from kbtrain.io.artifact import MODEL_FILES, Artifact
from kbtrain.io.provenance import file_sha256, write_atomically
from kbtrain.metrics.choice import chosen_value
from kbtrain.metrics.ranking import auroc, normalised_area
from kbtrain.metrics.significance import Delta, resampled_areas
from kbtrain.models.files_read import hashes_of
from kbtrain.prompts.kbm import Key
from kbtrain.prompts.own import OwnPrompts
from kbtrain.records import GateExample, Outcome
from kbtrain.runtime.stage_process import run_to_end
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


class Learner(Protocol):
    """A kind of gate that is fitted to each draw; what does not depend on the draw is computed once."""

    name: str

    def fit(self, train: Sequence[GateExample], key: Key) -> FittedScores:
        """Fit to these soft labels, score the test questions. Raises :class:`UserError` for too few questions."""
        ...


def needs(train: Sequence[GateExample], key: Key) -> list[float]:
    """Soft labels as probabilities that retrieval is needed. Raises :class:`UserError` for one class, or too few."""
    labels = [need(example, key, "soft") for example in train]
    values = [value for value in labels if value is not None]
    if len(values) < len(labels):
        raise UserError(f"key '{key}': {len(labels) - len(values)} training questions have no soft label; label them")
    check_need(values, f"key '{key}'")
    return values


class FeaturesLearner:
    """The gate ``features``, from the corpus frequencies of an index."""

    name = "features"

    def __init__(self, frequencies: Frequencies, train: Sequence[GateExample], test: Sequence[GateExample]) -> None:
        rows = feature_rows(frequencies, train, after_search=False)
        self.rows = dict(zip([e.id for e in train], rows, strict=True))
        self.test = feature_rows(frequencies, test, after_search=False)

    def fit(self, train: Sequence[GateExample], key: Key) -> FittedScores:
        """See :class:`Learner`."""
        rows, labels = [self.rows[example.id] for example in train], needs(train, key)
        groups = groups_of(train)
        model = fit_additive(rows, labels, groups=groups)
        left_out = tuple(logistic(value) for value in held_out_log_odds(rows, labels, groups=groups))
        return FittedScores(np.array([logistic(value) for value in model.log_odds(self.test)]), left_out)


class EncoderLearner:
    """The gate ``encoder_probe``: a regression on a frozen encoder's embeddings."""

    name = "encoder_probe"

    def __init__(
        self, body: object, reader: ProbeInput, train: Sequence[GateExample], test: Sequence[GateExample]
    ) -> None:
        vectors = embeddings(body, reader, train)  # type: ignore[arg-type]  # a model; torch is not imported here
        self.vectors = dict(zip([e.id for e in train], vectors, strict=True))
        self.test = embeddings(body, reader, test)  # type: ignore[arg-type]

    @classmethod
    def open(
        cls, encoder: str, device: str, train: Sequence[GateExample], test: Sequence[GateExample]
    ) -> EncoderLearner:
        """By the encoder's name."""
        from kbtrain.models.encoders import open_body

        body, tokenizer = open_body(encoder, "fp32", device)
        return cls(body, ProbeInput(tokenizer, 128), train, test)

    def fit(self, train: Sequence[GateExample], key: Key) -> FittedScores:
        """See :class:`Learner`."""
        vectors = np.stack([self.vectors[example.id] for example in train])
        head = fit_head(vectors, [{} for _ in train], needs(train, key))
        return FittedScores(head.intercept + self.test @ np.array(head.embedding))


class ProbeLearner:
    """The gates ``probe`` and ``draft_probe``: heads on the answering model's states, which are stored."""

    def __init__(self, reader: Reader, store: StateStore, test: Sequence[GateExample], average: int = 4) -> None:
        self.gate = DraftProbe if reader.condition == "draft" else Probe
        self.name = self.gate.prefix
        self.reader, self.store, self.average = reader, store, average
        self.test = [prompt_key(ids) for ids in reader.prompts(test)]

    @classmethod
    def open(
        cls,
        model: str,
        dtype: str,
        device: str,
        prompts: OwnPrompts | None,
        states: Path,
        test: Sequence[GateExample],
        condition: Asked = "llm",
    ) -> ProbeLearner:
        """By the answering model's name; ``own``: templates under which it answered; ``states``: where its are kept."""
        from kbtrain.models.adapters import base_fingerprint
        from kbtrain.models.load import load_model, name_of

        opened, tokenizer = load_model(model, dtype, device)
        reader = Reader(opened, tokenizer, condition, prompts)
        facts = state_facts(base_fingerprint(model), name_of(opened.dtype), model) | reader.facts
        return cls(reader, StateStore(states, facts), test)

    def extract(self, examples: Sequence[GateExample], kept_by_sampling: bool) -> Iterator[int]:
        """Compute the states that are not stored yet; yields the numbers of questions that are done."""
        prompts = self.reader.prompts(examples)
        return self.store.extract(self.reader.model, prompts, self.reader.read, kept_by_sampling)

    def fit(self, train: Sequence[GateExample], key: Key) -> FittedScores:
        """See :class:`Learner`."""
        needs(train, key)
        fitted = fit_probe(self.reader, self.store, train, HeadSettings((key,), average=self.average))
        gate = self.gate(self.reader, {key: fitted[key].head}, "ridge")
        held_out = dict(fitted[key].left_out)
        left_out = tuple(held_out[question_hash(example.question)] for example in train)
        return FittedScores(np.array(gate.scores_of(self.store.layers(self.test, gate.layers), key)), left_out)


class KBMLearner:
    """The gate ``kbm``: one training for all keys of a draw, minutes each; its test scores stay in ``folder``.

    ``train`` makes a gate's folder of the files of its training examples; ``depends``: the other settings that the
    scores depend on, beside the files of the base ``model``. A stopped curve trains only what it has no scores of.
    """

    name = "kbm"

    def __init__(
        self,
        train: Callable[[Path, Path], None],
        folder: Path,
        test: Sequence[GateExample],
        device: str = "auto",
        depends: str = "",
        model: str = "",
    ) -> None:
        self.train, self.folder, self.test, self.device = train, folder, test, device
        self.depends, self.model = depends, model

    @classmethod
    def by_recipe(
        cls, recipe: Path, settings: Path, dev: Path, folder: Path, keys: Sequence[Key], test: Sequence[GateExample],
        device: str,
    ) -> KBMLearner:  # fmt: skip
        """Trained by ``recipe`` with its configuration ``settings``, in a process of its own, all ``keys`` at once.

        A training that fails is a :class:`UserError` with its last line.
        """
        options = ("--config", str(settings), "--keys", f"[{', '.join(keys)}]", "--dev", str(dev), "--device", device)

        def train(examples: Path, output: Path) -> None:
            command = [sys.executable, str(recipe), *options, "--train", str(examples), "--output", str(output)]
            done = run_to_end(command, capture_errors=True)
            if done.code:
                last = (done.errors.strip() or "no message").splitlines()[-1].removeprefix("error: ")
                raise UserError(f"gate 'kbm' of {output.parent}: its training ended ({last:.300})")

        depends = " ".join([file_sha256(settings), file_sha256(dev), *keys])
        return cls(train, folder, test, device, depends, str(read_yaml(settings)[0].get("model", "")))

    def fit(self, train: Sequence[GateExample], key: Key) -> FittedScores:
        """See :class:`Learner`."""
        needs(train, key)
        facts = [self.depends, *([jsonl.dump(example) for example in part] for part in (train, self.test))]
        digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
        if not self._artifact(digest).is_current():
            scores = self._scores(train, self.folder / digest)
            write_atomically(self.folder / f"{digest}.json", json.dumps(scores))
            self._artifact(digest).finish()  # last: a hub's model is here once it was trained
        return FittedScores(np.array(jsonl.read_json(self.folder / f"{digest}.json")[f"kbm_{key}"]))

    def _artifact(self, digest: str) -> Artifact:
        key = {"facts": digest, MODEL_FILES: (self.model and hashes_of(self.model)) or None}
        return Artifact(self.folder / f"{digest}.json", "learning_curve", {}, key=key)

    def _scores(self, train: Sequence[GateExample], folder: Path) -> dict[str, list[float]]:
        """Of the test questions by every key; weights and checkpoints are left only where a training was stopped."""
        jsonl.write(folder / "train.jsonl", train)
        self.train(folder / "train.jsonl", folder / "kbm")
        scores = KBM.load(folder / "kbm", device=self.device).score_all(self.test)
        shutil.rmtree(folder)
        return scores


def stacked(parts: Mapping[str, FittedScores], train: Sequence[GateExample], key: Key) -> FittedScores:
    """The gate ``stack`` of gates that have held-out scores of the training questions."""
    columns = {name: part.held_out for name, part in parts.items() if part.held_out is not None}
    model = linear.fit_linear(columns, needs(train, key), groups=groups_of(train))
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


def sizes_of(available: int, sizes: Sequence[int], path: Path | None = None) -> list[int]:
    """The sizes that there are questions for, and all of them.

    Raises :class:`UserError` for fewer than 20, naming their file as far as it is known.
    """
    if available < LEAST:
        where = "" if path is None else f"{at(path)}: "
        raise UserError(f"{where}{available} labelled training questions; a learning curve needs {LEAST} at least")
    return sorted({n for n in sizes if n < available} | {available})


@dataclass(frozen=True)
class CurvePlan:
    """Labels to learn, sizes of the training parts, and the number of random parts of each size."""

    keys: Sequence[Key]
    sizes: Sequence[int]
    draws: int
    seed: int = 0


def learning_curve(
    learners: Sequence[Learner],
    train: Sequence[GateExample],
    outcomes: Sequence[Outcome],
    plan: CurvePlan,
    done: Callable[[], object] = lambda: None,
) -> Iterator[CurvePoint]:
    """Points by size, draw, key and gate; with all questions there is one draw. ``done`` is called after each fit.

    With two gates or more that have held-out scores, ``stack`` of them stands beside. Raises :class:`UserError` for a
    draw without both kinds of labels.
    """
    table = answers(outcomes, "greedy")
    wrong, helped = table.llm < 0.5, is_needed(outcomes)
    for n in sizes_of(len(train), plan.sizes):
        for draw in range(plan.draws if n < len(train) else 1):
            chosen = list(train)
            random.Random(f"{plan.seed}/{draw}").shuffle(chosen)
            chosen = chosen[:n]
            for key in plan.keys:
                parts = {}
                for learner in learners:
                    parts[learner.name] = learner.fit(chosen, key)
                    done()
                if sum(part.held_out is not None for part in parts.values()) > 1:
                    parts["stack"] = stacked(parts, chosen, key)
                areas = {name: normalised_area(part.test, table.llm, table.rag) for name, part in parts.items()}
                best = _best_area({name: part.test for name, part in parts.items()}, areas, table)
                for name, part in parts.items():
                    ranked = _auroc(wrong, part.test), _auroc(helped, part.test)
                    yield CurvePoint(name, key, n, draw, areas[name], *ranked, best.get(name))


def _best_area(scores: Mapping[str, Floats], areas: Mapping[str, float | None], table: Correctness) -> dict[str, Delta]:
    """The gate of the greatest area, and that area corrected for the choice; nothing where areas are undefined."""
    defined = [area for area in areas.values() if area is not None]
    if len(defined) < len(areas):
        return {}
    drawn = resampled_areas(list(scores.values()), table.llm, table.rag, _DRAWS, _SEED)
    best = chosen_value(np.concatenate([[defined], drawn]))
    return {list(scores)[best.place]: best.corrected}


def _auroc(truth: Bools, scores: Floats) -> float | None:
    return float(auroc(truth, scores)[0]) if truth.any() and not truth.all() else None
