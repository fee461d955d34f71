"""Snippets of dialogue turns, from TF-IDF, a trained ranker, or BM25 over a corpus; the context alone is the query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from kbtrain.config import Config
from kbtrain.errors import UserError, at
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import read, write
from kbtrain.io.provenance import Artifact, file_sha256
from kbtrain.prompts.ragate import context_text
from kbtrain.records import Evidence, Hit, TurnExample
from kbtrain.retrieval.base import DistinctSearch
from kbtrain.retrieval.retrieve_stage import open_index
from ragate_responses.ranker import Candidates, Rank, Ranker, TfIdfRank, read_snippets

Know = Literal["tfidf", "ranker", "bm25"]


class KnowledgeConfig(Config):
    """Keys of the scripts that look up knowledge for turns; a ranker's folder or a corpus belongs to its method."""

    run: Path = Field(Path("runs/ketod"), description="run folder with turns.jsonl")
    know: Know | Literal["none"] = Field("none", description="none, tfidf, ranker or bm25: where knowledge comes from")
    ranker: Path | None = Field(None, description="folder of studies/train_ranker.py, for know: ranker")
    corpus: Path | None = Field(None, description="passages, for know: bm25 (searches for each context)")
    device: str = Field("auto", description="auto, cpu or cuda")

    @property
    def source(self) -> Path | None:
        """The ranker's folder or the corpus; None for the methods that need neither."""
        return self.ranker or self.corpus

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for know, key in (("ranker", "ranker"), ("bm25", "corpus")):
            if (self.know == know) != (getattr(self, key) is not None):
                raise ValueError(f"know: {know} and the key '{key}' belong together")
        return self


def by_rank(rank: Rank, candidates: Candidates, examples: Iterable[TurnExample], k: int) -> list[tuple[Hit, ...]]:
    """The ``k`` best of each turn's candidates; none where its dialogue has none."""
    return [tuple(rank(example, candidates.hits_of(example), k)) for example in examples]


def find_knowledge(config: KnowledgeConfig, examples: Iterable[TurnExample], k: int) -> list[tuple[Hit, ...]]:
    """The ``k`` best of each turn: ``tfidf`` and ``ranker`` choose among the snippets of the run, ``bm25`` searches the
    corpus, whose index is kept in the run. Raises :class:`UserError`."""
    run, source = config.run, config.source
    if config.know == "bm25" and source:
        searcher = DistinctSearch(open_index(source, run / "bm25_turns"))
        return searcher.search([context_text(example.context) for example in examples], k)
    snippets = read_snippets(run / "snippets.jsonl")
    if config.know == "tfidf":
        return by_rank(TfIdfRank(snippets), Candidates(snippets), examples, k)
    ranker = Ranker.load(source or "", device=config.device)
    rank: Rank = lambda turn, hits, k: ranker.best(turn.context, hits, k)  # noqa: E731
    return by_rank(rank, Candidates(snippets), examples, k)


def kept_knowledge(
    path: Path,
    config: KnowledgeConfig,
    turns: Sequence[TurnExample],
    k: int,
    with_progress: Callable[[Iterable[TurnExample]], Iterable[TurnExample]] = iter,
    was_read: bool = False,
) -> list[tuple[Hit, ...]]:
    """As :func:`find_knowledge`, from ``path`` if it is current, else found and stored there.

    ``with_progress`` may show progress. ``was_read``: stored responses have read what ``path`` holds; other texts
    raise :class:`UserError`.
    """
    know, source, run, ids = config.know, config.source, config.run, [turn.id for turn in turns]
    options = {"know": know, "source": None if source is None else file_sha256(source), "k": k, "turns": len(ids)}
    inputs = [run / "turns.jsonl", *([] if know == "bm25" else [run / "snippets.jsonl"])]
    snippets = Artifact(path, "respond", options, inputs)
    if snippets.is_current():
        stored = {evidence.question_id: evidence.hits for evidence in read(Evidence, path)}
        if list(stored) == ids:
            return [stored[name] for name in ids]
    results = find_knowledge(config, with_progress(turns), k)
    pairs = zip(turns, results, strict=True)
    rows = [Evidence(turn.id, know, context_text(turn.context), hits) for turn, hits in pairs]
    if was_read and path_exists(path) and _texts_of(rows) != _texts_of(read(Evidence, path)):
        raise UserError(f"{at(path)}: other snippets are found now than those that stored responses have read; choose "
                        "another --out, or delete these responses")  # fmt: skip
    write(path, rows)
    snippets.finish()
    return results


def _texts_of(rows: Iterable[Evidence]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    return [(row.question_id, [(hit.passage_id, hit.title, hit.text) for hit in row.hits]) for row in rows]
