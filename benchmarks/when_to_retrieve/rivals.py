"""Score files of simple gates, made from their papers: what any gate of the open table must beat.

All are fitted to the train questions' verdicts on one model. Train questions get held-out scores (five folds), test
questions those of a fit to all train questions. ``length``: words of the question, nothing fitted. ``tf_idf``: a
logistic regression of "one retrieval gains" on words and pairs of words. ``nearest_neighbours``: mean gain of the 10
train questions that a sentence encoder finds nearest (SKR, arXiv 2310.05002, section 3.2). ``adaptive_rag_labels``:
Adaptive-RAG's label rule (arXiv 2403.14403, section 3.2) with a logistic regression on the encoder's embedding in place
of T5-large. Of its three classes the table asks one thing: is "no retrieval" the label, hence right without one?
Writes OUT/GATE.jsonl.

Examples:
  python benchmarks/when_to_retrieve/rivals.py --rows runs/when_to_retrieve/rows.jsonl --model gpt-4o
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, Paths, run_script
from kbtrain.errors import UserError, did_you_mean
from kbtrain.io.provenance import write_atomically

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))

from published.fits import held_out
from published.frozen_texts import kept_embeddings
from published.outcomes import read_judged

Fit = Callable[[Sequence[int], Floats, Sequence[int]], Floats]
NEIGHBOURS = 10
MAX_LENGTH = 128  # tokens of a question that the encoder reads


class RivalsConfig(Config):
    rows: Paths = Field(min_length=1, description="files of outcome_rows.py")
    model: str = Field("llama-3-8b-instruct", description="answering model whose verdicts are learnt")
    encoder: str = Field("all-minilm-l6-v2", description="sentence encoder: embedded name, folder or hub id")
    out: Path | None = Field(None, description="folder of the score files; null: runs/when_to_retrieve/rivals/MODEL")

    @property
    def folder(self) -> Path:
        return self.out or Path("runs/when_to_retrieve/rivals") / self.model

    def writes(self) -> tuple[Path, ...]:
        return (self.folder,)


def main(config: RivalsConfig) -> None:
    rows = [row for path in config.rows for row in read_judged(path)]
    if lacking := next((row for row in rows if (config.model, "published") not in row.right), None):
        hint = did_you_mean(config.model, sorted({name for name, _ in lacking.right}))
        raise UserError(f"key 'model': question '{lacking.question.id}' has no verdicts on it; {hint}")
    texts = [row.question.text for row in rows]
    vectors = kept_embeddings(config.encoder, config.folder.parent, texts, MAX_LENGTH)
    right = [row.right[config.model, "published"] for row in rows]
    gains = np.array([float(one["one"]) - float(one["none"]) for one in right])
    wrong = np.array([float(not one["none"]) for one in right])
    train, test = ([i for i, row in enumerate(rows) if (row.question.split == "test") is side] for side in
                   (False, True))  # fmt: skip
    gates: dict[str, tuple[Fit, Floats]] = {
        "length": (lambda _, __, scored: np.array([float(len(texts[i].split())) for i in scored]), gains),
        "tf_idf": (tf_idf(texts), gains),
        "nearest_neighbours": (nearest_neighbours(vectors), gains),
        "adaptive_rag_labels": (label_classifier(vectors), wrong),
    }
    for name, (fit, target) in gates.items():
        own = target[train]
        scores = dict(zip(train, held_out(fit, train, own, train), strict=True))
        scores |= zip(test, fit(train, own, test), strict=True)
        lines = [json.dumps({"id": rows[i].question.id, "score": float(score)}) for i, score in scores.items()]
        write_atomically(config.folder / f"{name}.jsonl", "\n".join(lines) + "\n")
    print(f"{len(gates)} gates, {len(train)} train and {len(test)} test questions -> {config.folder}")


def tf_idf(texts: Sequence[str]) -> Fit:
    def fit(places: Sequence[int], gains: Floats, scored: Sequence[int]) -> Floats:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        model: Any = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True),
                                   LogisticRegression(max_iter=1000))  # fmt: skip
        model.fit([texts[i] for i in places], gains > 0)
        return np.asarray(model.decision_function([texts[i] for i in scored]))

    return fit


def nearest_neighbours(vectors: np.ndarray) -> Fit:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def fit(places: Sequence[int], gains: Floats, scored: Sequence[int]) -> Floats:
        near = np.argpartition(-(unit[list(scored)] @ unit[list(places)].T), NEIGHBOURS - 1, axis=1)[:, :NEIGHBOURS]
        return np.asarray(gains[near].mean(axis=1))

    return fit


def label_classifier(vectors: np.ndarray) -> Fit:
    def fit(places: Sequence[int], labels: Floats, scored: Sequence[int]) -> Floats:
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(max_iter=1000).fit(vectors[list(places)], labels > 0)
        return np.asarray(model.decision_function(vectors[list(scored)]))

    return fit


if __name__ == "__main__":
    run_script(main, RivalsConfig, __doc__)
