"""The feature ``know``: the first snippets of a ranker for each turn. The query is the context, and no response."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal

from kbtrain.jsonl import read, write
from kbtrain.prompts.context import context_text
from kbtrain.provenance import file_sha256, made_before, write_meta
from kbtrain.records import Evidence, Hit, Snippet, TurnExample
from kbtrain.retrieval.base import Searcher
from kbtrain.retrieval.ranker_data import Candidates, Rank, TfIdfRank

Know = Literal["tfidf", "ranker", "bm25"]


def by_rank(rank: Rank, candidates: Candidates, examples: Iterable[TurnExample], k: int) -> list[tuple[Hit, ...]]:
    """The ``k`` best of each turn's candidates; none where its dialogue has none."""
    return [tuple(rank(example, candidates.of(example), k)) for example in examples]


def by_index(searcher: Searcher, examples: Iterable[TurnExample], k: int) -> list[tuple[Hit, ...]]:
    """The ``k`` best passages of an index for each context."""
    return searcher.search([context_text(example.context) for example in examples], k)


def find_knowledge(
    know: Know, examples: Iterable[TurnExample], k: int, run: Path, source: Path | None, device: str = "auto"
) -> list[tuple[Hit, ...]]:
    """``tfidf`` and ``ranker`` (``source``: its folder) choose among the snippets of ``run``; ``bm25`` searches a
    corpus (``source``: its file), whose index is kept in the run. Raises :class:`~kbtrain.errors.UserError`."""
    if know == "bm25" and source:
        from kbtrain.retrieval.retrieve_stage import open_index

        return by_index(open_index("bm25", source, run / "bm25_turns"), examples, k)
    snippets = list(read(Snippet, run / "snippets.jsonl"))
    if know == "tfidf":
        return by_rank(TfIdfRank(snippets), Candidates(snippets), examples, k)
    from kbtrain.retrieval.ranker import Ranker

    ranker = Ranker.load(source or "", device=device)
    rank: Rank = lambda turn, hits, k: ranker.best(turn.context, hits, k)  # noqa: E731
    return by_rank(rank, Candidates(snippets), examples, k)


def kept_knowledge(
    path: Path,
    know: Know,
    turns: Sequence[TurnExample],
    k: int,
    run: Path,
    source: Path | None,
    device: str = "auto",
    shown: Callable[[Iterable[TurnExample]], Iterable[TurnExample]] = iter,
) -> list[tuple[Hit, ...]]:
    """As :func:`find_knowledge`, from ``path`` if it was found before in the same data, else found and kept there.
    ``shown`` may show how far it is."""
    ids = [turn.id for turn in turns]
    options = {"know": know, "source": None if source is None else file_sha256(source), "k": k, "turns": len(ids)}
    inputs = [run / "turns.jsonl", *([] if know == "bm25" else [run / "snippets.jsonl"])]
    if made_before(path, options, inputs):
        kept = {evidence.question_id: evidence.hits for evidence in read(Evidence, path)}
        if list(kept) == ids:
            return [kept[name] for name in ids]
    found = find_knowledge(know, shown(turns), k, run, source, device)
    rows = zip(turns, found, strict=True)
    write(path, (Evidence(turn.id, know, context_text(turn.context), hits) for turn, hits in rows))
    write_meta(path, stage="respond", config=options, inputs=inputs)
    return found
