"""Features of dialogue turns: ``ner`` (named entities) and ``know`` (the first snippets of a ranker).

Entities are those that spaCy or GLiNER find in the incoming (generated) response, as in the paper, or SGD's slot spans
of the context, kbtrain's variant. Knowledge is searched for with the context alone; no response is read.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from kbtrain.config import Config
from kbtrain.errors import UserError, at
from kbtrain.io.artifact import Artifact
from kbtrain.io.files import path_exists
from kbtrain.io.jsonl import read, write
from kbtrain.io.provenance import file_sha256
from kbtrain.prompts.ragate import context_text
from kbtrain.records import Entity, Evidence, Hit, TurnExample
from kbtrain.retrieval.ranker import Candidates, Rank, Ranker, TfIdfRank, read_snippets

Finder = Literal["sgd", "spacy", "gliner"]
Find = Callable[[Sequence[str]], list[tuple[Entity, ...]]]
_INSTALL = {
    "spacy": 'pip install "kbtrain[ner]", or name slots of the context: ner: [sgd]',
    "gliner": "pip install gliner",
}
_GLINER_TYPES = ["person", "organisation", "place", "event", "work of art", "product", "date"]


def read_text(example: TurnExample) -> str:
    """The text for spaCy and GLiNER: the synthetic response (RAGate's "entities within the incoming responses") or,
    before one was generated, the user's last utterance. Never the real response: it is in the future.
    """
    return example.context[-1].text if example.synthetic_response is None else example.synthetic_response


def annotated(example: TurnExample) -> tuple[Entity, ...]:
    """The data set's own slot spans in the context, each once, the latest first."""
    entities = (entity for utterance in reversed(example.context) for entity in utterance.entities)
    return tuple(dict.fromkeys(entities))


def spacy_finder(model: str) -> Find:
    """A spaCy pipeline by package name or folder. Raises :class:`UserError` if spaCy or the model is missing."""
    spacy = _import_optional("spacy", _INSTALL["spacy"])
    try:
        pipeline: Any = spacy.load(model)
    except OSError:
        raise UserError(f"spaCy model '{model}': not installed; install its package, or give a folder") from None
    source = f"spacy:{pipeline.meta['lang']}_{pipeline.meta['name']}"

    def find(texts: Sequence[str]) -> list[tuple[Entity, ...]]:
        return [_distinct((e.text, e.label_, source) for e in doc.ents) for doc in pipeline.pipe(texts)]

    return find


def gliner_finder(model: str) -> Find:
    """A GLiNER model by folder or hub id. Raises :class:`UserError` if GLiNER is missing."""
    loaded: Any = _import_optional("gliner", _INSTALL["gliner"]).GLiNER.from_pretrained(model)

    def find(texts: Sequence[str]) -> list[tuple[Entity, ...]]:
        predictions = (loaded.predict_entities(text, _GLINER_TYPES) for text in texts)
        return [_distinct((e["text"], e["label"], f"gliner:{model}") for e in entities) for entities in predictions]

    return find


def finders_for(responses: bool) -> tuple[Finder, ...]:
    """RAGate's ``ner`` where there are responses to read, the data set's slots of the context where there are none."""
    return ("spacy",) if responses else ("sgd",)


def check_finders(finders: Sequence[Finder]) -> None:
    """Raise :class:`UserError` for one whose package is missing, before responses are generated for it."""
    for name in finders:
        if name != "sgd":
            _import_optional(name, _INSTALL[name])


def entities_of(finders: Sequence[Finder]) -> str:
    """The finders in words: ``ner`` is the paper's only if no slot of the context is among what they find."""
    parts = [
        "slots of the context (kbtrain's own)" if name == "sgd" else f"entities of the response ({name})"
        for name in finders
    ]
    return " and ".join(parts) or "none"


def with_entities(
    examples: Sequence[TurnExample], finders: Sequence[Finder], models: Mapping[str, str]
) -> list[TurnExample]:
    """The examples with what these finders find, in the order of the finders; ``models`` by finder's name."""
    open_finder = {"spacy": spacy_finder, "gliner": gliner_finder}
    by_example = [annotated(example) if "sgd" in finders else () for example in examples]
    for name in finders:
        if name != "sgd":
            more = open_finder[name](models[name])([read_text(example) for example in examples])
            by_example = [(*a, *b) for a, b in zip(by_example, more, strict=True)]
    return [replace(example, entities=entities) for example, entities in zip(examples, by_example, strict=True)]


def _distinct(parts: Iterable[tuple[str, str, str]]) -> tuple[Entity, ...]:
    return tuple(dict.fromkeys(Entity(*part) for part in parts))


def _import_optional(package: str, command: str) -> Any:
    """An optional package, imported."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"package '{package}' is needed and not installed: {command}")
    return importlib.import_module(package)


Know = Literal["tfidf", "ranker", "bm25"]


class KnowledgeConfig(Config):
    """Keys of the scripts that look up knowledge for turns; a ranker's folder or a corpus belongs to its method."""

    run: Path = Field(Path("runs/ketod"), description="run folder with turns.jsonl")
    know: Know | Literal["none"] = Field("none", description="none, tfidf, ranker or bm25: where knowledge comes from")
    ranker: Path | None = Field(None, description="folder of recipes/train_ranker.py, for know: ranker")
    corpus: Path | None = Field(None, description="passages, for know: bm25 (each context is searched for)")
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
    corpus, whose index is kept in the run. Raises :class:`~kbtrain.errors.UserError`."""
    run, source = config.run, config.source
    if config.know == "bm25" and source:
        from kbtrain.retrieval.base import DistinctSearch
        from kbtrain.retrieval.retrieve_stage import open_index

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
    raise :class:`~kbtrain.errors.UserError`.
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
