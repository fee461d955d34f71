"""Fit the gate features: the form of a question and how often its words occur in the corpus, in a second on a CPU.

Reads examples (data_gen/build.py) and the words' document frequencies of the run's BM25 index (data_gen/retrieve.py).
The folder stores them, so it needs no index later. Without --index, for example with your own search, the gate reads
only the form of a question. With --evidence it also reads what the search found: such a gate is asked after the search.
Training questions get scores of gates that were fitted without them (held_out.jsonl), which eval/score.py uses for its
split train.

Examples:
  kbtrain run train_features --config features_demo
  kbtrain run train_features --train runs/nq/examples/train.jsonl --dev runs/nq/examples/dev.jsonl \\
      --index runs/nq/bm25 --output runs/nq/features --keys "[mastery]"
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from kbtrain.config import run_script
from kbtrain.gates.features.additive import Additive
from kbtrain.gates.features.gate import Features, held_out_scores
from kbtrain.gates.features.question import Frequencies
from kbtrain.prompts.kbm import Key
from kbtrain.retrieval.base import attach_hits
from kbtrain.training.config import KeyedFitConfig
from kbtrain.training.data import Labelled
from kbtrain.training.fit import KeyedData, KeyedEnding, KeyedFit, claim_fit_folder, read_keyed


class TrainFeaturesConfig(KeyedFitConfig):
    """Settings of this script."""

    index: Path | None = Field(
        None,
        description="folder of the BM25 index, whose document frequencies are stored; null: only the form of the "
        "question is read",
    )
    evidence: Path | None = Field(
        None, description="evidence.jsonl of these questions; the gate then decides after the search"
    )


def main(config: TrainFeaturesConfig) -> None:
    """Bind the folder to this gate, read, fit, score the training questions held out, write."""
    started = time.monotonic()
    claim_fit_folder(config, "features", frozenset({"index", "evidence"}), after_search=config.evidence is not None)
    data = read_keyed(config)
    if config.evidence:
        data = with_evidence(data, config.evidence)
    frequencies = Frequencies.of_index(config.index) if config.index else Frequencies.none()
    after_search = config.evidence is not None
    gate = Features.fit(frequencies, data.train, config.labels, after_search, config.seed)
    fit = KeyedFit(
        card=gate.card,
        write=frequencies.save,
        dev=gate.score_all(data.questions("dev")),
        again=lambda folder: Features.load(folder).score_all(data.questions("dev")),
        held_out=held_out_scores(gate, data.train, config.seed),
        what="Says whether a question needs retrieval, from its form"
        + (" and from how often its words are in the corpus" if config.index else "")
        + (", and from what the search found" if after_search else "")
        + ". Score: p(retrieval needed) in [0, 1]; no model is called.",
        points=(
            f"Document frequencies of {len(frequencies.hashes):,} words of the index {config.index.name}."
            if config.index
            else "No document frequencies: no index of the passages was given.",
            f"Labels: {config.labels}, {', '.join(config.keys)}; C of the logistic regressions: "
            + ", ".join(f"{key} {model.strength:g}" for key, model in gate.card.models.items()),
            *(f"{key}: {weights(model)}" for key, model in gate.card.models.items()),
        ),
        limits="it knows this corpus and this model's answers; if either changes, train it again.",
        inputs=[path for path in (config.index, config.evidence) if path],
    )
    print("train_features: " + KeyedEnding(config, data, fit, started).finish())


def with_evidence(data: KeyedData, evidence: Path) -> KeyedData:
    """The questions with the passages found for them."""
    by_id = {e.id: e for split in ("train", "dev") for e in attach_hits(data.questions(split), evidence)}

    def attached(rows: Mapping[Key, Sequence[Labelled]]) -> dict[Key, list[Labelled]]:
        return {key: [replace(row, example=by_id[row.example.id]) for row in part] for key, part in rows.items()}

    return KeyedData(attached(data.train), attached(data.dev))


def weights(model: Additive) -> str:
    """The six features that move the log odds most, with their range."""
    ranges = {name: max(curve.values) - min(curve.values) for name, curve in model.curves.items()}
    best = sorted(ranges, key=lambda name: -ranges[name])[:6]
    return "log odds move by up to " + ", ".join(f"{ranges[name]:.2f} ({name})" for name in best)


if __name__ == "__main__":
    run_script(main, TrainFeaturesConfig, __doc__)
