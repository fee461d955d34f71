"""Fit the head ``needs_knowledge`` and write its weights into the package; print its figures beside those of the rules.

It is fitted to tools/needs_knowledge/utterances.csv, to training questions of the atlas, and to user turns of the first
half of SGD's dialogues: thanks, goodbyes, confirmations and selections need no knowledge, requests and intents do. The
figures are of tests/utterances/utterances.csv and of the other half. SGD: train/dialogues_001.json of
github.com/google-research-datasets/dstc8-schema-guided-dialogue (CC BY-SA 4.0).

Examples:
  python tools/fit_needs_knowledge.py --sgd train_dialogues_001.json
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from kbtrain.answers.writing import language_of
from kbtrain.config import Config, run_script
from kbtrain.gates.encoder.probe import WEIGHTS, NeedsKnowledge
from kbtrain.io import jsonl
from kbtrain.questions.catalogue import atlas_file
from kbtrain.records import Question
from kbtrain.show import aligned
from kbtrain.utterances import utterance_kind

ROOT = Path(__file__).resolve().parent.parent
NEEDLESS = {"THANK_YOU", "GOODBYE", "AFFIRM", "NEGATE", "SELECT", "AFFIRM_INTENT", "NEGATE_INTENT"}
NEEDED = {"REQUEST", "REQUEST_ALTS", "INFORM_INTENT"}
ATLAS = 150  # questions
STRENGTH = 0.1  # C of the logistic regression
Labelled = tuple[str, bool]


class FitConfig(Config):
    sgd: Path = Field(description="SGD's train/dialogues_001.json")
    limits: list[float] = Field([0.1, 0.2, 0.3, 0.5], description="P below which no search is needed, in the table")


def main(config: FitConfig) -> None:
    """Fit, write, compare."""
    dialogues = json.loads(config.sgd.read_text(encoding="utf-8"))
    half = len(dialogues) // 2
    fit = [*written(), *atlas(), *sgd_turns(dialogues[:half])]
    head = fit_head([text for text, _ in fit], [label for _, label in fit])
    head.save(ROOT / "kbtrain" / "gates" / "encoder" / WEIGHTS)
    print(f"fitted to {len(fit)} utterances, {sum(label for _, label in fit)} of which need knowledge")
    rows = []
    for name, part in (("written after the rules", held_out()), ("SGD, other half", sgd_turns(dialogues[half:]))):
        rows += figures(name, part, head, config.limits)
    print(aligned(["utterances", "by", "n", "precision", "recall"], rows))


def fit_head(texts: Sequence[str], needs: Sequence[bool]) -> NeedsKnowledge:
    """The logistic regression on the encoder's embeddings, both labels with equal weight in all."""
    from sklearn.linear_model import LogisticRegression

    head = NeedsKnowledge(np.zeros(0), 0.0)
    line = LogisticRegression(C=STRENGTH, max_iter=2000, class_weight="balanced").fit(head.embed(texts), needs)
    head.weights, head.intercept = line.coef_[0].astype(np.float32), float(line.intercept_[0])
    return head


def written() -> list[Labelled]:
    """The list that was written for the head."""
    with (ROOT / "tools" / "needs_knowledge" / "utterances.csv").open(encoding="utf-8", newline="") as file:
        return [(row["utterance"], row["needs_knowledge"] == "1") for row in csv.DictReader(file)]


def held_out() -> list[Labelled]:
    """The table of the tests."""
    with (ROOT / "tests" / "utterances" / "utterances.csv").open(encoding="utf-8", newline="") as file:
        return [(row["utterance"], row["kind"] == "question") for row in csv.DictReader(file)]


def atlas() -> list[Labelled]:
    """Training questions of the atlas, evenly spread."""
    texts = [q.text for q in jsonl.read(Question, atlas_file("questions", "atlas_known")) if q.split == "train"]
    return [(text, True) for text in texts[:: max(1, len(texts) // ATLAS)][:ATLAS]]


def sgd_turns(dialogues: Iterable[dict[str, object]]) -> list[Labelled]:
    """User turns whose acts all need no knowledge, and those with an act that asks for something."""
    found: dict[str, bool] = {}
    for dialogue in dialogues:
        for turn in dialogue["turns"]:  # type: ignore[attr-defined]
            acts = {action["act"] for frame in turn["frames"] for action in frame["actions"]}
            if turn["speaker"] == "USER" and (acts <= NEEDLESS or acts & NEEDED):
                found[turn["utterance"]] = not acts <= NEEDLESS
    return list(found.items())


def figures(name: str, part: Sequence[Labelled], head: NeedsKnowledge, limits: Sequence[float]) -> list[list[str]]:
    """Precision and recall of "needs no search" by the rules alone, by the head alone, and by both."""
    ruled = np.array([utterance_kind(text) is not None for text, _ in part])
    english = np.array([language_of(text) == "en" for text, _ in part])
    needless = ~np.array([label for _, label in part])
    scores = np.array(head.probabilities([text for text, _ in part]))
    found = {"rules": ruled}
    for limit in limits:
        below = english & (scores < limit)
        found |= {f"head, P < {limit:g}": below, f"rules and head, P < {limit:g}": ruled | below}
    rows = []
    for by, said in found.items():
        right = int((said & needless).sum())
        shares = [
            f"{right / max(1, whole):.2f} ({right} of {whole})" for whole in (int(said.sum()), int(needless.sum()))
        ]
        rows.append([name, by, str(len(part)), *shares])
    return rows


if __name__ == "__main__":
    run_script(main, FitConfig, __doc__)
