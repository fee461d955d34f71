"""Learning curves: area and AUROC of gates that are fitted in seconds, for 50, 100, 200, ... training questions.

Reads examples/, the BM25 index and the stored answers of a run folder; fits features, encoder_probe and probe (and the
stack of those with held-out scores) to growing random parts of the training questions, and measures them on the test
questions, three draws each. Writes OUT.json, OUT.svg and OUT.md. A KBM is not among them: it takes minutes a point.

Examples:
  python eval/learning_curve.py --run runs/demo
  python eval/learning_curve.py --run runs/demo --gates "[features, probe]" --model smollm2-135m-instruct
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.evaluation.learning_curve import (
    SIZES,
    EncoderLearner,
    FeaturesLearner,
    Learner,
    Point,
    ProbeLearner,
    learning_curve,
    sizes_of,
)
from kbtrain.evaluation.run_folder import StoredAnswersConfig, read_run
from kbtrain.gates.features.frequencies import Frequencies
from kbtrain.labeling.examples import example
from kbtrain.progress import progress_bar
from kbtrain.prompts.kbm import Key
from kbtrain.provenance import write_atomically, write_result
from kbtrain.records import GateExample
from kbtrain.report.tables import Column, Table, as_markdown, as_text
from kbtrain.svg import COLOURS, new_figure, page

Name = Literal["features", "encoder_probe", "probe"]


class LearningCurveConfig(StoredAnswersConfig):
    """Settings of this script."""

    run: Path = Field(Path("runs/demo"), description="run folder")
    gates: tuple[Name, ...] = Field(("features",), min_length=1, description="features, encoder_probe, probe")
    keys: tuple[Key, ...] = Field(("mastery", "benefit"), min_length=1, description="labels that are learnt")
    sizes: tuple[int, ...] = Field(SIZES, min_length=1, description="training questions; all are added")
    draws: int = Field(3, ge=1, description="random parts of each size")
    index: Path | None = Field(None, description="features: BM25 index; null: RUN/bm25")
    encoder: str = Field("all-minilm-l6-v2", description="encoder_probe: embedded name, folder or hub id")
    model: str | None = Field(None, description="probe: the answering model")
    states: Path | None = Field(None, description="probe: where its states are kept; null: RUN/states/llm")
    dtype: str = Field("auto", description="probe: of the model, as it answered")
    device: str = Field("auto", description="auto, cpu or cuda")
    seed: int = Field(0, description="of the draws")
    out: Path | None = Field(None, description="name of the files, without their ends; null: RUN/learning_curve")

    def writes(self) -> tuple[Path, ...]:
        return (self.out or self.run / "learning_curve",)


def main(config: LearningCurveConfig) -> None:
    """Read, fit, measure, write, say."""
    started = time.monotonic()
    if min(config.sizes) < 20:
        raise UserError(f"key 'sizes': {min(config.sizes)} questions; 20 at least")
    path = config.run / "examples" / "train.jsonl"
    train = [e for e in jsonl.read(GateExample, path) if e.reference is None and e.soft_mastery is not None]
    folder = read_run(config.run, config.sampling_run, config.allow_missing, scores=False)
    test = [example(question, None) for question in folder.test.questions]
    learners = [made(config, name, train, test) for name in config.gates]
    counts = [config.draws if n < len(train) else 1 for n in sizes_of(len(train), config.sizes)]
    total = sum(counts) * len(config.keys) * len(learners)
    with progress_bar(total=total, desc="learning curve", unit="fits") as bar:
        points = list(
            learning_curve(
                learners, train, folder.test.outcomes, config.keys, config.sizes, config.draws, config.seed, bar.update
            )
        )
    table = layout(points, len(test))
    base = config.out or config.run / "learning_curve"
    write_atomically(base.with_name(base.name + ".md"), as_markdown(table))
    write_atomically(base.with_name(base.name + ".svg"), figure(points))
    document = {"n_test": len(test), "points": [dataclasses.asdict(point) for point in points]}
    out = base.with_name(base.name + ".json")
    inputs = [path, config.run / "samples.db"]
    write_result(out, document, stage="learning_curve", config=config, inputs=inputs, started=started)
    print(as_text(table))
    print(f"{len(points)} points in {time.monotonic() - started:.0f} s -> {out}, .svg and .md")


def made(config: LearningCurveConfig, name: Name, train: Sequence[GateExample], test: Sequence[GateExample]) -> Learner:
    """A learner with what its kind of gate needs. Raises :class:`UserError`."""
    if name == "features":
        return FeaturesLearner(Frequencies.of_index(config.index or config.run / "bm25"), train, test)
    if name == "encoder_probe":
        from kbtrain.gates.encoder.probe import ProbeInput
        from kbtrain.models.encoders import open_body

        body, tokenizer = open_body(config.encoder, "fp32", config.device)
        return EncoderLearner(body, ProbeInput(tokenizer, 128), train, test)
    if config.model is None:
        raise UserError("key 'model': the gate 'probe' reads the answering model; name it")
    from kbtrain.gates.probe.gate import Reader, state_facts, state_folder
    from kbtrain.gates.probe.states import StateStore
    from kbtrain.models.adapters import base_fingerprint
    from kbtrain.models.load import load_model, name_of
    from kbtrain.training.data import label_rule, own_prompts

    model, tokenizer = load_model(config.model, config.dtype, config.device)
    source = config.run / "examples" / "train.jsonl"
    reader = Reader(model, tokenizer, own=own_prompts(label_rule(source), source))
    facts = state_facts(base_fingerprint(config.model), name_of(model.dtype))
    store = StateStore(config.states or state_folder(config.run, "llm"), facts)
    asked = [*train, *test]
    with progress_bar(total=len(asked), desc="states", unit="questions") as bar:
        for n in store.extract(model, reader.prompts(asked)):
            bar.update(n)
    return ProbeLearner(reader, store, test)


def layout(points: Sequence[Point], n_test: int) -> Table:
    """One row for each gate, key and size: means over the draws, and the least and greatest area."""
    columns = [Column("gate", "text"), Column("label", "text"), Column("questions", "count"), Column("draws", "count"),
               Column("area", "decimal"), Column("least", "decimal"), Column("greatest", "decimal"),
               Column("AUROC wrong", "decimal"), Column("AUROC needed", "decimal")]  # fmt: skip
    groups = dict.fromkeys((point.gate, point.key, point.n) for point in sorted(points, key=lambda p: (p.gate, p.key)))
    rows = []
    for gate, key, n in groups:
        part = [point for point in points if (point.gate, point.key, point.n) == (gate, key, n)]
        areas = [point.area for point in part if point.area is not None]
        ends = [min(areas), max(areas)] if areas else [None, None]
        wrong, needed = [p.auroc_wrong for p in part], [p.auroc_needed for p in part]
        rows.append([gate, key, n, len(part), _mean(areas), *ends, _mean(wrong), _mean(needed)])
    note = (
        f"Means over draws of training questions, on {n_test} test questions; area: random order 0, oracle's order 1."
    )
    return Table("learning_curve", "Learning curves", note, columns, rows)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def figure(points: Sequence[Point]) -> str:
    """Area by number of training questions: a line of means for each gate and label, a dot for each draw."""
    made, axes = new_figure(6.4, 3.6)
    names = [name for name in COLOURS if name not in ("ink", "grid", "grey")]
    dashes = {key: style for key, style in zip(dict.fromkeys(p.key for p in points), ("-", "--", ":"), strict=False)}
    colours = dict(zip(dict.fromkeys(p.gate for p in points), names, strict=False))
    for gate, key in dict.fromkeys((p.gate, p.key) for p in points):
        found = [p for p in points if (p.gate, p.key) == (gate, key) and p.area is not None]
        sizes = sorted({p.n for p in found})
        means = [_mean([p.area for p in found if p.n == n]) for n in sizes]
        colour = COLOURS[colours[gate]]
        axes.plot(sizes, means, dashes[key], color=colour, label=f"{gate}, {key}")
        axes.plot([p.n for p in found], [p.area for p in found], ".", color=colour, markersize=4)
    axes.axhline(0, color=COLOURS["grey"], linewidth=1)
    axes.set_xscale("log")
    ticks = sorted({p.n for p in points})
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.minorticks_off()
    axes.set_xlabel("labelled training questions")
    axes.set_ylabel("area (random 0, oracle 1)")
    axes.legend(fontsize=8, frameon=False)
    return page(made)


if __name__ == "__main__":
    run_script(main, LearningCurveConfig, __doc__)
