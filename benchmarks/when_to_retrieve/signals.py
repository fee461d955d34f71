"""Score files of signals that need no verdict: a retriever's score, popularity, and a small model's own doubt.

One file serves every answering model. ``retriever_top`` and ``retriever_gap``: BM25's best score over a corpus, and its
lead over the second passage. ``popularity``: how rare the rarest name of the question is in that corpus (names: words
with a capital letter behind the first word; without any, all words). ``prompt``: a small model is asked whether it
needs more information; it searches above 0.5. ``targ_margin`` and ``targ_entropy``: TARG (arXiv 2511.09803) on a small
model's draft of 20 tokens; it searches above the median of 500 train questions, TARG's budget rule for half of the
searches. The small model is not the one that answers: states and log-probabilities of the four are not published.

Examples:
  python benchmarks/when_to_retrieve/signals.py --rows runs/when_to_retrieve/rows.jsonl --corpus passages.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from kbtrain.arrays import Floats
from kbtrain.config import Config, Paths, run_script
from kbtrain.gates.features.question import Frequencies
from kbtrain.io.provenance import write_atomically
from kbtrain.labeling.examples import example
from kbtrain.records import DtypeName
from kbtrain.retrieval.retrieve_stage import open_index

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))

from published.outcomes import Judged, read_judged

Signal = Literal["prompt", "targ"]
DEV = 500  # train questions whose scores choose TARG's threshold
BUDGET = 0.5  # of the questions that TARG may search for


class SignalsConfig(Config):
    rows: Paths = Field(min_length=1, description="files of outcome_rows.py")
    corpus: Path | None = Field(None, description="passages (JSONL); without it no retriever's score and no popularity")
    reader: str | None = Field("smollm2-135m-instruct", description="small language model, or null for none")
    dtype: DtypeName = Field("fp32", description="number format of that model")
    signals: tuple[Signal, ...] = Field(("prompt", "targ"), description="of that model")
    out: Path = Field(Path("runs/when_to_retrieve/signals"), description="folder of the score files")

    def writes(self) -> tuple[Path, ...]:
        return (self.out,)


def main(config: SignalsConfig) -> None:
    rows = [row for path in config.rows for row in read_judged(path)]
    names = corpus_signals(config, rows) if config.corpus is not None else []
    names += model_signals(config, rows) if config.reader is not None else []
    print(f"{', '.join(names) or 'nothing'}: {len(rows)} questions -> {config.out}")


def corpus_signals(config: SignalsConfig, rows: Sequence[Judged]) -> list[str]:
    assert config.corpus is not None
    folder = config.out.parent / "bm25"
    index, texts = open_index(config.corpus, folder), [row.question.text for row in rows]
    found = [[hit.score for hit in hits] + [0.0, 0.0] for hits in index.search(texts, 2)]
    known = Frequencies.of_index(folder)
    scores = {
        "retriever_top": np.array([hits[0] for hits in found]),
        "retriever_gap": np.array([hits[0] - hits[1] for hits in found]),
        "popularity": np.array([-rarest_name(known, text) for text in texts]),
    }
    for name, values in scores.items():
        write_scores(config.out / f"{name}.jsonl", rows, values)
    return list(scores)


def rarest_name(known: Frequencies, text: str) -> float:
    """Log of the number of passages with the rarest of the question's names."""
    words = text.split()
    named = [word for word in words[1:] if word[:1].isupper()] or words
    counts = [known.log_counts(known.tokens.words(word)) for word in named]
    return min((count for of_word in counts for count in of_word), default=0.0)


def model_signals(config: SignalsConfig, rows: Sequence[Judged]) -> list[str]:
    from white_box import TOKENS, mean_tokens, read_drafts

    from kbtrain.gates.kbm.gate import PromptGate
    from kbtrain.gates.probe.gate import Reader
    from kbtrain.models.load import load_model

    assert config.reader is not None
    model, tokenizer = load_model(config.reader, config.dtype)
    test = [row for row in rows if row.question.split == "test"]
    names = []
    if "prompt" in config.signals:
        needs = np.array(PromptGate(model, tokenizer).score_examples([example(row.question, None) for row in test]))
        write_scores(config.out / "prompt.jsonl", test, needs, needs > 0.5, 0.0)
        names.append("prompt")
    if "targ" in config.signals:
        train = [row for row in rows if row.question.split == "train"]
        dev = [train[i] for i in np.random.default_rng(0).permutation(len(train))[:DEV]]
        asked = [example(row.question, None) for row in (*test, *dev)]
        drafts = read_drafts(Reader(model, tokenizer), asked, TOKENS)
        tokens = mean_tokens(drafts[: len(test)], TOKENS)
        for name in ("margin", "entropy"):
            values = np.array([draft.signals(TOKENS)[f"draft_{name}"] for draft in drafts])
            own, others = values[: len(test)], values[len(test) :]
            write_scores(config.out / f"targ_{name}.jsonl", test, own, own > np.quantile(others, 1 - BUDGET), tokens)
            names.append(f"targ_{name}")
    return names


def write_scores(
    path: Path, rows: Sequence[Judged], scores: Floats, search: np.ndarray | None = None, tokens: float | None = None
) -> None:
    """A score file of the open table; ``search``: decisions, ``tokens``: mean of a question."""
    lines = []
    for place, (row, score) in enumerate(zip(rows, scores, strict=True)):
        beside = {} if search is None else {"search": int(search[place]), "tokens": tokens}
        lines.append(json.dumps({"id": row.question.id, "score": float(score), **beside}))
    write_atomically(path, "\n".join(lines) + "\n")


if __name__ == "__main__":
    run_script(main, SignalsConfig, __doc__)
