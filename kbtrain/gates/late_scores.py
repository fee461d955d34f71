"""Scores of a test split that is named only after a training has finished."""

from __future__ import annotations

from kbtrain import jsonl
from kbtrain.gates.registry import load_gate
from kbtrain.provenance import file_sha256, read_meta
from kbtrain.records import GateScore
from kbtrain.training.config import HeldOutConfig
from kbtrain.training.data import read_examples
from kbtrain.training.finish import SCORES, held_out_examples, write_scores


def score_late_test(config: HeldOutConfig, device: str) -> str:
    """Score the test split with the finished gate of ``config.output``, dev's scores stay; what was done, in words.

    Empty where no test file is named, or its examples are scored already.
    """
    test, path = held_out_examples(config.test), config.output / SCORES
    if config.test is None:
        return ""
    stored = {row.question_id: row.score for row in jsonl.read(GateScore, path)}
    known = set(read_meta(path)["inputs"].values())
    if file_sha256(config.test) in known and all(example.id in stored for example in test):
        return ""
    gate = load_gate(config.output, device=device)
    dev = [example for example in read_examples(config.dev) if example.split == "dev" and example.id in stored]
    scores = [*(stored[example.id] for example in dev), *gate.score(test)]
    inputs = list(dict.fromkeys((config.dev, config.test)))
    write_scores(config.output, gate.name, [*dev, *test], scores, inputs, seed=config.seed)
    return f"its {len(test)} test examples are scored now"
