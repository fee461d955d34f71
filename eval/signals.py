"""How well each score tells the questions that the model answers wrongly from those it knows: AUROC with its interval.

Reads scores.jsonl and outcomes.jsonl (written by end_to_end.py) of the run folder, for SeaKR's signals as for any
gate; writes signals.json with each score's distribution over both kinds of questions.

Examples:
  python eval/signals.py --run runs/demo
  python eval/signals.py --run runs/demo --positive needed --reference kbm_mastery
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.errors import UserError
from kbtrain.metrics import outcomes as oc
from kbtrain.metrics.auroc import Separation, separations
from kbtrain.metrics.significance import Delta
from kbtrain.metrics.stored import in_order, read_scores
from kbtrain.provenance import write_atomically, write_meta
from kbtrain.records import Outcome, Split
from kbtrain.report.text_table import aligned, number, signed


class SignalsConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder")
    split: Split = Field("test", description="questions to look at")
    positive: Literal["llm_wrong", "needed"] = Field(
        "llm_wrong", description="llm_wrong: wrong without retrieval; needed: and right with it (greedy answers)"
    )
    reference: str = Field("seakr", description="score that the others are compared with")


def main(config: SignalsConfig) -> None:
    """Read, measure, write, show."""
    started = time.time()
    inputs = [config.run / "scores.jsonl", config.run / "outcomes.jsonl"]
    outcomes = [outcome for outcome in jsonl.read(Outcome, inputs[1]) if outcome.split == config.split]
    truth = oc.needed(outcomes) if config.positive == "needed" else oc.greedy_wrong(outcomes)[1]
    if not truth.any() or truth.all():
        raise UserError(f"{inputs[1]}: of {len(truth)} {config.split} questions {truth.sum()} are positive: no AUROC")
    scores = {
        gate: np.array(in_order(gate, found, outcomes, inputs[0])) for gate, found in read_scores(inputs[0]).items()
    }
    found = separations(truth, scores, config.reference)
    out = config.run / "signals.json"
    document = {"schema": 1, "positive": config.positive, "split": config.split,
                "scores": [dataclasses.asdict(one) for one in found]}  # fmt: skip
    write_atomically(out, json.dumps(document, ensure_ascii=False, indent=1) + "\n")
    write_meta(out, stage="signals", config=config.model_dump(mode="json"), inputs=inputs, started=started)
    print(table(found, config.reference))
    share = f"{truth.sum()} of {len(truth)} {config.split} questions positive ({config.positive})"
    print(f"{len(found)} scores, {share} in {time.time() - started:.0f} s -> {out}")


def table(found: list[Separation], reference: str) -> str:
    """One row per score, the best first."""
    head = ("score", "AUROC", "95 % interval", f"{reference} minus this", "quartiles, positive", "quartiles, negative")
    ordered = sorted(found, key=lambda one: -one.auroc.mean)
    return aligned(head, [_cells(one) for one in ordered])


def _cells(one: Separation) -> list[str]:
    quartiles = [" ".join(f"{value:.4g}" for value in values[1:4]) for values in (one.positive, one.negative)]
    return [one.name, number(one.auroc.mean), f"[{number(one.auroc.low)}, {number(one.auroc.high)}]",
            _difference(one.minus), *quartiles]  # fmt: skip


def _difference(found: Delta | None) -> str:
    return "" if found is None else f"{signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"


if __name__ == "__main__":
    run_script(main, SignalsConfig, __doc__)
