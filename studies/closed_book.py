"""Measure gates that see the question alone on closed-book verdicts of several models: which answers will be wrong.

Reads rows of questions with right and wrong, and each model's own confidence (studies/notes/evidence.md);
a corpus for words'
frequencies; a small encoder and, unless it is null, a small language model that read the question. All figures are
cross-validated over questions: these rows have no test part, and no retrieval, so benefit is not predicted. Writes
OUT/closed_book.json and .md; embeddings, states and index are kept in OUT and used again.

Examples:
  python studies/closed_book.py --path $KBTRAIN_TEST_DATA/closed_book/songs.jsonl \\
      --corpus $KBTRAIN_TEST_DATA/passages.jsonl
  python studies/closed_book.py --path songs.jsonl --corpus passages.jsonl --reader null --out runs/songs
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from published import closed_book as cb
from published import fits as ev
from published.frozen_texts import kept_embeddings
from published.outcomes import ClosedBook, read_closed_book
from published.report import closed_book_markdown
from published.sheet import MAX_LENGTH, corpus_features, reader_states
from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.errors import UserError, at
from kbtrain.io.provenance import write_atomically, write_result
from kbtrain.labeling.examples import example
from kbtrain.runtime.progress import progress_bar

if TYPE_CHECKING:
    from kbtrain.arrays import Bools, Floats

LEAST = 10  # answers of each class: fewer may all lie in one fold


class ClosedBookConfig(Config):
    path: Path = Field(description="JSON Lines file of questions and closed-book verdicts")
    corpus: Path = Field(description="passages (JSONL) whose words' frequencies the gate features reads")
    reader: str | None = Field("smollm2-135m-instruct", description="language model that reads the question, or null")
    encoder: str = Field("all-minilm-l6-v2", description="small encoder that reads the question")
    out: Path = Field(Path("runs/closed_book"), description="folder of the results")

    def writes(self) -> tuple[Path, ...]:
        return (self.out,)


def main(config: ClosedBookConfig) -> None:
    """Read, fit, measure, write, say."""
    started = time.monotonic()
    rows = list(read_closed_book(config.path))
    models = judged_everywhere(config.path, rows)
    for model in models:
        right = sum(row.right[model] for row in rows)
        if min(right, len(rows) - right) < LEAST:
            raise UserError(f"{at(config.path, field=model)}: {right} of {len(rows)} answers are right; a gate needs "
                            f"{LEAST} right and {LEAST} wrong ones")  # fmt: skip
    fits = fits_of(config, rows)
    with progress_bar(total=len(models) * len(fits), desc="gates", unit="gates") as bar:
        scores = {model: cb.scores_of(rows, model, fits, bar.update) for model in models}
    wrong = {model: np.array([not row.right[model] for row in rows]) for model in models}
    clear = {model: np.array([model not in row.doubtful for row in rows]) for model in models}
    document = {
        "questions": len(rows),
        "models": {m: figures(rows, wrong[m], clear[m], scores[m]) for m in models},
        "pooled": pooled(rows, wrong, clear, scores),
    }
    write_atomically(config.out / "closed_book.md", closed_book_markdown(document))
    out, inputs = config.out / "closed_book.json", [config.path, config.corpus]
    write_result(out, document, stage="closed_book", config=config, inputs=inputs, started=started)
    print(closed_book_markdown(document))
    print(f"{len(rows)} questions, {len(models)} models in {time.monotonic() - started:.0f} s -> {config.out}")


def judged_everywhere(path: Path, rows: Sequence[ClosedBook]) -> list[str]:
    """Models with a verdict in every row; of the others a warning. Raises :class:`UserError` where there is none."""
    judged = Counter(model for row in rows for model in row.right)
    kept = [model for model in judged if judged[model] == len(rows)]
    left_out = ", ".join(f"{model} {n}" for model, n in judged.items() if model not in kept)
    if not kept:
        raise UserError(f"{at(path, field='llms')}: no model has a verdict in each of the {len(rows)} rows: {left_out}")
    if left_out:
        told = f"skipped, no verdict in some of {len(rows)} rows: {left_out}"
        warnings.warn(f"{at(path, field='llms')}: {told}", stacklevel=2)
    return kept


def fits_of(config: ClosedBookConfig, rows: Sequence[ClosedBook]) -> dict[str, ev.Fit]:
    """Gates by name; what they read is computed once."""
    asked = [example(row.question, None) for row in rows]
    texts = [one.question for one in asked]
    fits = {
        "popularity": cb.of_popularity(rows),
        "features": ev.of_features(corpus_features(config.corpus, config.out, asked)),
        "encoder": ev.of_vectors([kept_embeddings(config.encoder, config.out, texts, MAX_LENGTH)]),
    }
    if config.reader is not None:
        fits["reader"] = ev.of_vectors(reader_states(config.reader, config.out, asked))
    return fits


def figures(rows: Sequence[ClosedBook], wrong: Bools, clear: Bools, scores: Mapping[str, Floats]) -> dict[str, Any]:
    """One model's gates."""
    found = cb.ranked(wrong, clear, [row.question.id for row in rows], scores)
    gates = {name: dataclasses.asdict(one) for name, one in found.items()}
    return {"wrong": float(wrong.mean()), "doubtful": int((~clear).sum()), "gates": gates}


def pooled(
    rows: Sequence[ClosedBook],
    wrong: Mapping[str, Bools],
    clear: Mapping[str, Bools],
    scores: Mapping[str, Mapping[str, Floats]],
) -> dict[str, Any]:
    """All models' answers together: whatever is fitted must beat the model's mean."""
    models = list(wrong)
    ids = [row.question.id for _ in models for row in rows]
    together = {name: np.concatenate([scores[m][name] for m in models]) for name in scores[models[0]]}
    joined = [np.concatenate([part[m] for m in models]) for part in (wrong, clear)]
    found = cb.ranked(joined[0], joined[1], ids, together)
    gates = {name: dataclasses.asdict(one) for name, one in found.items()}
    return {"wrong": float(joined[0].mean()), "doubtful": int((~joined[1]).sum()), "gates": gates}


if __name__ == "__main__":
    run_script(main, ClosedBookConfig, __doc__)
