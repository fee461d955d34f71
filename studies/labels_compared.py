"""The gate features fitted to each label of a run folder: area and right answers on its test questions.

Change needs no accepted answers; the other labels show what they are worth. The threshold of each gate searches for
half of the dev questions. No model is loaded; seconds.

Examples:
  python studies/labels_compared.py --run runs/demo
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from published.run_verdicts import RunVerdicts
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.metrics.significance import delta, interval, resampled_areas, resampled_means
from kbtrain.metrics.thresholds import control, unchanged
from kbtrain.prompts.kbm import Key
from kbtrain.records import GateExample
from kbtrain.training.data import need

KEYS: tuple[Key, ...] = ("benefit", "mastery", "certainty", "change")
DRAWS, SEED = 2000, 20_246
LIMITS = (0.05, 0.1, 0.2)


class LabelsConfig(Config):
    run: Path = Field(description="run folder with examples of all four labels, both answers, and its BM25 index")


def main(config: LabelsConfig) -> None:
    data = RunVerdicts.read(config.run)
    examples = {
        example.question_id: example
        for split in ("train", "dev")
        for example in jsonl.read(GateExample, config.run / "examples" / f"{split}.jsonl")
    }
    dev = [place for place in data.pool if data.questions[place].split == "dev"]
    llm, rag = data.llm[data.test], data.rag[data.test]
    print(f"{len(data.test)} test questions: never {llm.mean():.1%}, always searching {rag.mean():.1%} right")
    print(
        "| label | area | searched | right | against always, points | by random searches |\n|---|--:|--:|--:|--:|--:|"
    )
    for key in KEYS:
        known = {
            place: value
            for place in data.pool
            if data.questions[place].split == "train"
            and (value := need(examples[data.questions[place].id], key, "soft")) is not None
        }
        scores = data.scores(list(known), 2 * np.array(list(known.values())) - 1, [*dev, *data.test])
        of_dev, of_test = scores[: len(dev)], scores[len(dev) :]
        searched = of_test > np.median(of_dev)
        lost = np.where(searched, 0.0, llm - rag)
        points = delta(lost.mean(), resampled_means(lost[:, None], DRAWS, SEED)[:, 0])
        drawn = resampled_areas([of_test], llm, rag, DRAWS, SEED)[:, 0]
        area = interval(np.concatenate([[data.area(of_test)], drawn]))
        chance = llm.mean() + searched.mean() * (rag.mean() - llm.mean())
        print(
            f"| {key} | {area.mean:.2f} [{area.low:.2f}, {area.high:.2f}] | {searched.mean():.1%} | "
            f"{np.where(searched, rag, llm).mean():.1%} | {100 * points.mean:+.1f} "
            f"[{100 * points.low:+.1f}, {100 * points.high:+.1f}] | {chance:.1%} |"
        )
        if key == "change":
            promises = promise_lines(of_dev, data.changed[dev], of_test, data.changed[data.test])
    print("\n".join(promises))


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
