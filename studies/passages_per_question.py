"""How many passages for each question: none, few or more, against the best fixed number of them.

Reads the pilot's greedy answers of a run (all splits, two numbers of passages; delete RUN/pilot of another one first),
fits `features` or a probe to the gain of each number over none, and chooses for each question the number with the
largest predicted gain. How much more a passage has to gain before it is read is chosen on dev and held-out training
questions; the test questions are evaluated once.

The result is a table for `make figures TABLES=RUN/passages_per_question.json`.

Examples:
  python data_gen/pilot.py --run runs/demo --splits "[train, dev, test]" --ks "[1, 3]" --k 1
  python studies/passages_per_question.py --run runs/demo --ks "[1, 3]"
  python studies/passages_per_question.py --run runs/demo --ks "[1, 3]" --gate probe
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.evaluation.outcomes import grade
from kbtrain.evaluation.search_pilot import NEVER, SearchSetting
from kbtrain.gates.features.gate import Features
from kbtrain.gates.features.question import Frequencies
from kbtrain.gates.probe.gate import Probe
from kbtrain.gates.probe.head import fit_head, fit_layers, left_out
from kbtrain.gates.registry import load_gate
from kbtrain.io.provenance import write_atomically
from kbtrain.io.store import SampleStore
from kbtrain.labeling.examples import example
from kbtrain.metrics.significance import interval, resampled_means, widened
from kbtrain.questions.checks import read_questions
from kbtrain.records import GateExample, Question
from kbtrain.report.words import percent, points, points_interval
from kbtrain.training.data import Labelled
from kbtrain.training.folds import groups_of

FOLDS, DRAWS, SEED = 5, 10_000, 0
MARGINS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 2.0)  # 2: that number of passages is never taken


class PassagesConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with the answers of data_gen/pilot.py in all splits")
    ks: tuple[int, int] = Field((1, 3), description="numbers of passages that were asked")
    candidates: str = Field("candidates", description="name of the hits' file")
    gate: Literal["features", "probe"] = Field(
        "features", description="what predicts the gains; probe: as RUN/probe reads"
    )

    def writes(self) -> tuple[Path, ...]:
        return (self.run / f"{self.table}.json",)

    @property
    def table(self) -> str:
        return "passages_per_question" + "_by_probe" * (self.gate == "probe")


def main(config: PassagesConfig) -> None:
    questions, right = read_answers(config)
    part = np.array([question.split for question in questions])
    examples = [example(question, None) for question in questions]
    train, test = np.flatnonzero(part == "train"), np.flatnonzero(part == "test")
    chosen_on = np.flatnonzero(part != "test")
    gains = right[:, 1:] - right[:, :1]
    predict = predict_by_features if config.gate == "features" else predict_by_states
    predicted = predict(config.run, examples, gains, train)
    margins = choose_margins(predicted[chosen_on], right[chosen_on])
    taken = choices(predicted, margins)
    fixed = 1 + int(np.argmax(right[chosen_on, 1:].mean(0)))
    facts = describe(config.ks, right[test], taken[test], fixed)
    tables = {
        config.table.replace("_", "-"): {"columns": ["", "value"], "rows": [list(fact) for fact in facts.items()]}
    }
    document = {"margins": margins, "tables": tables}
    write_atomically(config.writes()[0], json.dumps(document, indent=1) + "\n")
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))


def read_answers(config: PassagesConfig) -> tuple[list[Question], Floats]:
    """The questions with a verdict under all settings; (questions, 3): right without passages and with each number."""
    names = [NEVER, *(SearchSetting(config.candidates, k).name for k in config.ks)]
    by_id = {question.id: question for _, question in read_questions(config.run / "questions.jsonl")}
    verdicts: dict[str, dict[str, bool | None]] = {}
    with SampleStore(config.run / "pilot/samples.db", read_only=True) as store:
        for name in names:
            rows = store.iterate(name)
            verdicts[name] = {row.question_id: grade(by_id[row.question_id], row).correct for row in rows}
    ids = [key for key in by_id if all(verdicts[name].get(key) is not None for name in names)]
    table = np.array([[float(bool(verdicts[name][key])) for name in names] for key in ids])
    return [by_id[key] for key in ids], table


def predict_by_features(run: Path, examples: Sequence[GateExample], gains: Floats, train: np.ndarray) -> Floats:
    """(questions, numbers) predicted gains, of a training question by a gate fitted without its fold."""
    frequencies = Frequencies.of_index(run / "bm25")

    def predict(gain: Floats) -> Floats:
        def fit(places: np.ndarray) -> Features:
            rows = [Labelled(examples[i], (1 + gain[i]) / 2) for i in places]
            return Features.fit(frequencies, {"benefit": rows})

        scores = np.array(fit(train).score_examples(list(examples)))
        for held in np.array_split(np.random.default_rng(SEED).permutation(train), FOLDS):
            scores[held] = fit(np.setdiff1d(train, held)).score_examples([examples[i] for i in held])
        return np.asarray(2 * scores - 1)

    return np.stack([predict(gain) for gain in gains.T], axis=1)


def predict_by_states(run: Path, examples: Sequence[GateExample], gains: Floats, train: np.ndarray) -> Floats:
    """As :func:`predict_by_features`, by ridge heads on the states that the run's probe reads."""
    probe = load_gate(run / "probe")
    assert isinstance(probe, Probe)
    reader = probe.reader
    states = reader.read(reader.prompts(examples))
    layers, groups = range(states.shape[1]), groups_of([examples[i] for i in train])

    def read(layer: int) -> Floats:
        at_layer: Floats = states[train, layer].astype(np.float64)
        return at_layer

    def predict(gain: Floats) -> Floats:
        (fits,) = fit_layers("ridge", layers, read, [gain[train]], groups)
        head = fit_head("ridge", fits, None, read, gain[train])
        predicted = head.predict(states[:, list(head.layers)])
        predicted[train] = left_out("ridge", layers, None, read, [gain[train]], groups)[0]
        return predicted

    return np.stack([predict(gain) for gain in gains.T], axis=1)


def choices(predicted: Floats, margins: Sequence[float]) -> np.ndarray:
    """0, 1 or 2 of each question: no passages, the first or the second number of them."""
    worth = np.concatenate([np.zeros((len(predicted), 1)), predicted - np.array(margins)], axis=1)
    return np.argmax(worth, axis=1)


def choose_margins(predicted: Floats, right: Floats) -> tuple[float, float]:
    """The margins with most right answers; of equals the first, which reads most."""

    def accuracy(margins: tuple[float, float]) -> float:
        return float(np.take_along_axis(right, choices(predicted, margins)[:, None], 1).mean())

    grid = [(-a, -b) for a, b in itertools.product(MARGINS, MARGINS)] + list(itertools.product(MARGINS, MARGINS))
    return max(grid, key=accuracy)


def describe(ks: Sequence[int], right: Floats, taken: np.ndarray, fixed: int) -> dict[str, str]:
    own = np.take_along_axis(right, taken[:, None], 1)[:, 0]
    change = own - right[:, fixed]
    delta = widened(interval(resampled_means(change[:, None], DRAWS, SEED)[:, 0]), change)
    shares = [percent(float((taken == i).mean()), 0) for i in range(3)]
    return {
        "test questions": str(len(right)),
        "never, % right": percent(right[:, 0].mean()),
        **{f"always {k}, % right": percent(right[:, i + 1].mean()) for i, k in enumerate(ks)},
        "oracle of none and the best fixed, % right": percent(np.maximum(right[:, 0], right[:, fixed]).mean()),
        "oracle of all three, % right": percent(right.max(1).mean()),
        "a number for each question, % right": percent(own.mean()),
        **{f"chooses {k}, %": share for k, share in zip(("none", *ks), shares, strict=True)},
        f"against always {ks[fixed - 1]}, points": f"{points(change.mean())} {points_interval(delta)}",
    }


if __name__ == "__main__":
    run_script(main, PassagesConfig, __doc__)
