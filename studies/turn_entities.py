"""Add entities and a ranker's snippets to dialogue turns (RAGate, table 2): RUN/turns_entities.jsonl.

Reads RUN/turns_responses.jsonl where it is (studies/turn_responses.py), else the turns with passages, else those as
collected. ner: what spaCy or GLiNER find in the generated response, as in the paper ("entities within the incoming
responses"); without one, the data set's slot spans of the context, unlike the paper. know: the first k snippets of a
ranker, of TF-IDF, or passages of BM25.

Examples:
  python studies/turn_entities.py --run runs/ketod --know tfidf
  python studies/turn_entities.py --run runs/ketod --know ranker --ranker runs/ketod/ranker --ner "[sgd, spacy]"
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from pydantic import Field
from ragate_responses.entities import Finder, check_finders, entities_of, finders_for, with_entities
from ragate_responses.knowledge import KnowledgeConfig, find_knowledge

from kbtrain.config import run_script
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import check_unchanged, write_meta
from kbtrain.records import TurnExample
from kbtrain.runtime.progress import progress_bar


class TurnEntitiesConfig(KnowledgeConfig):
    ner: tuple[Finder, ...] | None = Field(
        None, description="finders: spacy, gliner (in the response), sgd (slots of the context); null: by what is there"
    )
    spacy_model: str = Field("en_core_web_sm", description="spaCy pipeline: package or folder")
    gliner_model: str = Field("urchade/gliner_small-v2.1", description="GLiNER model: folder or hub id")
    k: int = Field(3, ge=1, description="snippets per turn")

    def writes(self) -> tuple[Path, ...]:
        return (self.run / "turns_entities.jsonl",)


def main(config: TurnEntitiesConfig) -> None:
    started, (target,) = time.monotonic(), config.writes()
    names = ("turns_responses.jsonl", "turns_features.jsonl")
    source = next((config.run / name for name in names if path_exists(config.run / name)), config.run / "turns.jsonl")
    check_unchanged(source)
    turns = list(jsonl.read(TurnExample, source))
    has_responses = any(turn.synthetic_response is not None for turn in turns)
    finders = finders_for(has_responses) if config.ner is None else config.ner
    check_finders(finders)
    turns = with_entities(turns, finders, {"spacy": config.spacy_model, "gliner": config.gliner_model})
    if config.know != "none":
        snippets = find_knowledge(config, progress_bar(turns, desc=config.know, unit="turns"), config.k)
        turns = [replace(turn, knowledge=hits) for turn, hits in zip(turns, snippets, strict=True)]
    jsonl.write(target, turns)
    without = {"knowledge": sum(turn.knowledge == () for turn in turns), "entities": sum(not t.entities for t in turns)}
    inputs = [source, *([config.corpus] if config.corpus else [])]
    extra = {"empty": without, "ner": entities_of(finders)}
    write_meta(target, stage="turn_entities", config=config, inputs=inputs, extra=extra, started=started)
    print(f"{len(turns)} turns; ner: {entities_of(finders)}; no entity in {without['entities']}, no knowledge for "
          f"{without['knowledge']} -> {target}")  # fmt: skip


if __name__ == "__main__":
    run_script(main, TurnEntitiesConfig, __doc__)
