"""Published verdicts beside what gates read of their questions: features, embeddings, a small model's states.

What takes minutes is kept in a folder, each under a name that changes with what it was made of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kbtrain.errors import UserError, at, did_you_mean
from kbtrain.io.provenance import file_sha256
from kbtrain.labeling.examples import example
from kbtrain.records import GateExample
from kbtrain.training.folds import groups_of
from published import fits as ev
from published.frozen_texts import kept_embeddings
from published.outcomes import Grading, Judged, Retrievals, read_judged

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kbtrain.arrays import Floats
    from kbtrain.gates.features.additive import Row

FEWEST = 10  # train questions of a data set to which its own gate is fitted, in folds
MAX_LENGTH = 128  # tokens of a question that the encoder reads
STEP = 5  # every fifth layer of the reader is tried: its neighbours say nearly the same


@dataclass(frozen=True)
class Sheet:
    """Questions, places of train and test among them, and what gates read of each.

    ``groups``: a number for each question, equal for those of one text; folds keep them together.
    """

    rows: list[Judged]
    train: list[int]
    test: list[int]
    data_sets: list[str]
    groups: list[int]
    fits: dict[str, ev.Fit]

    def right(self, model: str, grading: Grading, retrievals: Retrievals) -> Floats:
        """(questions,): 1 where the model's answer is right."""
        return np.array([float(row.right[model, grading][retrievals]) for row in self.rows])

    def score(self, name: str) -> Floats:
        """(questions,): a published number, NaN where a row lacks it."""
        return np.array([row.scores.get(name, np.nan) for row in self.rows])


def sheet_of(paths: Sequence[Path], corpus: Path, reader: str, encoder: str, folder: Path, model: str) -> Sheet:
    """Everything that is computed once. ``reader``, ``encoder``: models that see the question alone; ``folder``: where
    index, embeddings and states are kept. Raises :class:`~kbtrain.errors.UserError`, also where the answering ``model``
    has no verdict on a question, two files have one id, or a data set has too few train questions.
    """
    rows, file_of = [], dict[str, Path]()
    for path in paths:
        for row in read_judged(path):
            name = row.question.id
            if name in file_of:
                raise UserError(f"{at(path)}: id '{name}' is in {at(file_of[name])}, too; give each question once")
            if (model, "published") not in row.right:
                there = did_you_mean(model, sorted({other for other, _ in row.right}))
                raise UserError(f"key 'model': {at(path)}: question '{name}' has no verdicts on it; {there}")
            file_of[name] = path
            rows.append(row)
    asked = [example(row.question, None) for row in rows]
    sets = [row.question.dataset for row in rows]
    own = Counter(row.question.dataset for row in rows if row.question.split == "train")
    for name in dict.fromkeys(sets):
        if own[name] < FEWEST:
            files = ", ".join(at(path) for path in paths)
            raise UserError(f"{files}: {own[name]} train questions of data set '{name}'; a gate of its own needs "
                            f"{FEWEST}")  # fmt: skip
    fits = {"data_set": ev.of_set(sets), "features": ev.of_features(corpus_features(corpus, folder, asked))}
    fits["encoder"] = ev.of_vectors([kept_embeddings(encoder, folder, [one.question for one in asked], MAX_LENGTH)])
    fits["reader"] = ev.of_vectors(reader_states(reader, folder, asked))
    fits["reader_by_set"] = ev.per_set(fits["reader"], sets)
    fits["features_by_set"] = ev.per_set(fits["features"], sets)
    places = {part: [i for i, row in enumerate(rows) if row.question.split == part] for part in ("train", "test")}
    return Sheet(rows, places["train"], places["test"], sets, groups_of(asked), fits)


def corpus_features(corpus: Path, folder: Path, asked: Sequence[GateExample]) -> list[Row]:
    """Form and words' frequencies of each question, as the gate ``features`` reads them; the index is kept."""
    from kbtrain.gates.features.gate import feature_rows
    from kbtrain.gates.features.question import Frequencies
    from kbtrain.retrieval.retrieve_stage import open_index

    index = folder / f"bm25-{file_sha256(corpus)[:12]}"
    open_index(corpus, index)
    return feature_rows(Frequencies.of_index(index), asked, after_search=False, spelling=False)


def reader_states(reader: str, folder: Path, asked: Sequence[GateExample]) -> list[NDArray[np.float32]]:
    """(questions, d) of each layer that is tried, under the reader's own prompt of the question."""
    from kbtrain.gates.probe.gate import Reader, state_facts
    from kbtrain.gates.probe.states import StateStore, prompt_key, read_all
    from kbtrain.models.adapters import base_fingerprint
    from kbtrain.models.load import load_model, name_of

    model, tokenizer = load_model(reader, "auto", "cpu")
    prompts = Reader(model, tokenizer).prompts(asked)
    store = StateStore(folder / "states", state_facts(base_fingerprint(reader), name_of(model.dtype), reader))
    read_all(store.extract(model, prompts), len(asked))
    depth = int(model.config.get_text_config().num_hidden_layers)
    keys = [prompt_key(ids) for ids in prompts]
    return [store.layer(keys, layer) for layer in range(min(STEP, depth) - 1, depth, STEP)]
