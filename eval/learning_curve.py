"""Learning curves: area and AUROC of gates for 50, 100, 200, ... training questions.

Reads examples/, the BM25 index and the stored answers of a run folder; fits the gates of --gates, and the stack of
those with held-out scores, to growing random parts of the training questions, three draws each, and measures them on
the test questions. Writes OUT.json, OUT.svg and OUT.md.

Examples:
  kbtrain run learning_curve --run runs/demo
  kbtrain run learning_curve --run runs/demo --gates "[features, probe]" --model smollm2-135m-instruct
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import get_args

from pydantic import Field, model_validator

from kbtrain.config import check_each_once, run_script
from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.evaluation.learning_curve import (
    CurvePlan,
    Examples,
    Fit,
    encoder_fit,
    features_fit,
    learning_curve,
    probe_fit,
)
from kbtrain.evaluation.run_folder import StoredAnswersConfig, check_labelled, read_run
from kbtrain.gates.features.additive import LEAST
from kbtrain.gates.features.question import Frequencies
from kbtrain.gates.probe.gate import Asked, Reader, state_folder
from kbtrain.io import jsonl
from kbtrain.io.files import beside
from kbtrain.io.provenance import check_current, write_atomically, write_result
from kbtrain.labeling.examples import example
from kbtrain.prompts.kbm import Key
from kbtrain.records import DtypeName, GateExample
from kbtrain.report.curves import learning_figure, learning_table
from kbtrain.report.tables import as_markdown, as_text
from kbtrain.runtime.progress import progress_bar
from kbtrain.training.data import label_rule, own_prompts

# keys that each gate alone reads
KEYS_OF = {
    "features": ("index",),
    "encoder_probe": ("encoder", "device"),
    "probe": ("model", "states", "dtype", "device"),
    "draft_probe": ("model", "dtype", "device"),
}
PROMPT_OF: dict[str, Asked] = {"probe": "llm", "draft_probe": "draft"}


class LearningCurveConfig(StoredAnswersConfig):
    run: Path = Field(Path("runs/demo"), description="run folder")
    gates: tuple[str, ...] = Field(("features",), min_length=1, description=f"of {', '.join(KEYS_OF)}")
    keys: tuple[Key, ...] = Field(("mastery", "benefit"), min_length=1, description="labels to learn")
    sizes: tuple[int, ...] = Field(
        (50, 100, 200, 400, 800, 1400),
        min_length=1,
        description="numbers of training questions; all questions are added as the last size",
    )
    draws: int = Field(3, ge=1, description="random subsets of each size")
    index: Path | None = Field(None, description="features: BM25 index; null: RUN/bm25")
    encoder: str = Field("all-minilm-l6-v2", description="encoder_probe: embedded name, folder or hub id")
    model: str | None = Field(None, description="probes: the answering model")
    states: Path | None = Field(None, description="probe: folder of its hidden states; null: RUN/states/llm")
    dtype: DtypeName = Field("auto", description="probes: of the model, as it answered")
    device: str = Field("auto", description="auto, cpu or cuda")
    seed: int = Field(0, ge=0, lt=2**31, description="seed of the draws")
    out: Path | None = Field(None, description="name of the files, without their ends; null: RUN/learning_curve")

    @model_validator(mode="after")
    def _read(self) -> LearningCurveConfig:
        check_each_once("keys", self.keys)
        check_each_once("gates", self.gates, "gate")
        if unknown := [name for name in self.gates if name not in KEYS_OF]:
            raise ValueError(f"key 'gates': unknown '{unknown[0]}'; {did_you_mean(unknown[0], KEYS_OF)}")
        for key in {key for keys in KEYS_OF.values() for key in keys}:
            gates = [name for name, keys in KEYS_OF.items() if key in keys]
            if key in self.model_fields_set and getattr(self, key) is not None and not set(gates) & set(self.gates):
                raise ValueError(f"key '{key}': applies only to {' and '.join(gates)}; name one in gates")
        return self

    def base(self) -> Path:
        """Name of the files, without their ends."""
        return self.out or self.run / "learning_curve"

    def writes(self) -> tuple[Path, ...]:
        return (self.base(),)


def main(config: LearningCurveConfig) -> None:
    started = time.monotonic()
    if min(config.sizes) < 20:
        raise UserError(f"key 'sizes': {min(config.sizes)} questions; 20 at least")
    path = config.run / "examples" / "train.jsonl"
    check_current(path, config.run / "questions.jsonl", config.run / "labels.jsonl")
    check_labelled(config.run / "labels.jsonl", config.sampling_run)
    plain = (e for e in jsonl.read(GateExample, path) if e.reference is None)
    train = [e for e in plain if any(getattr(e, f"soft_{key}") is not None for key in get_args(Key))]
    if len(train) < LEAST:
        raise UserError(
            f"{at(path)}: {len(train)} labelled training questions; a learning curve needs {LEAST} at least"
        )
    for key in config.keys:
        if missing := sum(getattr(e, f"soft_{key}") is None for e in train):
            raise UserError(
                f"{at(path, field=f'soft_{key}')}: {missing} of {len(train)} questions have none: "
                "sample what it needs, add reference answers, or name other keys"
            )
    folder = read_run(config.run, config.sampling_run, config.allow_missing, scores=False)
    test = [example(question, None) for question in folder.test.questions]
    learners = {name: learner(name, config, train, test) for name in config.gates}
    plan = CurvePlan(config.keys, config.sizes, config.draws, config.seed)
    total = len(plan.parts(len(train))) * len(config.keys) * len(learners)
    with progress_bar(total=total, desc="learning curve", unit="fits") as bar:
        points = list(learning_curve(learners, train, folder.test.outcomes, plan, bar.update))
    table = learning_table(points, len(test))
    base = config.base()
    write_atomically(beside(base, ".md"), as_markdown(table))
    write_atomically(beside(base, ".svg"), learning_figure(points))
    document = {"n_test": len(test), "points": [dataclasses.asdict(point) for point in points]}
    target = beside(base, ".json")
    inputs = [path, config.run / "samples.db"]
    write_result(target, document, stage="learning_curve", config=config, inputs=inputs, started=started)
    print(as_text(table))
    print(f"{len(points)} points in {time.monotonic() - started:.0f} s -> {target}, .svg and .md")


def learner(name: str, config: LearningCurveConfig, train: Examples, test: Examples) -> Fit:
    """A gate of the curve. Raises :class:`UserError` for a probe without a model."""
    if name == "features":
        return features_fit(Frequencies.of_index(config.index or config.run / "bm25"), train, test)
    if name == "encoder_probe":
        return encoder_fit(config.encoder, config.device, train, test)
    if config.model is None:
        raise UserError("key 'model': a probe reads the answering model; name it")
    from kbtrain.models.load import load_model

    source, condition = config.run / "examples" / "train.jsonl", PROMPT_OF[name]
    states = (config.states if condition == "llm" else None) or state_folder(config.run, condition)
    prompts = own_prompts(label_rule(source), source)
    reader = Reader(*load_model(config.model, config.dtype, config.device), condition, prompts)
    return probe_fit(reader, config.model, states, train, test)


if __name__ == "__main__":
    run_script(main, LearningCurveConfig, __doc__)
