"""Add retrieved passages to each dialogue turn (RAGate's know): RUN/turns.jsonl -> RUN/turns_features.jsonl.

BM25's first k passages of a corpus, with the context as query: only what was said before a turn is read. The run's own
snippets.jsonl is such a corpus. Generated responses and entities: studies/turn_responses.py, studies/turn_entities.py.

Examples:
  kbtrain run turn_features --run runs/ketod --corpus runs/ketod/snippets.jsonl
  kbtrain run turn_features --run runs/ketod --corpus passages.jsonl --k 5
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from kbtrain.config import Config, run_script
from kbtrain.io import jsonl
from kbtrain.io.provenance import check_unchanged, write_meta
from kbtrain.records import TurnExample
from kbtrain.retrieval.base import DistinctSearch
from kbtrain.retrieval.retrieve_stage import open_index
from kbtrain.runtime.progress import progress_bar


class TurnFeaturesConfig(Config):
    run: Path = Field(Path("runs/ketod"), description="run folder with turns.jsonl; the corpus' index is kept in it")
    corpus: Path = Field(description="passages to search for each context")
    k: int = Field(3, ge=1, description="passages per turn")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "turns_features.jsonl",)


def main(config: TurnFeaturesConfig) -> None:
    started = time.monotonic()
    source, (target,) = config.run / "turns.jsonl", config.writes()
    check_unchanged(source)
    turns = list(jsonl.read(TurnExample, source))
    searcher = DistinctSearch(open_index(config.corpus, config.run / "bm25_turns"))
    contexts = progress_bar([" ".join(u.text for u in turn.context) for turn in turns], desc="know", unit="turns")
    found = searcher.search(list(contexts), config.k)
    jsonl.write(target, (replace(turn, knowledge=hits) for turn, hits in zip(turns, found, strict=True)))
    without = sum(hits == () for hits in found)
    inputs, extra = [source, config.corpus], {"empty": {"knowledge": without}}
    write_meta(target, stage="turn_features", config=config, inputs=inputs, extra=extra, started=started)
    print(f"{len(turns)} turns; no knowledge for {without} -> {target}")


if __name__ == "__main__":
    run_script(main, TurnFeaturesConfig, __doc__)
