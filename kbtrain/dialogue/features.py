"""The feature ``ner``: named things of a turn. SGD's slot spans are always there; spaCy and GLiNER where installed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from kbtrain.errors import UserError
from kbtrain.records import Entity, TurnExample

Finder = Literal["sgd", "spacy", "gliner"]
Find = Callable[[Sequence[str]], list[tuple[Entity, ...]]]
GLINER_TYPES = ("person", "organisation", "place", "event", "work of art", "product", "date")


def read_text(example: TurnExample) -> str:
    """What spaCy and GLiNER read: the synthetic response (RAGate's "entities within the incoming responses") and,
    before one was made, the user's last utterance. Never the real response: it lies in the future."""
    return example.context[-1].text if example.synthetic_response is None else example.synthetic_response


def annotated(example: TurnExample) -> tuple[Entity, ...]:
    """The data set's own slot spans in the context, each once, the latest first."""
    found = (entity for utterance in reversed(example.context) for entity in utterance.entities)
    return tuple(dict.fromkeys(found))


def spacy_finder(model: str) -> Find:
    """A spaCy pipeline by package name or folder. Raises :class:`UserError` if spaCy or the model is missing."""
    spacy = _needed("spacy", 'pip install "kbtrain[ner]"')
    try:
        pipeline: Any = spacy.load(model)
    except OSError:
        raise UserError(f"spaCy model '{model}': not installed; install its package, or give a folder") from None
    source = f"spacy:{pipeline.meta['lang']}_{pipeline.meta['name']}"

    def find(texts: Sequence[str]) -> list[tuple[Entity, ...]]:
        return [_distinct((e.text, e.label_, source) for e in doc.ents) for doc in pipeline.pipe(texts)]

    return find


def gliner_finder(model: str, types: Sequence[str] = GLINER_TYPES) -> Find:
    """A GLiNER model by folder or hub id. Raises :class:`UserError` if GLiNER is missing."""
    loaded: Any = _needed("gliner", "pip install gliner").GLiNER.from_pretrained(model)

    def find(texts: Sequence[str]) -> list[tuple[Entity, ...]]:
        found = (loaded.predict_entities(text, list(types)) for text in texts)
        return [_distinct((e["text"], e["label"], f"gliner:{model}") for e in one) for one in found]

    return find


def with_entities(
    examples: Sequence[TurnExample], finders: Sequence[Finder], models: Mapping[str, str]
) -> list[TurnExample]:
    """The examples with what these finders find, in the order of the finders; ``models`` by finder's name."""
    opened: dict[str, Callable[[], Find]] = {
        "spacy": lambda: spacy_finder(models["spacy"]),
        "gliner": lambda: gliner_finder(models["gliner"]),
    }
    found = [annotated(example) if "sgd" in finders else () for example in examples]
    for name in finders:
        if name != "sgd":
            more = opened[name]()([read_text(example) for example in examples])
            found = [(*a, *b) for a, b in zip(found, more, strict=True)]
    return [replace(example, entities=entities) for example, entities in zip(examples, found, strict=True)]


def _distinct(parts: Any) -> tuple[Entity, ...]:
    return tuple(dict.fromkeys(Entity(*part) for part in parts))


def _needed(package: str, command: str) -> Any:
    """An optional package, imported."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"package '{package}' is needed and not installed: {command}")
    return importlib.import_module(package)
