"""What a KBM has learnt, beside gates that were fitted to the same labels, and what changes it.

Reads the scores, labels and outcomes of a run folder (seconds, no model): how far each gate's predictions spread beside
the labels, their correlation with them (also within a relation), their log loss beside that of one constant (the
training labels' mean), and the area between random (0) and the oracle (1) on dev and test. With --train,
recipes/train_kbm.py is run on the run's examples with one factor changed at a time, over the seeds; each training's
figures are kept in OUT and not made again.

Examples:
  python benchmarks/kbm_factors.py --run runs/demo
  python benchmarks/kbm_factors.py --run runs/demo --train "[base, epochs_4, values, hard, lora]" --seeds 3
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from pydantic import Field

from kbtrain import jsonl
from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.outcomes import answers
from kbtrain.evaluation.run_folder import RunFolder, Stored, read_run
from kbtrain.labeling.examples import example
from kbtrain.metrics.classification import log_loss
from kbtrain.metrics.ranking import normalised_area
from kbtrain.prompts.kbm import DEFAULT_KEYS, Key
from kbtrain.provenance import write_atomically
from kbtrain.records import NEEDS_RETRIEVAL, GateExample, GateScore

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "train_kbm.py"
Factor = Literal[
    "base", "epochs_2", "epochs_4", "values", "beta2", "values_beta2", "hard", "smoothing", "lora", "rate_low",
    "rate_high", "order", "alone", "balanced", "prompt", "prompt_epochs_4",
]  # fmt: skip
FACTORS: dict[Factor, dict[str, str]] = {
    "base": {},
    "epochs_2": {"--epochs": "2"},
    "epochs_4": {"--epochs": "4"},
    "values": {"--loss-on": "values"},
    "beta2": {"--adam-beta2": "0.95"},
    "values_beta2": {"--loss-on": "values", "--adam-beta2": "0.95"},
    "hard": {"--labels": "hard"},
    "smoothing": {"--label-smoothing": "0.1"},
    "lora": {"--method": "lora", "--learning-rate": "5e-4"},
    "rate_low": {"--learning-rate": "3e-5"},
    "rate_high": {"--learning-rate": "3e-4"},
    "order": {"--keys": "[benefit, certainty, mastery]"},
    "alone": {"--keys": "[benefit]"},
    "balanced": {},  # other labels: see trained()
    "prompt": {"--prompt": "answer"},
    "prompt_epochs_4": {"--prompt": "answer", "--epochs": "4"},
}
GATES = ("kbm", "probe", "features", "stack")


class KBMFactorsConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with examples and scores")
    train: tuple[Factor, ...] = Field((), description=f"also train: {', '.join(get_args(Factor))}")
    seeds: int = Field(3, ge=1, description="trainings of each factor")
    kbm_config: str = Field("recipes/configs/kbm_smollm2.yaml", description="the recipe's configuration")
    epochs: float = Field(1, gt=0, description="of all but those that change it")
    output: Path = Field(Path("runs/bench/kbm_factors"), description="folder of the trainings' figures")


@dataclass(frozen=True)
class Learnt:
    """One gate's predictions of a soft label, over ``n`` dev questions. ``constant`` is the loss of predicting the
    training labels' mean, in nats; correlations are None where predictions do not vary. Areas are those of
    :func:`~kbtrain.metrics.ranking.normalised_area` on the dev and the test questions.
    """

    n: int
    labels_spread: float
    spread: float
    correlation: float | None
    within_relation: float | None
    loss: float
    constant: float
    area: float | None
    area_test: float | None


def main(config: KBMFactorsConfig) -> None:
    train, dev = (list(jsonl.read(GateExample, config.run / "examples" / f"{s}.jsonl")) for s in ("train", "dev"))
    folder = read_run(config.run, scores=False)
    print("| gate | label | questions | sd of labels | sd of predictions | correlation | within a relation | log loss "
          "| of a constant | area, dev | area, test |\n|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")  # fmt: skip
    for gate in GATES:
        for key, scores in scores_of(config.run, gate).items():
            print(row(f"{gate}, {key}", [learnt(train, dev, key, scores, folder)]), flush=True)
    for factor in config.train:
        found = [trained(config, factor, seed, train, dev, folder) for seed in range(config.seeds)]
        for key in found[0]:
            print(row(f"KBM {factor}, {key}", [one[key] for one in found]), flush=True)


def scores_of(run: Path, gate: str) -> dict[Key, dict[str, float]]:
    """Predictions of the label, by key and question; scores of what speaks against retrieval are 1 - p."""
    path = run / "scores" / f"{gate}.jsonl"
    found: dict[Key, dict[str, float]] = {}
    for one in jsonl.read(GateScore, path) if path.exists() else ():
        key = next((key for key in DEFAULT_KEYS if one.gate == f"{gate}_{key}"), None)
        if key is not None:
            found.setdefault(key, {})[one.question_id] = turned(key, one.score)
    return found


def turned(key: Key, value: float) -> float:
    """The label's prediction as a score (higher: retrieval more needed), or a score as the label's prediction."""
    return value if key in NEEDS_RETRIEVAL else 1 - value


def learnt(
    train: Sequence[GateExample],
    dev: Sequence[GateExample],
    key: Key,
    predicted: Mapping[str, float],
    folder: RunFolder,
) -> Learnt:
    """Figures of predictions by question id. Raises :class:`UserError` where none has a soft label."""
    used = [e for e in dev if e.question_id in predicted and getattr(e, f"soft_{key}") is not None]
    if not used:
        raise UserError(f"key '{key}': no dev question has both a score and a soft label; sample dev questions, too")
    labels = np.array([float(getattr(e, f"soft_{key}")) for e in used])
    p = np.array([predicted[e.question_id] for e in used])
    known = [float(getattr(e, f"soft_{key}")) for e in train if getattr(e, f"soft_{key}") is not None]
    mean = statistics.fmean(known)
    clipped = np.clip(p, 0.02, 0.98)  # ridge is not bounded
    relation = np.array([e.relation for e in used])
    return Learnt(
        len(used), float(labels.std()), float(p.std()), correlation(labels, p),
        correlation(centred(labels, relation), centred(p, relation)),
        log_loss(labels.tolist(), clipped.tolist()), log_loss(labels.tolist(), [mean] * len(used)),
        area(key, predicted, folder.dev), area(key, predicted, folder.test),
    )  # fmt: skip


def area(key: Key, predicted: Mapping[str, float], stored: Stored) -> float | None:
    """None where a question has no prediction."""
    table, ids = answers(stored.outcomes, "greedy"), [outcome.question_id for outcome in stored.outcomes]
    if not ids or any(i not in predicted for i in ids):
        return None
    return normalised_area(np.array([turned(key, predicted[i]) for i in ids]), table.llm, table.rag)


def correlation(a: Floats, b: Floats) -> float | None:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else None


def centred(values: Floats, groups: np.ndarray) -> Floats:
    """Values less their group's mean."""
    found = values.astype(float).copy()
    for group in set(groups.tolist()):
        found[groups == group] -= found[groups == group].mean()
    return found


def trained(
    config: KBMFactorsConfig,
    factor: Factor,
    seed: int,
    train: Sequence[GateExample],
    dev: Sequence[GateExample],
    folder: RunFolder,
) -> dict[Key, Learnt]:
    """Figures of one training by the recipe; from OUT where it is done."""
    kept, output = config.output / f"{factor}-{seed}.json", config.output / f"{factor}-{seed}"
    if not kept.exists():
        from kbtrain.gates.kbm.gate import KBM

        examples = config.run / "examples"
        shares = means(train) if factor == "balanced" else {}
        if shares:
            examples = config.output / "balanced"
            jsonl.write(examples / "train.jsonl", [balanced(e, shares) for e in train])
            jsonl.write(examples / "dev.jsonl", [balanced(e, shares) for e in dev])
        given = {"--config": config.kbm_config, "--train": str(examples / "train.jsonl"),
                 "--dev": str(examples / "dev.jsonl"), "--epochs": str(config.epochs), **FACTORS[factor],
                 "--seed": str(seed), "--output": str(output)}  # fmt: skip
        command = [sys.executable, str(RECIPE), *(word for pair in given.items() for word in pair)]
        if subprocess.run(command, check=False).returncode:
            raise UserError(f"factor '{factor}', seed {seed}: its training ended with the error above")
        asked = [*dev, *(example(question, None) for question in folder.test.questions)]
        made, ids = KBM.load(output).probabilities(asked), [e.question_id for e in asked]
        found: dict[Key, Learnt] = {}
        for key in DEFAULT_KEYS:
            if key in made:
                p = [weighed(value, 1 - shares[key]) for value in made[key]] if shares else made[key]
                found[key] = learnt(train, dev, key, dict(zip(ids, p, strict=True)), folder)
        write_atomically(kept, json.dumps({key: asdict(one) for key, one in found.items()}))
        shutil.rmtree(output)  # weights: the figures are what is kept
    figures = jsonl.read_json(kept)
    return {key: Learnt(**figures[key]) for key in DEFAULT_KEYS if key in figures}


def means(examples: Sequence[GateExample]) -> dict[Key, float]:
    """Mean of each key's soft labels."""
    known = {key: [s for e in examples if (s := getattr(e, f"soft_{key}")) is not None] for key in DEFAULT_KEYS}
    return {key: statistics.fmean(values) for key, values in known.items()}


def balanced(example: GateExample, shares: Mapping[Key, float]) -> GateExample:
    """The example with labels in which True and False weigh alike over all: a weighted loss has its least there."""
    soft = {f"soft_{key}": (getattr(example, f"soft_{key}"), share) for key, share in shares.items()}
    return replace(example, **{name: weighed(s, share) for name, (s, share) in soft.items() if s is not None})


def weighed(p: float, share: float) -> float:
    """A probability of True when True weighs as much more as it is rarer; with 1 - ``share``: back."""
    return p * (1 - share) / (p * (1 - share) + (1 - p) * share)


def row(name: str, found: Sequence[Learnt]) -> str:
    """A line of the table: means over the seeds, with their standard deviation."""

    def mean(field: str, digits: int = 3) -> str:
        values = [value for one in found if (value := getattr(one, field)) is not None]
        text = f"{statistics.fmean(values):.{digits}f}" if values else ""
        return text + (f" sd {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")

    gate, key = name.rsplit(", ", 1)
    cells = [mean("labels_spread") if len(found) == 1 else f"{found[0].labels_spread:.3f}", mean("spread"),
             mean("correlation"), mean("within_relation"), mean("loss", 4), f"{found[0].constant:.4f}",
             mean("area"), mean("area_test")]  # fmt: skip
    return f"| {gate} | {key} | {found[0].n} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    run_script(main, KBMFactorsConfig, __doc__)
