"""Learning curves: area and AUROC of gates for 50, 100, 200, ... training questions.

Reads examples/, the BM25 index and the stored answers of a run folder; fits the gates of --gates, and the stack of
those with held-out scores, to growing random parts of the training questions, three draws each, and measures them on
the test questions. Writes OUT.json, OUT.svg and OUT.md. A KBM takes minutes a point and is trained only where --gates
names it, by --kbm-config and chosen by the run's dev examples; scores of finished trainings stay in OUT.kbm/.

Examples:
  python eval/learning_curve.py --run runs/demo
  python eval/learning_curve.py --run runs/demo --gates "[features, probe]" --model smollm2-135m-instruct
  python eval/learning_curve.py --run runs/demo --gates "[kbm]" --sizes "[100, 200]" --draws 1 --out runs/demo/kbm_curve
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field, model_validator

from kbtrain.config import check_each_once, run_script
from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.evaluation.learning_curve import (
    CurvePlan,
    EncoderLearner,
    FeaturesLearner,
    KBMLearner,
    Learner,
    ProbeLearner,
    learning_curve,
    sizes_of,
)
from kbtrain.evaluation.run_folder import StoredAnswersConfig, check_labelled, read_run
from kbtrain.gates.features.frequencies import Frequencies
from kbtrain.gates.probe.gate import Asked, state_folder
from kbtrain.gates.probe.states import read_all
from kbtrain.io import jsonl
from kbtrain.io.files import beside
from kbtrain.io.provenance import check_unchanged, write_atomically, write_result
from kbtrain.labeling.examples import example
from kbtrain.prompts.kbm import Key
from kbtrain.records import DtypeName, GateExample
from kbtrain.report.learning_curve import figure, layout
from kbtrain.report.tables import as_markdown, as_text
from kbtrain.runtime.progress import progress_bar
from kbtrain.runtime.scripts import find
from kbtrain.training.data import label_rule, own_prompts


def features_learner(config: LearningCurveConfig, train: Sequence[GateExample], test: Sequence[GateExample]) -> Learner:
    """The gate ``features``, by the corpus frequencies of the run's index."""
    return FeaturesLearner(Frequencies.of_index(config.index or config.run / "bm25"), train, test)


def encoder_learner(config: LearningCurveConfig, train: Sequence[GateExample], test: Sequence[GateExample]) -> Learner:
    """The gate ``encoder_probe``."""
    return EncoderLearner.open(config.encoder, config.device, train, test)


def probe_learner(
    condition: Asked, config: LearningCurveConfig, train: Sequence[GateExample], test: Sequence[GateExample]
) -> Learner:
    """A probe of the answering model under a prompt. Raises :class:`UserError` without a model."""
    if config.model is None:
        raise UserError("key 'model': a probe reads the answering model; name it")
    source = config.run / "examples" / "train.jsonl"
    states = (config.states if condition == "llm" else None) or state_folder(config.run, condition)
    prompts = own_prompts(label_rule(source), source)
    probe = ProbeLearner.open(config.model, config.dtype, config.device, prompts, states, test, condition)
    read_all(probe.extract(train, kept_by_sampling=True), len(train))
    read_all(probe.extract(test, kept_by_sampling=False), len(test))
    return probe


def kbm_learner(config: LearningCurveConfig, train: Sequence[GateExample], test: Sequence[GateExample]) -> Learner:
    """Trains by the recipe, in a process of its own, all keys of the curve at once. Raises :class:`UserError`."""
    recipe, settings = find("train_kbm", "recipes", what="recipe"), find(config.kbm_config, "configs", what="config")
    base, dev = config.out or config.run / "learning_curve", config.run / "examples" / "dev.jsonl"
    folder = beside(base, ".kbm")
    return KBMLearner.by_recipe(recipe, settings, dev, folder, config.keys, test, config.device)


@dataclass(frozen=True)
class LearnerKind:
    """A learner: its opener, and the config keys that it alone reads."""

    open: Callable[[LearningCurveConfig, Sequence[GateExample], Sequence[GateExample]], Learner]
    keys: tuple[str, ...]


LEARNERS = {
    "features": LearnerKind(features_learner, ("index",)),
    "encoder_probe": LearnerKind(encoder_learner, ("encoder",)),
    "probe": LearnerKind(partial(probe_learner, "llm"), ("model", "states", "dtype")),
    "draft_probe": LearnerKind(partial(probe_learner, "draft"), ("model", "dtype")),
    "kbm": LearnerKind(kbm_learner, ("kbm_config",)),
}


class LearningCurveConfig(StoredAnswersConfig):
    run: Path = Field(Path("runs/demo"), description="run folder")
    gates: tuple[str, ...] = Field(("features",), min_length=1, description=f"of {', '.join(LEARNERS)}")
    keys: tuple[Key, ...] = Field(("mastery", "benefit"), min_length=1, description="labels that are learnt")
    sizes: tuple[int, ...] = Field(
        (50, 100, 200, 400, 800, 1400), min_length=1, description="training questions; all are added"
    )
    draws: int = Field(3, ge=1, description="random parts of each size")
    index: Path | None = Field(None, description="features: BM25 index; null: RUN/bm25")
    encoder: str = Field("all-minilm-l6-v2", description="encoder_probe: embedded name, folder or hub id")
    model: str | None = Field(None, description="probes: the answering model")
    states: Path | None = Field(None, description="probe: where its states are kept; null: RUN/states/llm")
    dtype: DtypeName = Field("auto", description="probes: of the model, as it answered")
    kbm_config: str = Field("kbm_smollm2", description="kbm: file or name of a configuration of train_kbm")
    device: str = Field("auto", description="auto, cpu or cuda")
    seed: int = Field(0, ge=0, lt=2**31, description="of the draws")
    out: Path | None = Field(None, description="name of the files, without their ends; null: RUN/learning_curve")

    @model_validator(mode="after")
    def _read(self) -> LearningCurveConfig:
        check_each_once("keys", self.keys)
        if unknown := [name for name in self.gates if name not in LEARNERS]:
            raise ValueError(f"key 'gates': unknown '{unknown[0]}'; {did_you_mean(unknown[0], LEARNERS)}")
        for key in {key for kind in LEARNERS.values() for key in kind.keys}:
            gates = [name for name, kind in LEARNERS.items() if key in kind.keys]
            if key in self.model_fields_set and getattr(self, key) is not None and not set(gates) & set(self.gates):
                raise ValueError(f"key '{key}': counts for {' and '.join(gates)} alone; name one in gates")
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.out or self.run / "learning_curve",)


def main(config: LearningCurveConfig) -> None:
    started = time.monotonic()
    if min(config.sizes) < 20:
        raise UserError(f"key 'sizes': {min(config.sizes)} questions; 20 at least")
    path = config.run / "examples" / "train.jsonl"
    check_unchanged(path)
    check_labelled(config.run / "labels.jsonl", config.sampling_run)
    train = [e for e in jsonl.read(GateExample, path) if e.reference is None and e.soft_mastery is not None]
    for key in config.keys:
        if missing := sum(getattr(e, f"soft_{key}") is None for e in train):
            raise UserError(
                f"{at(path, field=f'soft_{key}')}: {missing} of {len(train)} questions have none; sample what it needs"
            )
    folder = read_run(config.run, config.sampling_run, config.allow_missing, scores=False)
    test = [example(question, None) for question in folder.test.questions]
    learners = [LEARNERS[name].open(config, train, test) for name in config.gates]
    counts = [config.draws if n < len(train) else 1 for n in sizes_of(len(train), config.sizes, path)]
    total = sum(counts) * len(config.keys) * len(learners)
    with progress_bar(total=total, desc="learning curve", unit="fits") as bar:
        plan = CurvePlan(config.keys, config.sizes, config.draws, config.seed)
        points = list(learning_curve(learners, train, folder.test.outcomes, plan, bar.update))
    table = layout(points, len(test))
    base = config.out or config.run / "learning_curve"
    write_atomically(beside(base, ".md"), as_markdown(table))
    write_atomically(beside(base, ".svg"), figure(points))
    document = {"n_test": len(test), "points": [dataclasses.asdict(point) for point in points]}
    target = beside(base, ".json")
    inputs = [path, config.run / "samples.db"]
    write_result(target, document, stage="learning_curve", config=config, inputs=inputs, started=started)
    print(as_text(table))
    print(f"{len(points)} points in {time.monotonic() - started:.0f} s -> {target}, .svg and .md")


if __name__ == "__main__":
    run_script(main, LearningCurveConfig, __doc__)
