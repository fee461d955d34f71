"""Search evidence for every question of a run folder: questions.jsonl + passages.jsonl -> evidence.jsonl.

One record per question, in the questions' order. Resumable: an interrupted run goes on after its last batch; the
BM25 index is built once and kept in RUN/bm25/.

Examples:
  python data_gen/retrieve.py --run runs/demo
  python data_gen/retrieve.py --run runs/demo --retriever fixed --k 2
  python data_gen/retrieve.py --config data_gen/configs/retrieve_paper.yaml --run runs/qwen2_7b --corpus wiki.jsonl
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Literal

from pydantic import Field
from tqdm import tqdm

from kbtrain import jsonl
from kbtrain.config import Config, run_script
from kbtrain.provenance import file_sha256, meta_path, read_meta, write_meta
from kbtrain.retrieval.evidence_file import EvidenceFile
from kbtrain.retrieval.stage import bm25_index, by_bm25, by_gold, find_evidence, summary


class RetrieveConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl")
    corpus: Path | None = Field(None, description="passages to search; null: passages.jsonl of the run folder")
    retriever: Literal["bm25", "fixed"] = Field("bm25", description="bm25, or fixed: the gold passages themselves")
    k: int = Field(3, ge=1, description="passages per question, best first")
    query: Literal["text", "text_and_options"] = Field("text", description="what is searched for")
    batch: int = Field(256, ge=1, description="questions searched at once")


def main(config: RetrieveConfig) -> None:
    started = time.time()
    questions, target = config.run / "questions.jsonl", config.run / "evidence.jsonl"
    corpus = config.corpus or config.run / "passages.jsonl"
    key = key_of(config, questions, corpus)
    if target.exists() and meta_path(target).exists() and read_meta(target).get("key") == key:
        print(f"{target} is there already, made from the same questions, passages and options")
        return
    with EvidenceFile(target, key) as out:
        fixed = config.retriever == "fixed"
        search = by_gold(corpus, config.k) if fixed else by_bm25(bm25_index(corpus, config.run / "bm25"), config.k)
        total = sum(1 for _ in jsonl.lines(questions))
        with tqdm(total=total, initial=out.n, desc="retrieve", unit="question") as bar:
            for batch in find_evidence(questions, search, config.retriever, config.query, config.batch, out.n):
                for evidence in batch:
                    out.add(evidence)
                out.flush()
                bar.update(len(batch))
        out.finish()
    counts = summary(target, questions)
    extra = {"key": key, "counts": counts}
    options = config.model_dump(mode="json")
    write_meta(target, stage="retrieve", config=options, inputs=[questions, corpus], extra=extra, started=started)
    print(f"{counts['questions']} questions, a gold passage among the {config.k} hits for {counts['gold_found']} of "
          f"{counts['gold_named']}, nothing found for {counts['without_hits']} -> {target}")  # fmt: skip


def key_of(config: RetrieveConfig, questions: Path, corpus: Path) -> dict[str, Any]:
    """What the evidence depends on; the batch size is not among it."""
    hashes = {"questions": file_sha256(questions), "passages": file_sha256(corpus)}
    return {**config.model_dump(include={"retriever", "k", "query"}), **hashes}


if __name__ == "__main__":
    run_script(main, RetrieveConfig, __doc__)
