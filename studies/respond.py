"""Generate dialogue responses with and without knowledge: RUN/turns.jsonl -> RUN/responses/AUGMENTATION.jsonl.

Without snippets (none), and with a ranker's top 3, its first and its fifth alone (RAGate's tables 3 and 4): tfidf or
ranker among the dialogue's snippets, bm25 in a corpus. Each (turn, augmentation) is generated once, greedily, with the
least logit and probability of its tokens; finished ones are kept, a killed run resumes. What the ranker found is in
RUN/responses/RANKER.evidence.jsonl. Call it once for each ranker.

Examples:
  python studies/respond.py --run runs/ketod --model runs/ketod/dialogue --know ranker --ranker runs/ketod/ranker
  python studies/respond.py --run runs/ketod --model runs/ketod/dialogue --know tfidf --ways "[top3]"
  python studies/respond.py --run runs/ketod --model runs/ketod/dialogue --know bm25 --corpus passages.jsonl
"""

from __future__ import annotations

import functools
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from ragate_responses.knowledge import Know, KnowledgeConfig, kept_knowledge
from ragate_responses.responder import CARD, Responder, read_responder_card
from ragate_responses.responses import DEEPEST, NONE, WAYS, Way, augment, responses_path, snippets_of

from kbtrain.config import run_script
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.files import path_exists
from kbtrain.io.provenance import MODEL_FILES, check_unchanged, file_sha256, write_meta
from kbtrain.models.files_read import hashes_of
from kbtrain.records import DtypeName, Hit, Split, TurnExample
from kbtrain.runtime.progress import progress_bar


class RespondConfig(KnowledgeConfig):
    model: Path = Field(description="folder of studies/train_dialogue.py")
    know: Know | Literal["none"] = Field("tfidf", description="none, tfidf, ranker or bm25: where snippets come from")
    ways: tuple[Way, ...] = Field(WAYS, description="which of the found snippets are read: top3, rank1, rank5")
    split: Split = Field("test", description="turns of this split")
    out: Path | None = Field(None, description="folder of the responses (default: RUN/responses)")
    batch_size: int = Field(16, ge=1, description="responses generated at a time")
    dtype: DtypeName = Field("auto", description="auto: by the processor")

    def writes(self) -> tuple[Path, ...]:
        return (self.out or self.run / "responses",)


def main(config: RespondConfig) -> None:
    source, target = config.run / "turns.jsonl", config.out or config.run / "responses"
    check_unchanged(source)
    turns = [turn for turn in jsonl.read(TurnExample, source) if turn.split == config.split]
    if not turns:
        raise UserError(f"{source}: no {config.split} turn in it")
    read_responder_card(config.model)  # a wrong folder is an error before the search
    plan: dict[str, list[tuple[Hit, ...]]] = {NONE: [()] * len(turns)}
    if config.know != "none":
        path = target / f"{config.know}.evidence.jsonl"
        progress = functools.partial(progress_bar, desc=config.know, unit="turns")
        was_read = any(path_exists(responses_path(target, f"{config.know}_{selection}")) for selection in WAYS)
        knowledge = kept_knowledge(path, config, turns, DEEPEST, progress, was_read)
        plan |= {
            f"{config.know}_{selection}": [snippets_of(selection, hits) for hits in knowledge]
            for selection in config.ways
        }
    responder = functools.cache(lambda: open_responder(config))
    key = {"turns": file_sha256(source), "model": file_sha256(config.model / CARD)}
    key |= {MODEL_FILES: hashes_of(str(config.model))}
    key |= {name: str(getattr(config, name)) for name in ("split", "batch_size", "dtype", "device")}
    none: dict[str, Any] = {}
    for name, hits in plan.items():
        started, path = time.monotonic(), responses_path(target, name)
        ids = sha256(repr([[hit.passage_id for hit in turn_hits] for turn_hits in hits]).encode()).hexdigest()
        with progress_bar(total=len(turns), desc=name, unit="turns") as bar:
            texts = augment(responder, turns, hits, path, {**key, "snippets": ids}, none, config.batch_size, bar.update)
        none = none or texts
        bare = sum(not turn_hits for turn_hits in hits) if name != NONE else 0
        empty = sum(not turn_hits.text for turn_hits in texts.values())
        facts = {"without_snippets": bare, "empty": empty}
        write_meta(path, stage="respond", config=config, inputs=[source], extra=facts, started=started)
        print(f"respond: {len(texts)} {config.split} turns, {name}: {bare} found no snippet (their response is that of "
              f"none), {empty} responses are empty -> {path}")  # fmt: skip


def open_responder(config: RespondConfig) -> Responder:
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # transformers' own, of loading
    return Responder.load(config.model, config.dtype, config.device)


if __name__ == "__main__":
    run_script(main, RespondConfig, __doc__)
