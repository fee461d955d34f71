"""Search evidence for every question of a run folder: questions.jsonl + passages.jsonl -> evidence.jsonl.

One record per question, in the questions' order. Resumable: an interrupted run resumes after its last batch; an index
is built once and kept in RUN/bm25/; data_gen/embed.py makes RUN/vectors/. A corpus is JSON Lines, a
JSON list or Parquet (id, title, text), DPR's TSV or a CSV, compressed or not, or a folder of Markdown and text (a
section is a passage).

Examples:
  kbtrain run retrieve --run runs/demo
  kbtrain run retrieve --config retrieve_paper --run runs/qwen2_7b --corpus psgs_w100.tsv
  kbtrain run retrieve --run runs/mine --corpus handbook/ --chunk-tokens 100
  kbtrain run retrieve --run runs/zh --chunk-tokens 100 --chunk-overlap 20
  kbtrain run retrieve --config retrieve_web --run runs/fresh
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from kbtrain.config import Config, check_counts, run_script
from kbtrain.errors import UserError
from kbtrain.io import jsonl
from kbtrain.io.files import beside
from kbtrain.io.provenance import Artifact, check_unchanged, file_sha256, meta_of
from kbtrain.llm.sample_stage import check_passages_replaceable
from kbtrain.records import Titles
from kbtrain.retrieval import retrieve_stage as stage
from kbtrain.retrieval.base import DistinctSearch, Searcher
from kbtrain.retrieval.corpus import Chunking
from kbtrain.retrieval.vectors import CARD, VectorIndex
from kbtrain.retrieval.web import WebSearch, WebService
from kbtrain.runtime.progress import progress_bar


class RetrieveConfig(Config):
    run: Path = Field(Path("runs/demo"), description="run folder with questions.jsonl")
    corpus: Path | None = Field(
        None, description="passages to search, a file or a folder; null: passages.jsonl of the run folder"
    )
    columns: dict[Literal["id", "title", "text"], str] = Field(
        {},
        description="columns of the corpus: our field -> your column, as {text: body}; without an id, lines are "
        "counted",
    )
    retriever: Literal["bm25", "vectors", "fixed", "context", "web"] = Field(
        "bm25",
        description="bm25, vectors (RUN/vectors, made by data_gen/embed.py), fixed (gold passages), context (all "
        "passages that came with a question), web (key web)",
    )
    k: int = Field(3, ge=1, description="passages per question, best first")
    titles: Titles = Field(
        "missing", description="show the title before a passage: missing (if it is not in the text), always, never"
    )
    batch: int = Field(256, ge=1, description="questions searched at once")
    chunk_tokens: int | None = Field(
        None, ge=1, description="split longer passages into chunks of this number of words"
    )
    chunk_overlap: int = Field(0, ge=0, description="words that a chunk shares with the previous chunk")
    pilot: bool = Field(False, description="write candidates.jsonl, from which pilot.py chooses the best k")
    web: WebService | None = Field(None, description="the search service of retriever web: {url: ..., results: ...}")

    @model_validator(mode="after")
    def _counts(self) -> RetrieveConfig:
        """Refuse what would change nothing, and a search of another place than was named."""
        check_counts(self, "retriever", "web", "web")
        if self.columns and self.retriever in ("web", "vectors"):
            raise ValueError(f"key 'columns': retriever {self.retriever} reads no file of passages; remove it")
        if self.retriever == "web" and self.corpus is not None:
            raise ValueError("key 'corpus': retriever web searches no corpus; name another retriever, or remove it")
        if self.chunk_tokens is None:
            if self.chunk_overlap:
                raise ValueError("key 'chunk_overlap': applies only to chunks; give chunk_tokens, too, or omit it")
        elif self.retriever != "bm25":
            raise ValueError("key 'chunk_tokens': only retriever bm25 cuts passages into chunks; remove it")
        return self

    def writes(self) -> tuple[Path, ...]:
        return (self.run / ("candidates.jsonl" if self.pilot else "evidence.jsonl"),)


def main(config: RetrieveConfig) -> None:
    questions, (target,) = config.run / "questions.jsonl", config.writes()
    corpus = searched(config)
    inputs = [questions, *([corpus] if corpus else [])]
    check_unchanged(*inputs)
    key = at_stored_pace(key_of(config, questions, corpus), target)
    evidence = Artifact(target, "retrieve", config, inputs, key)
    if evidence.is_current():
        if config.retriever == "bm25":  # other stages read its index
            search_of(config, corpus)
        return print(f"{target} is there already, made from the same questions, passages and options")
    check_passages_replaceable(evidence)
    with evidence.records() as file:
        search, skipped = search_of(config, corpus)
        total = sum(1 for _ in jsonl.lines(questions))
        with progress_bar(total=total, initial=file.n, desc="retrieve", unit="questions") as bar:
            rule = stage.EvidenceRule(config.retriever, config.titles)
            # of the web a failure costs the searches that are in progress, no more
            size = min(config.batch, config.web.parallel) if config.web else config.batch
            for batch in stage.find_evidence(questions, search, rule, size, file.n):
                file.add(*batch)
                file.flush()
                bar.update(len(batch))
        counts = stage.summary(file.appended, questions)  # takes long: what was found is not lost
    counts |= skipped()  # of this call: an interrupted one had its own
    try:
        lines = stage.summary_lines(counts, config.k, target, config.web is not None)
    except UserError:
        target.unlink()  # no later stage reads it, and the next call searches again
        raise
    evidence.finish({"counts": counts})
    print("\n".join(lines))


def searched(config: RetrieveConfig) -> Path | None:
    """The file that says what is searched: the corpus, or the card of its vectors; None for the web."""
    if config.retriever == "web":
        return None
    if config.retriever == "vectors":
        if config.corpus is not None:
            raise UserError("key 'corpus': retriever vectors searches RUN/vectors; give data_gen/embed.py the corpus")
        return config.run / "vectors" / CARD
    passages = config.run / "passages.jsonl"
    if config.corpus is None and not passages.exists():
        raise UserError(f"{passages}: no such file, these questions came without passages; give yours: --corpus FILE")
    return config.corpus or passages


def search_of(config: RetrieveConfig, corpus: Path | None) -> tuple[stage.Search, Callable[[], dict[str, int]]]:
    """The retriever that is asked for, its index built if need be, and a function that counts what it skipped."""
    if corpus is None or config.retriever == "web":
        if config.web is None:
            raise UserError("key 'web': retriever web needs a service; see data_gen/configs/retrieve_web.yaml")
        web = WebSearch(config.web)
        search: stage.Search = lambda asked: web.search([q.text for q in asked], config.k)  # noqa: E731
        return search, lambda: {"results_without_text_or_repeated": web.dropped}
    if config.retriever == "vectors":
        return searched_apart(VectorIndex.open(corpus.parent), config.k)
    columns = {str(field): column for field, column in config.columns.items()}
    if config.retriever in ("fixed", "context"):
        field = "gold_passages" if config.retriever == "fixed" else "context_passages"
        return stage.take_own_passages(corpus, config.k, field, columns), dict
    size = config.chunk_tokens
    chunking = None if size is None else Chunking(size, config.chunk_overlap)
    index = stage.open_index(corpus, config.run / "bm25", chunking, columns)
    return searched_apart(index, config.k)


def searched_apart(searcher: Searcher, k: int) -> tuple[stage.Search, Callable[[], dict[str, int]]]:
    """A search for passages with different texts, and a function as of :func:`search_of`."""
    distinct = DistinctSearch(searcher)
    return lambda asked: distinct.search([q.text for q in asked], k), lambda: {"copies_skipped": distinct.copies}


def key_of(config: RetrieveConfig, questions: Path, corpus: Path | None) -> dict[str, Any]:
    """Settings that the evidence depends on, without the batch size."""
    hashes = {"questions": file_sha256(questions), "passages": file_sha256(corpus) if corpus else None}
    unused = {"run", "corpus", "batch", *(() if config.columns else ("columns",))}
    words = stage.word_rule(questions) if config.retriever == "bm25" else {}
    fixed = {"chunk_tokenizer": "words", "chinese": "bigrams", "query": "text"}  # noted since they could be chosen
    return {**config.model_dump(mode="json", exclude=unused), **fixed, **hashes, **words}


def at_stored_pace(key: dict[str, Any], target: Path) -> dict[str, Any]:
    """The key with the pace of a web search that was begun or made, which changes no hit: another one may finish it."""
    note = beside(target, ".partial.key")
    stored = (jsonl.read_json(note) if note.exists() else meta_of(target).get("key") or {}).get("web")
    if key["web"] and stored:
        key["web"] |= {name: stored[name] for name in ("timeout_s", "attempts", "parallel")}
    return key


if __name__ == "__main__":
    run_script(main, RetrieveConfig, __doc__)
