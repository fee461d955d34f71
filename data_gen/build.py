"""Build the examples that a gate is trained on and scores, from questions and their labels.

Reads RUN/questions.jsonl and RUN/labels.jsonl (and RUN/evidence.jsonl for references), writes
RUN/examples/{train,dev,test}.jsonl. Dev and test questions without labels become examples without targets, for
scoring; a run may have no others. A training question that is also in dev or test stops the build.
With the key time_sensitive alone, a fact about the questions, no labels are needed.

Examples:
  kbtrain run build --run runs/demo
  kbtrain run build --run runs/demo --keys '[mastery, certainty]' --with-reference true
  kbtrain run build --run runs/freshqa --keys '[time_sensitive]'
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from kbtrain.config import Config, check_each_once, run_script
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_current, check_unchanged, write_meta
from kbtrain.labeling.examples import BenefitTarget, Targets, example, reference_example
from kbtrain.labeling.verdicts import check_rules, grading_sources, side_by_side
from kbtrain.prompts.kbm import DEFAULT_KEYS, evidence_text
from kbtrain.questions.checks import find_leaks, refuse_leaks
from kbtrain.records import OF_QUESTION, GateExample, Label, Split, Target
from kbtrain.runtime.progress import progress_bar
from kbtrain.training.data import label_rule

SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class BuildConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl and labels.jsonl")
    keys: tuple[Target, ...] = Field(DEFAULT_KEYS, description="targets that a training example must have")
    tau_benefit: float = Field(0.0, ge=-1, le=1, description="hard benefit if mastery(rag) - mastery(llm) > tau")
    benefit_tail: float = Field(0.0, ge=0, lt=0.5, description="soft benefit is 0 and 1 at these quantiles of train")
    benefit_greedy: float = Field(
        0.0, ge=0, description="weight of the greedy answers in benefit (the weight of samples is 1)"
    )
    with_reference: bool = Field(False, description="also make examples with the evidence, labelled by rag samples")
    folder: str = Field("examples", description="folder for the examples, inside the run folder")
    on_leak: Literal["fail", "drop"] = Field(
        "fail", description="training questions that are also in dev or test, or dev questions in test"
    )

    @model_validator(mode="after")
    def _possible(self) -> BuildConfig:
        check_each_once("keys", self.keys, "target")
        if self.with_reference and "benefit" in self.keys:
            raise ValueError("with_reference needs keys without benefit: retrieval cannot help where it was done")
        return self

    @property
    def labels(self) -> Path | None:
        """The run's labels; None where the targets are facts about the questions, which need no answers."""
        return None if OF_QUESTION.issuperset(self.keys) else self.run / "labels.jsonl"

    def writes(self) -> tuple[Path, ...]:
        return (self.run / self.folder,)


def examples(
    config: BuildConfig,
    leaked: set[str],
    target: BenefitTarget,
    targets: Targets,
    left_out: Mapping[Split, Counter[str]],
) -> Iterator[tuple[Split, GateExample]]:
    run, evidence_file = config.run, config.run / "evidence.jsonl" if config.with_reference else None
    for question, label, evidence in side_by_side(run / "questions.jsonl", config.labels, evidence_file):
        split = question.split
        if question.id in leaked:
            continue
        items = [example(question, label, target)]
        reference = None if evidence is None else evidence_text(evidence.hits, evidence.titles)
        if reference is not None:
            items.append(reference_example(question, label, reference))
        elif config.with_reference:
            left_out[split][f"{split} references without evidence"] += 1
        complete = [item for item in items if split != "train" or targets.complete(item, bool(question.answers))]
        left_out[split]["train examples without all targets"] += len(items) - len(complete)
        yield from ((split, item) for item in complete)
    targets.check()


def main(config: BuildConfig) -> None:
    started = time.monotonic()
    labels, evidence = config.labels, config.run / "evidence.jsonl" if config.with_reference else None
    inputs = [path for path in (config.run / "questions.jsonl", labels, evidence) if path is not None]
    check_unchanged(inputs[0])
    for source in inputs[1:]:
        check_current(source, *grading_sources(config.run))
    rule = label_rule(labels) if labels else {}
    if labels:
        check_rules(labels, rule, inputs[0])
    label_rows = jsonl.read(Label, labels) if labels else ()
    benefit = BenefitTarget.from_labels(label_rows, config.tau_benefit, config.benefit_tail, config.benefit_greedy)
    rule |= {"benefit": dataclasses.asdict(benefit), "with_reference": config.with_reference}
    if config.on_leak == "fail":
        refuse_leaks(inputs[0])
    leaks = list(find_leaks(inputs[0])) if config.on_leak == "drop" else []
    leaked, names = {leak.id for leak in leaks}, {"train": "training", "dev": "dev", "test": "test"}
    targets, left_out = Targets(config.keys), Counter({"leaked training questions": 0})
    left_out.update(f"leaked {names[leak.split]} questions" for leak in leaks)
    outputs = {split: config.run / config.folder / f"{split}.jsonl" for split in SPLITS}
    of_split: dict[Split, Counter[str]] = {split: Counter() for split in SPLITS}
    rows = examples(config, leaked, benefit, targets, of_split)
    sizes = jsonl.write_each(outputs, progress_bar(rows, desc="build", unit="examples"))
    for counts in of_split.values():
        left_out.update(counts)
    extra = {"label_rule": rule, "train_classes": targets.as_dict(), "left_out": dict(left_out)}
    for output in outputs.values():
        write_meta(output, stage="build", config=config, inputs=inputs, extra=extra, started=started)
    skipped = ", ".join(f"{n} {name}" for name, n in left_out.items() if n) or "nothing"
    skipped = skipped.replace("all targets", "all targets (no verdict on their answers)")
    sizes_text = ", ".join(f"{n} {split}" for split, n in sizes.items())
    print(
        f"{sizes_text} examples; skipped: {skipped}; {time.monotonic() - started:.0f} s -> {config.run / config.folder}"
    )


if __name__ == "__main__":
    run_script(main, BuildConfig, __doc__)
