"""Scores of a test split that is named only after a training has finished."""

from __future__ import annotations

from kbtrain.gates.registry import load_gate
from kbtrain.io import jsonl
from kbtrain.io.provenance import file_sha256, read_meta
from kbtrain.records import GateScore
from kbtrain.training.config import HeldOutConfig
from kbtrain.training.data import read_examples
from kbtrain.training.finish import SCORES, held_out_examples, write_scores
from kbtrain.training.run import is_being_replaced


def score_late_test(config: HeldOutConfig, device: str) -> str:
    """Score the test split with the finished gate of ``config.output``, dev's scores stay; what was done, in words.

    Empty where no test file is named, or its examples are scored already. Where an earlier call was killed while it
    replaced the scores, all are computed again.
    """
    test, path = held_out_examples(config.test), config.output / SCORES
    killed = is_being_replaced(path)
    stored = {row.question_id: row.score for row in jsonl.read(GateScore, path)}
    done = config.test is None or (
        file_sha256(config.test) in read_meta(path)["inputs"].values() and all(item.id in stored for item in test)
    )
    if done and not killed:
        return ""
    gate = load_gate(config.output, device=device)
    dev = [example for example in read_examples(config.dev) if example.split == "dev" and example.id in stored]
    of_dev = gate.score(dev) if killed else [stored[example.id] for example in dev]
    scores = [*of_dev, *(gate.score(test) if test else [])]
    inputs = list(dict.fromkeys(item for item in (config.dev, config.test) if item))
    write_scores(config.output, gate.name, [*dev, *test], scores, inputs, seed=config.seed)
    return f"its {len(test)} test examples are scored now" if test else "its scores are whole again"
