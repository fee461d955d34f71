"""The gate features fitted to each label of a run folder, compared at equal searches on its test questions.

Change needs no accepted answers. Each gate searches for the upper half of the test questions' scores. A label that the
run lacks is skipped. No model is loaded; seconds. Imported answers serve too: `kbtrain run import_answers`,
`retrieve`, `label --by greedy`, `build --keys "[mastery, benefit, change]"`.

Examples:
  python studies/labels_compared.py --run runs/demo --target tables.json
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from published.fits import DRAWS, SEED, at_decisions
from published.run_verdicts import RunVerdicts
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.provenance import write_atomically
from kbtrain.metrics.significance import Delta, interval, resampled_areas
from kbtrain.metrics.thresholds import control, unchanged
from kbtrain.prompts.kbm import Key
from kbtrain.records import GateExample
from kbtrain.training.data import need

KEYS: tuple[Key, ...] = ("benefit", "mastery", "certainty", "change")
LIMITS = (0.05, 0.1, 0.2)
COLUMNS = ["label", "area", "right answers, %", "against always searching, points", "against random searches, points"]


class LabelsConfig(Config):
    run: Path = Field(description="run folder with examples, both answers, and its BM25 index")
    target: Path | None = Field(None, description="file for the table, which `make figures TABLES=FILE` stores")

    def writes(self) -> tuple[Path, ...]:
        return (self.target,) if self.target else ()


def main(config: LabelsConfig) -> None:
    data = RunVerdicts.read(config.run)
    examples = {
        example.question_id: example
        for split in ("train", "dev")
        for example in jsonl.read(GateExample, config.run / "examples" / f"{split}.jsonl")
    }
    dev = [place for place in data.pool if data.questions[place].split == "dev"]
    llm, rag = data.llm[data.test], data.rag[data.test]
    rows, promises, fitted = [], list[str](), 0
    for key in KEYS:
        known = {
            place: value
            for place in data.pool
            if data.questions[place].split == "train"
            and (example := examples.get(data.questions[place].id)) is not None  # it has all labels
            and (value := need(example, key, "soft")) is not None
        }
        if not known:
            print(f"{key}: no labels")
            continue
        fitted = len(known)
        scores = data.scores(list(known), 2 * np.array(list(known.values())) - 1, [*dev, *data.test])
        of_dev, of_test = scores[: len(dev)], scores[len(dev) :]
        half = at_decisions((of_test > np.median(of_test)).astype(float), llm, rag)
        drawn = resampled_areas([of_test], llm, rag, DRAWS, SEED)[:, 0]
        area = interval(np.concatenate([[data.area(of_test)], drawn]))
        compared = [points(value) for value in (half.minus_always, half.minus_random)]
        rows.append(
            [key, f"{area.mean:.2f} [{area.low:.2f}, {area.high:.2f}]", f"{100 * half.accuracy:.1f}", *compared]
        )
        if key == "change":
            promises = promise_lines(of_dev, data.changed[dev], of_test, data.changed[data.test])
    print(f"{len(data.test)} test questions: never {llm.mean():.1%}, always searching {rag.mean():.1%} right; "
          f"fitted to {fitted} training questions")  # fmt: skip
    print("\n".join([*(" | ".join(row) for row in [COLUMNS, *rows]), *promises]))
    if config.target:
        table = {f"labels-{config.run.name}": {"columns": COLUMNS, "rows": rows}}
        write_atomically(config.target, json.dumps({"tables": table}, indent=1) + "\n")


def points(value: Delta) -> str:
    return f"{100 * value.mean:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"


def promise_lines(of_dev: Floats, dev: Floats, of_test: Floats, test: Floats) -> list[str]:
    """The gate for change at each limit that dev can promise: searches skipped on test, and answers that differ."""
    lines = [f"a search changes {test.mean():.1%} of the test answers"]
    for limit in LIMITS:
        try:
            threshold = control("answers_changed", unchanged(of_dev, dev), limit).threshold
        except UserError as error:
            lines.append(f"at most {limit:.0%} changed: {error}")
            continue
        skipped = of_test <= threshold
        lines.append(f"at most {limit:.0%} changed: {skipped.mean():.1%} skipped, {(skipped * test).mean():.1%} differ")
    return lines


if __name__ == "__main__":
    run_script(main, LabelsConfig, __doc__)
